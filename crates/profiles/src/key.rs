//! Which program a command means, and in which role.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::path::Path;

use prepage_core::profile::Profile;
use prepage_core::profile::file::checksum;
use prepage_core::profile::role::{Locate, called, role};

use crate::at_hand::{at_hand, is_absent};
use crate::program::{find, find_at_hand};

/// What a profile is of: the executable and the role it plays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProgramKey {
    /// Absolute path of the executable, free of symbolic links.
    pub program: String,
    /// See [`prepage_core::profile::role`].
    pub role: String,
}

impl ProgramKey {
    /// That of `command` (the program first): through env, nice and their like, that of the command they run.
    ///
    /// # Errors
    /// As [`find`], and where the executable's links cannot be resolved.
    pub fn of(command: &[OsString]) -> io::Result<Self> {
        let command = &command[called(&readable(command))..];
        let name = command.first().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self::played(&find(name)?.canonicalize()?, command))
    }

    /// The same, where it is known that the first of `command` means `program`, which has no symbolic link in its path.
    ///
    /// # Errors
    /// As [`Self::of`], of another program that this one runs.
    pub fn of_found(program: &Path, command: &[OsString]) -> io::Result<Self> {
        match called(&readable(command)) {
            0 => Ok(Self::played(program, command)),
            _ => Self::of(command),
        }
    }

    /// The same, as far as memory tells ([`crate::at_hand`]). `None` where file systems have to be asked.
    pub fn of_found_at_hand(program: &Path, command: &[OsString]) -> Option<Self> {
        let is_told = Cell::new(true);
        let place = |name: &str| match at_hand(Path::new(name)) {
            Ok(_) => place(name),
            Err(error) => {
                is_told.set(is_told.get() && is_absent(error));
                None
            }
        };
        let key = match called(&readable(command)) {
            0 => Self::placed(program, command, &place),
            at => {
                let command = &command[at..];
                let (_called, program) = find_at_hand(command.first()?)?.paths().ok()?;
                Self::placed(&program, command, &place)
            }
        };
        is_told.get().then_some(key)
    }

    fn played(program: &Path, command: &[OsString]) -> Self {
        Self::placed(program, command, &place)
    }

    fn placed(program: &Path, command: &[OsString], place: Locate<'_>) -> Self {
        Self { program: program.to_string_lossy().into_owned(), role: role(&readable(command), place) }
    }

    /// Whether `profile` is of this program in this role: names of files could collide.
    pub fn is_of(&self, profile: &Profile) -> bool {
        (&profile.program, &profile.role) == (&self.program, &self.role)
    }

    /// The name of the profile's file in a store: readable first, then a checksum of program and role that tells equal
    /// names apart.
    pub fn file_name(&self) -> String {
        let name = self.role.split(' ').next().unwrap_or_default();
        let readable: String =
            name.chars().filter(|c| c.is_ascii_alphanumeric() || "._+-".contains(*c)).take(40).collect();
        let parts = [self.program.as_bytes(), b"\0", self.role.as_bytes()];
        let reversed = [self.role.as_bytes(), b"\0", self.program.as_bytes()];
        let (readable, suffix) = (readable.trim_start_matches('.'), crate::room::SUFFIX);
        format!("{readable}-{:08x}{:08x}.{suffix}", checksum(&parts), checksum(&reversed))
    }
}

fn place(name: &str) -> Option<String> {
    Path::new(name).canonicalize().ok()?.to_str().map(str::to_owned)
}

/// The command line as text; what is not UTF-8 is replaced.
pub fn readable(command: &[OsString]) -> Vec<String> {
    command.iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_one_executable_share_it_but_not_the_role() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("applet");
        std::os::unix::fs::symlink("/bin/sh", &link).unwrap();
        let (a, b) = (ProgramKey::of(&[link.into()]).unwrap(), ProgramKey::of(&["/bin/sh".into()]).unwrap());
        assert_eq!(a.program, b.program);
        assert_eq!((a.role.as_str(), b.role.as_str()), ("applet", "sh"));
        let through = ["env", "X=1", "nice", "-n", "5", "/bin/sh"].map(OsString::from);
        assert_eq!(ProgramKey::of(&through).unwrap(), b);
    }

    /// Two projects, each with a script of the same name.
    #[test]
    fn scripts_of_the_same_name_in_two_places_are_two_roles() {
        let dir = tempfile::tempdir().unwrap();
        let script = |project: &str| {
            let path = dir.path().join(project).join("main.py");
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            let linked = dir.path().join(format!("{project}/../{project}/main.py"));
            assert_eq!(
                ProgramKey::of(&["sh".into(), path.clone().into()]).unwrap(),
                ProgramKey::of(&["sh".into(), linked.into()]).unwrap()
            );
            ProgramKey::of(&["sh".into(), path.into()]).unwrap().role
        };
        assert_ne!(script("one"), script("two"));
    }
}
