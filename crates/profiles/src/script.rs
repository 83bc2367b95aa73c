//! What runs a script: the program of its first line, and where that is env(1), the one that it is to look for.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::program::find;

/// As much of a script as the kernel looks at (`BINPRM_BUF_SIZE`).
const HEAD_BYTES: usize = 256;

/// The programs that run `script`, in the order in which they start: `#!/usr/bin/python3 -s` names one, `#!/usr/bin/env -S python3 -s`
/// env and what PATH has as python3. None of a file that is no script or cannot be read.
pub fn interpreters(script: &File) -> Vec<PathBuf> {
    let mut head = [0; HEAD_BYTES];
    let read = script.read_at(&mut head, 0).unwrap_or(0);
    let Some(line) = head[..read].strip_prefix(b"#!") else { return Vec::new() };
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes);
    let Some(first) = words.next() else { return Vec::new() };
    let mut programs = vec![PathBuf::from(first)];
    if Path::new(first).file_name() == Some("env".as_ref()) {
        // Options and variables come before the program.
        let mut named =
            words.filter(|word| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'='));
        programs.extend(named.next().and_then(|name| find(name).ok()));
    }
    programs
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn of(text: &[u8]) -> Vec<PathBuf> {
        let mut script = tempfile::tempfile().unwrap();
        script.write_all(text).unwrap();
        interpreters(&script)
    }

    #[test]
    fn the_first_line_says_what_runs_a_script() {
        let sh = find("sh".as_ref()).unwrap();
        let [bin_sh, env] = ["/bin/sh", "/usr/bin/env"].map(PathBuf::from);
        for text in [&b"#!/bin/sh"[..], b"#! \t/bin/sh -e\necho", b"#!/bin/sh\t-e x"] {
            assert_eq!(of(text), std::slice::from_ref(&bin_sh), "{}", text.escape_ascii());
        }
        for text in [&b"#!/usr/bin/env sh\n"[..], b"#!/usr/bin/env -S sh -e\n", b"#!/usr/bin/env -S A=b sh\n"]
        {
            assert_eq!(of(text), [env.clone(), sh.clone()], "{}", text.escape_ascii());
        }
        assert_eq!(of(b"#!/usr/bin/env no-such-program-anywhere\n"), [env]);
        let not_utf8 = PathBuf::from(OsStr::from_bytes(b"/opt/\xff/sh"));
        assert_eq!(of(b"#!/opt/\xff/sh\n"), [not_utf8]);
        for text in [&b""[..], b"#", b"#!", b"#!\n/bin/sh", b"#! \t\n", b"\x7fELF"] {
            assert!(of(text).is_empty(), "{}", text.escape_ascii());
        }
        assert_eq!(of(&[b"#!/".to_vec(), vec![b'x'; 5000]].concat())[0].as_os_str().len(), HEAD_BYTES - 2);
    }
}
