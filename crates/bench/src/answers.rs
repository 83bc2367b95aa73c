//! Which names cost nothing any more once others were looked up.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

/// As the kernel has it: path_resolution(7).
const LINKS_MAX: u32 = 40;

/// All that the kernel had to find for some names: entries of directories, as things are now. Who has looked up /a and found nothing need not
/// read anything for /a/b.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    found: HashSet<PathBuf>,
}

impl Answers {
    /// After `names` were looked up, which are absolute.
    pub fn to<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut answers = Self::default();
        for name in names {
            walk(Path::new("/"), Path::new(name), &mut answers.found, &mut { LINKS_MAX });
        }
        answers
    }

    /// Whether all that the kernel needs for `name` was found for others.
    pub fn answer(&self, name: &str) -> bool {
        Self::to([name]).found.is_subset(&self.found)
    }
}

/// Notes the entries on the way of `name` from the directory `from`, which is free of symbolic links. Returns where it leads; `None` where an
/// entry is missing.
fn walk(from: &Path, name: &Path, found: &mut HashSet<PathBuf>, links_left: &mut u32) -> Option<PathBuf> {
    let mut at = from.to_owned();
    for component in name.components() {
        match component {
            Component::RootDir => at = "/".into(),
            Component::ParentDir => drop(at.pop()),
            Component::Normal(part) => {
                let step = at.join(part);
                found.insert(step.clone());
                at = match step.read_link() {
                    Ok(target) => {
                        *links_left = links_left.checked_sub(1)?;
                        walk(&at, &target, found, links_left)?
                    }
                    Err(_) if step.symlink_metadata().is_ok() => step,
                    Err(_) => return None,
                };
            }
            Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_name_is_answered_where_each_entry_on_its_way_was_looked_for() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("lib/real")).unwrap();
        fs::write(root.join("lib/real/file"), "").unwrap();
        symlink("real", root.join("lib/link")).unwrap();
        symlink("circle", root.join("circle")).unwrap();
        let name = |name: &str| root.join(name).to_str().unwrap().to_owned();
        let looked_up = [name("lib/link/file"), name("absent"), name("circle")];
        let answers = Answers::to(looked_up.iter().map(String::as_str));
        for answered in [
            "lib/real/file",
            "lib//link/./file",
            "lib/real/",
            "lib/link/../link",
            "absent/below",
            "circle/x",
            "",
        ] {
            assert!(answers.answer(&name(answered)), "{answered}");
        }
        for other in ["lib/other", "lib/real/file2", "lib/absent", "other"] {
            assert!(!answers.answer(&name(other)), "{other}");
        }
    }
}
