//! What of a profile is for others to have: for exports, and for the layers that all users read. Names are looked up below the root that the
//! thread has entered, if any ([`prepage_sys::root`]).

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use prepage_core::profile::Profile;
use prepage_core::profile::role::{is_at, is_private, placed};
use prepage_sys::root;

/// Why [`public`] leaves nothing of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Private {
    /// Of the text of the program the role has a checksum.
    #[error("the text of its program stands in the call")]
    InCall,
    /// The program, or the file that it interprets.
    #[error("its program lies below a home directory")]
    BelowHome,
    /// The program, or the file that it interprets.
    #[error("its program lies where not everybody may look")]
    Hidden,
    /// Of the file that the program interprets, or of the directories that it searches, the role has a checksum.
    #[error("nothing of its profile tells where the program lies that its role names")]
    Unseen,
}

impl Private {
    /// What helps, as one line.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::InCall => {
                "put the text of the program into a file outside of home directories, and prepage learn -- CMD with that"
            }
            Self::BelowHome => {
                "install the program, or put it outside of home directories, and prepage learn -- CMD there"
            }
            Self::Hidden => "let everybody enter the directories on the way to the program (chmod a+x)",
            Self::Unseen => {
                "prepage learn -- CMD where names are seen (prepage doctor), with search paths of one directory or file, and a script by its path without links"
            }
        }
    }
}

/// What of `profile` says nothing about its user: files that everybody may read, names outside of home directories, and
/// nothing of when it was started and what prefetching was worth then. Of places that the role names, and nothing else of the profile does
/// ([`explained`]), whoever knows the call asks [`known_to_all`].
///
/// # Errors
/// If others must not know of the program.
pub fn public(profile: Profile) -> Result<Profile, Private> {
    public_besides(profile, &homes())
}

/// The same of a profile that leaves this machine ([`History::for_others`](prepage_core::profile::History::for_others)).
///
/// # Errors
/// As [`public`].
pub fn for_elsewhere(profile: Profile) -> Result<Profile, Private> {
    let mut profile = public(profile)?;
    profile.history = profile.history.for_others();
    Ok(profile)
}

fn public_besides(mut profile: Profile, homes: &[String]) -> Result<Profile, Private> {
    if is_private(&profile.role) {
        return Err(Private::InCall);
    }
    let known_to_all = |path: &str| known_to_all_besides(Path::new(path), homes);
    let is_known_to_all = |path: &str| known_to_all(path).is_ok();
    known_to_all(&profile.program)?;
    let named = profile.role.split(' ').filter(|word| word.starts_with('/'));
    named.into_iter().try_for_each(known_to_all)?;
    placed(&profile.role)
        .try_for_each(|word| paths(&profile).filter(|path| is_at(word, path)).try_for_each(known_to_all))?;
    profile.lookups.retain(|name| is_known_to_all(&name.path));
    profile.files.retain(|file| is_known_to_all(&file.path) && allows(Path::new(&file.path), 0o004));
    profile.starts.clear();
    Ok(profile)
}

/// Checks that `profile` tells of each place that its role names which it is: so that [`public`] has looked at it.
///
/// # Errors
/// [`Private::Unseen`].
pub fn explained(profile: &Profile) -> Result<(), Private> {
    let is_explained = |word: &str| paths(profile).any(|path| is_at(word, path));
    if placed(&profile.role).all(is_explained) { Ok(()) } else { Err(Private::Unseen) }
}

/// The files and names of `profile`, and the directories that they are in.
fn paths(profile: &Profile) -> impl Iterator<Item = &str> {
    let files = profile.files.iter().map(|file| &*file.path);
    let all = files.chain(profile.lookups.iter().map(|name| &*name.path));
    all.flat_map(|path| Path::new(path).ancestors()).filter_map(Path::to_str)
}

/// Whether everybody may know of `path`, whether anything is there or not.
///
/// # Errors
/// Why not.
pub fn known_to_all(path: &Path) -> Result<(), Private> {
    known_to_all_besides(path, &homes())
}

fn known_to_all_besides(path: &Path, homes: &[String]) -> Result<(), Private> {
    let leads_home = || real(path).is_none_or(|real| is_below(&real, homes));
    match is_below(path, homes) {
        true => Err(Private::BelowHome),
        // What is below a directory that others may not enter is for nobody else to know.
        false if !may_be_reached_by_all(path) => Err(Private::Hidden),
        false if leads_home() => Err(Private::BelowHome),
        false => Ok(()),
    }
}

/// Whether the file at `path` is no user's own: everybody may read it, and it lies in nobody's home.
pub fn is_for_all(path: &Path) -> bool {
    !is_below(path, &homes()) && may_be_read_by_all(path)
}

/// Whether root alone decides what lies at `path`: it and the directories on the way, those that are there, belong to root, and nobody
/// else may write to them.
pub fn is_of_root(path: &Path) -> bool {
    is_of(0, path)
}

/// The same of user `uid`, who is root in a container.
pub fn is_of(uid: u32, path: &Path) -> bool {
    first_of_others(uid, path).is_none()
}

/// The first on the way to `path`, or that itself, by which others than user `uid` decide what lies there.
pub fn first_of_others(uid: u32, path: &Path) -> Option<PathBuf> {
    let is_of_others = |one: &&Path| match root::metadata(one) {
        Ok(metadata) => metadata.uid() != uid || metadata.mode() & 0o022 != 0,
        Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
    };
    // From the top, so that only the user's links are followed.
    let on_the_way: Vec<&Path> = path.ancestors().collect();
    on_the_way.into_iter().rev().find_map(|one| {
        if is_of_others(&one) {
            return Some(one.to_owned());
        }
        // Where it leads counts, too.
        let real = root::canonicalize(one).ok()?;
        real.ancestors().find(is_of_others).map(Path::to_owned)
    })
}

fn is_below(path: &Path, homes: &[String]) -> bool {
    homes.iter().any(|home| path.starts_with(home))
}

/// Where `path` leads, as far as it is there; `None` where `..` follows on what is not there, and so may lead anywhere.
fn real(path: &Path) -> Option<PathBuf> {
    path.ancestors().find_map(|there| {
        let (real, missing) = (root::canonicalize(there).ok()?, path.strip_prefix(there).ok()?);
        let is_plain = missing.components().all(|part| matches!(part, Component::Normal(_)));
        is_plain.then(|| real.join(missing))
    })
}

/// Whether everybody may read the file at `path`. One that is not there is no secret of this machine.
pub fn may_be_read_by_all(path: &Path) -> bool {
    allows(path, 0o004) && may_be_reached_by_all(path)
}

/// Whether everybody may enter the directories on the way to `path`.
fn may_be_reached_by_all(path: &Path) -> bool {
    path.ancestors().skip(1).all(|directory| allows(directory, 0o001))
}

fn allows(path: &Path, bits: u32) -> bool {
    match root::metadata(path) {
        Ok(metadata) => metadata.mode() & bits == bits,
        // Below a file there is nothing either.
        Err(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
    }
}

/// Home directories: those of people in /etc/passwd, the usual places of them, and this process's own.
fn homes() -> Vec<String> {
    let mut usual = vec!["/home".to_owned(), "/root".into(), "/run/user".into()];
    usual.extend(std::env::var("HOME"));
    homes_of(usual, &fs::read_to_string("/etc/passwd").unwrap_or_default())
}

fn homes_of(usual: Vec<String>, passwd: &str) -> Vec<String> {
    // Files are known by paths without links, and /home may be one. Each person's own is not looked at: that may mount it.
    let real =
        usual.iter().filter_map(|home| fs::canonicalize(home).ok()?.into_os_string().into_string().ok());
    let mut homes: Vec<String> = real.collect();
    homes.extend(usual);
    for line in passwd.lines() {
        let mut fields = line.split(':').skip(2);
        let person = fields.next().and_then(|uid| uid.parse::<u32>().ok()).is_some_and(|uid| uid >= 1000);
        homes.extend(fields.nth(2).filter(|_| person).map(str::to_owned));
    }
    homes.retain(|home| home.len() > 1 && home.starts_with('/'));
    homes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use prepage_core::profile::role::role;
    use prepage_core::profile::{ColdStart, Counts, Lookup, ProfiledFile};

    use super::*;

    #[test]
    fn what_belongs_to_a_user_stays_there() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = |name: &str, mode| {
            let path = dir.path().join(name);
            fs::write(&path, "x").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let closed = dir.path().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        let home = dir.path().join("eve");
        fs::create_dir(&home).unwrap();
        fs::set_permissions(&home, fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(&home, dir.path().join("link")).unwrap();
        let homes = [homes(), homes_of(vec![home.to_str().unwrap().to_owned()], "")].concat();
        let file = |path: String| ProfiledFile { path, ..ProfiledFile::default() };
        let name = |path: &str| Lookup { path: path.into(), list: false, counts: Counts::default() };
        let profile = Profile {
            program: "/usr/bin/x".into(),
            role: "x *.c".into(),
            files: vec![
                file(path("open", 0o644)),
                file(path("secret", 0o640)),
                file("/home/ann/diary".into()),
            ],
            lookups: vec![
                name("/usr/share/x"),
                name("/usr/share/../share/x"),
                name("/usr/share/../../home/ann/plan"),
                name("/usr/share/no-such-directory/../../../home/ann/plan"),
                name(&format!("{}/link/plan", dir.path().display())),
                name("/home/ann/plans/merger.c"),
                name("/root/.x"),
                name(&format!("{}/no-such-plan", closed.display())),
            ],
            starts: vec![ColdStart::default()],
            ..Profile::default()
        };
        let given = public_besides(profile.clone(), &homes).unwrap();
        let paths: Vec<_> = given.files.iter().map(|file| file.path.rsplit('/').next().unwrap()).collect();
        assert_eq!(paths, ["open"]);
        assert_eq!(given.lookups, [name("/usr/share/x"), name("/usr/share/../share/x")]);
        assert!(given.starts.is_empty());
        let in_call = public(Profile { role: "sh -c #0badcafe".into(), ..profile.clone() });
        assert_eq!(in_call, Err(Private::InCall));
        assert_eq!(public(Profile { program: "/home/ann/bin/x".into(), ..profile }), Err(Private::BelowHome));
    }

    /// Its name is in the role, and a checksum of its place, which can be tried against guesses.
    #[test]
    fn a_script_of_a_users_own_goes_nowhere_and_one_of_all_does() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let closed = dir.path().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        let known = |program: &str, script: &str| Profile {
            program: program.into(),
            role: role(&["python3", "-O", "merger.py"], &|_| Some(script.into())),
            files: vec![ProfiledFile { path: script.into(), ..ProfiledFile::default() }],
            ..Profile::default()
        };
        assert!(public(known("/usr/bin/python3", "/usr/share/x/merger.py")).is_ok());
        let hidden = format!("{}/merger.py", closed.display());
        for (script, why) in [("/home/ann/merger.py", Private::BelowHome), (&*hidden, Private::Hidden)] {
            assert_eq!(public(known("/usr/bin/python3", script)), Err(why), "{script}");
        }
        assert_eq!(public(known(&hidden, "/usr/share/x/merger.py")), Err(Private::Hidden));
    }

    /// As of `python3 -m proj.merger`, of which the compiled file is read, and of `python3 ~/app`.
    #[test]
    fn a_place_in_the_role_is_looked_for_among_names_and_directories_and_an_unknown_one_goes_nowhere() {
        let known = |place: &str, name: &str| Profile {
            program: "/usr/bin/python3".into(),
            role: role(&["python3", "app"], &|_| Some(place.into())),
            lookups: vec![Lookup { path: name.into(), list: false, counts: Counts::default() }],
            ..Profile::default()
        };
        for name in ["/home/ann/proj/merger.py", "/home/ann/proj/merger.py/__main__.py"] {
            assert_eq!(public(known("/home/ann/proj/merger.py", name)), Err(Private::BelowHome), "{name}");
        }
        let of_all = known("/usr/share/x", "/usr/share/x/__main__.py");
        assert_eq!((explained(&of_all), public(of_all.clone()).is_ok()), (Ok(()), true));
        assert_eq!(explained(&known("/home/ann/proj", "/usr/share/x")), Err(Private::Unseen));
    }

    #[test]
    fn where_homes_are_behind_a_link_what_is_in_them_is_private() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("var/home/ann")).unwrap();
        std::os::unix::fs::symlink("var/home", root.join("home")).unwrap();
        let path = |name: &str| root.join(name).to_str().unwrap().to_owned();
        let homes = homes_of(vec![path("home"), path("none")], "eve:x:1000:1000::/srv/eve:/bin/sh\n");
        for home in ["home/ann/x", "var/home/ann/x", "none/x", "/srv/eve/x"] {
            assert!(is_below(Path::new(&path(home)), &homes), "{home} of {homes:?}");
        }
        assert!(!is_below(Path::new(&path("var/x")), &homes));
    }

    #[test]
    fn where_anybody_else_may_write_it_is_not_root_alone_who_decides() {
        for of_root in ["/usr/bin/env", "/usr/share/no-such-directory/file", "/etc/passwd/file"] {
            assert!(is_of_root(Path::new(of_root)), "{of_root}");
        }
        assert!(!is_of_root(Path::new("/tmp/no-such-file")));
        if !prepage_testing::has(prepage_testing::Need::Root) {
            return;
        }
        // Whose parent everybody may write to.
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(!is_of_root(dir.path()));
        let link = tempfile::tempdir_in("/usr/share").unwrap();
        fs::set_permissions(link.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = |name: &str| link.path().join(name);
        std::os::unix::fs::symlink(dir.path(), path("link")).unwrap();
        fs::write(path("file"), "").unwrap();
        assert!(is_of_root(&path("file")) && is_of_root(&path("none")));
        assert!(!is_of_root(&path("link")) && !is_of_root(&path("link/name")));
        assert_eq!(first_of_others(0, &path("link/name")), Some("/var/tmp".into()));
        for (mode, owner) in [(0o664, 0), (0o646, 0), (0o644, 65534)] {
            fs::set_permissions(path("file"), fs::Permissions::from_mode(mode)).unwrap();
            std::os::unix::fs::chown(path("file"), Some(owner), None).unwrap();
            assert!(!is_of_root(&path("file")), "{mode:o}");
            assert_eq!(first_of_others(0, &path("file")), Some(path("file")));
        }
    }

    #[test]
    fn a_directory_that_others_may_not_enter_hides_what_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!may_be_read_by_all(&path));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
        assert!(may_be_read_by_all(&path));
    }
}
