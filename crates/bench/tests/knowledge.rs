//! Which names bench/knowledge.py takes for known.

use std::process::Command;

use prepage_testing::{Need, has};

const CHECK: &str = r"
import os, sys
from knowledge import steps
root = os.path.realpath(sys.argv[1])
os.makedirs(f'{root}/lib/real')
open(f'{root}/lib/real/file', 'w').close()
os.symlink('real', f'{root}/lib/link')
os.symlink('circle', f'{root}/circle')
found = set().union(*(steps(f'{root}/{name}') for name in ['lib/link/file', 'absent', 'circle']))
for name in ['lib/real/file', 'lib//link/./file', 'lib/real/', 'lib/link/../link', 'absent/below', 'circle/x', '']:
    assert steps(f'{root}/{name}') <= found, name
for name in ['lib/other', 'lib/real/file2', 'lib/absent', 'other']:
    assert not steps(f'{root}/{name}') <= found, name
";

#[test]
fn a_name_is_answered_where_each_entry_on_its_way_was_looked_for() {
    if !has(Need::Tool("python3".into())) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut python = Command::new("python3");
    python.args(["-c", CHECK]).arg(dir.path());
    python.env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench"));
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    assert!(python.status().unwrap().success());
}
