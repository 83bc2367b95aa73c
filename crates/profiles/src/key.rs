//! Which program a command means, and in which role.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;

use prepage_core::profile::Profile;
use prepage_core::profile::file::checksum;

use crate::call::Call;

/// What a profile is of: the executable and the role it plays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProgramKey {
    /// Absolute path of the executable, free of symbolic links.
    pub program: String,
    /// See [`prepage_core::profile::role`].
    pub role: String,
}

impl ProgramKey {
    /// That of `command` (the program first): of what its process becomes ([`Call`]). The beginning of the program's file is read.
    ///
    /// # Errors
    /// As [`Call::in_the_end_of`].
    pub fn of(command: &[OsString]) -> io::Result<Self> {
        Ok(Call::in_the_end_of(command)?.key())
    }

    /// What `profile` is of.
    pub fn of_profile(profile: &Profile) -> Self {
        Self { program: profile.program.clone(), role: profile.role.clone() }
    }

    /// A profile of this program in this role that knows nothing yet.
    pub fn empty_profile(&self) -> Profile {
        Profile { program: self.program.clone(), role: self.role.clone(), ..Profile::default() }
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

/// The command line as text; what is not UTF-8 is replaced.
pub fn readable(command: &[OsString]) -> Vec<String> {
    words(command).into_iter().map(Cow::into_owned).collect()
}

/// The same of who only looks at it.
pub(crate) fn words(command: &[OsString]) -> Vec<Cow<'_, str>> {
    command.iter().map(|arg| arg.to_string_lossy()).collect()
}

/// What profiles of no program are said to be of: the machine's first program by the name that the kernel knows it by. Where that is a link, no
/// program is called so.
pub const INIT: &str = "/sbin/init";
/// The role of the boot of the machine.
pub const BOOT: &str = "boot";
/// The role of login sessions.
pub const SESSION: &str = "session";

/// Whether a profile of `program` in `role` is of the boot or of sessions, and no start of a program is served from it.
pub fn is_of_subject(program: &str, role: &str) -> bool {
    program == INIT && [BOOT, SESSION].contains(&role)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    use rustix::io::Errno;

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

    /// A script that may be executed.
    fn script(directory: &Path, name: &str, text: &str) -> PathBuf {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn key(command: &[&Path]) -> ProgramKey {
        ProgramKey::of(&command.iter().map(|word| (*word).into()).collect::<Vec<OsString>>()).unwrap()
    }

    /// Where env would unquote or replace something, the script is filed under env itself.
    #[test]
    fn whatever_env_is_given_there_is_a_key() {
        let dir = tempfile::tempdir().unwrap();
        for (at, line) in ["-S \"sh\" -e", "-S A=\"a b\" sh", "-vS sh -e"].iter().enumerate() {
            let path = script(dir.path(), &format!("tool{at}"), &format!("#!/usr/bin/env {line}\n"));
            assert!(key(&[&path]).program.ends_with("/env"), "{line}");
        }
        assert!(key(&[Path::new("env"), Path::new("-S"), Path::new("sh -e")]).program.ends_with("/env"));
    }

    /// It runs another program, by options that nobody here knows, or says itself that there is none.
    #[test]
    fn a_wrapper_behind_which_no_program_is_found_is_the_program() {
        for words in [&["nice", "--new-option", "7", "sh"][..], &["env", "-u", "X", "no-such-program"]] {
            let words: Vec<&Path> = words.iter().map(Path::new).collect();
            assert!(Path::new(&key(&words).program).ends_with(words[0]), "{words:?}");
        }
        let none = ["env", "sh", "x"].map(Path::new);
        assert_eq!(key(&none), key(&none[1..]));
    }

    /// Whoever sees the process sees `sh ./tool`.
    #[test]
    fn a_script_is_filed_under_what_runs_it() {
        let dir = tempfile::tempdir().unwrap();
        let sh = Path::new("sh");
        for (at, line) in
            ["#!/bin/sh", "#!/usr/bin/env sh", "#!/usr/bin/env -S A=b sh", "# no line"].iter().enumerate()
        {
            let tool = script(dir.path(), &format!("tool{at}"), &format!("{line}\nexit\n"));
            assert_eq!(key(&[&tool, "x".as_ref()]), key(&[sh, &tool]), "{line}");
            assert_eq!(key(&["nice".as_ref(), &tool]), key(&[sh, &tool]), "{line}");
        }
        let tool = script(dir.path(), "tool", "#!/bin/sh -e\nexit\n");
        assert_eq!(key(&[&tool]), key(&[sh, "-e".as_ref(), &tool]));
        assert!(key(&[&tool]).role.starts_with("sh -e tool@"), "{:?}", key(&[&tool]));
    }

    /// Of none of these says an option of a known interpreter which script it is.
    #[test]
    fn two_scripts_of_one_interpreter_are_two_roles() {
        let dir = tempfile::tempdir().unwrap();
        let unknown = dir.path().join("unknown");
        std::fs::copy("/bin/sh", &unknown).unwrap();
        let between = script(dir.path(), "between", "#!/bin/sh\n");
        for runs in [&unknown, &between] {
            let [one, other] =
                ["one", "other"].map(|name| script(dir.path(), name, &format!("#!{} -x\n", runs.display())));
            let keys = [key(&[&one]), key(&[&other])];
            assert_eq!(keys[0].program, keys[1].program);
            assert!(keys[0].role.contains(" one@") && keys[1].role.contains(" other@"), "{keys:?}");
        }
        assert!(key(&[&between]).role.starts_with("sh between@"));
    }

    #[test]
    fn a_script_that_cannot_be_executed_has_no_key() {
        let dir = tempfile::tempdir().unwrap();
        let itself = dir.path().join("itself");
        let error = |path: &Path| ProgramKey::of(&[path.into()]).unwrap_err();
        script(dir.path(), "itself", &format!("#!{}\n", itself.display()));
        assert_eq!(error(&itself).raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        let missing = script(dir.path(), "missing", "#!/no/such/interpreter\n");
        assert_eq!(error(&missing).kind(), io::ErrorKind::NotFound);
    }
}
