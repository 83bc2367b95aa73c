//! Profiles from elsewhere, made to fit this machine.
//!
//! Device, inode and times of a file differ from machine to machine; what it holds decides. A file that holds something
//! else here, or that is not here, is left out, and its pages with it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};

use prepage_core::profile::bounds::bound;
use prepage_core::profile::extent::union;
use prepage_core::profile::merge::{merge, supplemented};
use prepage_core::profile::{Profile, ProfiledFile};
use prepage_sys::mounts::{Mount, mount_among, mounts};

use crate::identity::{Skipped, identity_of, open_if_same};
use crate::key::ProgramKey;
use crate::layer::Layer;
use crate::public::{Private, explained, public};
use crate::source::is_own;
use crate::store::Stores;
use crate::store_error::StoreError;

/// Something that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// A file or name; empty for a part of the profile that has none.
    pub path: String,
    /// Why.
    pub reason: String,
}

/// What came of one profile.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The profile that fits this machine.
    pub profile: Profile,
    /// What was left out.
    pub left: Vec<Left>,
    /// Whether the store knows more than before.
    pub news: bool,
    /// Profiles of the store that were removed to make room.
    pub removed: Vec<PathBuf>,
}

/// Looks at the files of `profile` and keeps what fits this machine.
pub fn fit(profile: Profile, places: &Places) -> Imported {
    let mut profile = profile;
    // What it was worth on other devices.
    profile.starts.clear();
    profile.history = profile.history.for_others();
    let mut left: Vec<Left> = bound(&mut profile)
        .into_iter()
        .map(|cut| Left { path: cut.path, reason: cut.reason.into() })
        .collect();
    let mut leave = |path: &str, reason: String| left.push(Left { path: path.into(), reason });
    let files = std::mem::take(&mut profile.files);
    if !Path::new(&profile.program).is_absolute() {
        leave(&profile.program, "no absolute path of a program".into());
        let profile = Profile { lookups: Vec::new(), ..profile };
        return Imported { profile, left, news: false, removed: Vec::new() };
    }
    let mut taken = HashMap::new();
    for file in files {
        if places.wait(&file.path) {
            leave(&file.path, "would be mounted by being looked at".into());
            continue;
        }
        let path = file.path.clone();
        match here(file) {
            Ok(file) => match taken.entry(file.path.clone()) {
                // Two paths of one file, elsewhere.
                Entry::Occupied(at) => {
                    let known: &mut ProfiledFile = &mut profile.files[*at.get()];
                    known.extents = union(&known.extents, &file.extents);
                }
                Entry::Vacant(at) => {
                    at.insert(profile.files.len());
                    profile.files.push(file);
                }
            },
            Err(skipped) => leave(&path, skipped.to_string()),
        }
    }
    profile.lookups.retain(|lookup| {
        let waits = places.wait(&lookup.path);
        if waits {
            leave(&lookup.path, "would be mounted by being looked at".into());
        }
        !waits
    });
    Imported { profile, left, news: false, removed: Vec::new() }
}

/// Adds what fits this machine to a layer of `stores`, to one that all read only what is [`public`]; or, in a `dry_run`, finds out what would
/// be added. What was learned here stays as it is: it knows more of this machine than anybody's export of it, and what came after that. What came from
/// elsewhere before is merged with it.
///
/// # Errors
/// When the store cannot be read or written.
pub fn import(
    stores: &Stores,
    layer: Layer,
    profile: Profile,
    places: &Places,
    dry_run: bool,
) -> Result<Imported, StoreError> {
    // Before what is another on this machine is left out.
    let explained = explained(&profile);
    let mut imported = fit(profile, places);
    if layer != Layer::User {
        imported = for_all(imported, explained);
    }
    if imported.profile.files.is_empty() {
        return Ok(imported);
    }
    let key = ProgramKey::of_profile(&imported.profile);
    let directory = stores.directory(layer)?;
    let added = |before: Option<Profile>| {
        let Some(before) = before else { return Some(imported.profile.clone()) };
        let mut after = if is_own(&before.sources, directory, &key) {
            supplemented(&before, &imported.profile)
        } else {
            merge(&[&before, &imported.profile])
        };
        // What it was worth on this machine's devices, and whether it is to be observed here, nobody else knows better.
        after.starts.clone_from(&before.starts);
        (after.history.due, after.history.rest) = (before.history.due, before.history.rest);
        (!before.knows_as(&after)).then_some(after)
    };
    imported.news = if dry_run {
        let before = match stores.at_path(layer, &stores.path_of(&key, layer)?) {
            // It would be replaced.
            Err(StoreError::Unreadable { .. }) => None,
            before => before?,
        };
        added(before.filter(|profile| key.is_of(profile))).is_some()
    } else {
        let mut news = false;
        imported.removed = stores.update(&key, layer, |before| {
            let after = added(before);
            news = after.is_some();
            after
        })?;
        news
    };
    Ok(imported)
}

/// What of it all may have.
fn for_all(mut imported: Imported, explained: Result<(), Private>) -> Imported {
    let profile = std::mem::take(&mut imported.profile);
    let paths: Vec<String> = profile.files.iter().map(|file| file.path.clone()).collect();
    let [program, role] = [&profile.program, &profile.role].map(String::clone);
    match explained.and_then(|()| public(profile)) {
        Ok(profile) => imported.profile = profile,
        Err(why) => {
            imported.left.push(Left { path: program.clone(), reason: why.to_string() });
            imported.profile = Profile { program, role, ..Profile::default() };
            return imported;
        }
    };
    let is_kept = |path: &String| imported.profile.files.iter().any(|file| file.path == *path);
    imported.left.extend(paths.into_iter().filter(|path| !is_kept(path)).map(|path| {
        let reason = "not everybody may read it, or it lies below a home directory".into();
        Left { path, reason }
    }));
    imported
}

/// The file as it is on this machine. Where /lib is a link to /usr/lib, or the other way round, the same file has another plain path.
fn here(mut file: ProfiledFile) -> Result<ProfiledFile, Skipped> {
    if let Ok(path) = Path::new(&file.path).canonicalize() {
        file.path = path.to_str().ok_or(Skipped::Missing)?.into();
    }
    file.identity = identity_of(&open_if_same(&file)?)?;
    Ok(file)
}

/// Places where a look has consequences: directories that an automounter watches, unless it has mounted something there already.
#[derive(Clone, Debug, Default)]
pub struct Places {
    mounts: Vec<Mount>,
}

impl Places {
    /// Those of this machine.
    pub fn of_machine() -> Self {
        Self { mounts: mounts().unwrap_or_default() }
    }

    fn wait(&self, path: &str) -> bool {
        mount_among(&self.mounts, Path::new(path)).is_some_and(|mount| mount.kind == "autofs")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use prepage_core::profile::{ColdStart, Counts, Extent, FileIdentity, History, Lookup};
    use prepage_core::{PAGE_SIZE, PageIndex, PageRange};

    use prepage_sys::mounts::parse_mounts;
    use prepage_testing::{Need, skip};

    use super::*;
    use crate::StartContextPaths;
    use crate::identity::{identity_at, profiled};

    /// The file at `path` as another machine knows it.
    fn elsewhere(path: &Path, pages: u64) -> ProfiledFile {
        let here = profiled(path, 0..pages).unwrap();
        let size_bytes = here.identity.size_bytes;
        let identity = FileIdentity { device: 99, inode: 98, size_bytes, mtime_ns: 97, ctime_ns: 96 };
        ProfiledFile { identity, learned_unix_s: 5, ..here }
    }

    fn place() -> (tempfile::TempDir, Profile) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["same", "other", "gone"] {
            fs::write(root.join(name), vec![name.len() as u8; 3 * PAGE_SIZE as usize]).unwrap();
        }
        std::os::unix::fs::symlink(&root, root.join("link")).unwrap();
        let mut files: Vec<ProfiledFile> =
            ["same", "other", "gone"].iter().map(|name| elsewhere(&root.join(name), 9)).collect();
        let linked = ProfiledFile { path: format!("{}/link/same", root.display()), ..files[0].clone() };
        files.push(linked);
        fs::write(root.join("other"), vec![0xee; 3 * PAGE_SIZE as usize]).unwrap();
        fs::remove_file(root.join("gone")).unwrap();
        let profile = Profile {
            program: "/usr/bin/x".into(),
            role: "x -c".into(),
            files,
            lookups: vec![Lookup { path: "/net/host/x".into(), list: true, counts: Counts::default() }],
            sources: vec![7],
            ..Profile::default()
        };
        (dir, profile)
    }

    #[test]
    fn what_fits_is_taken_and_the_rest_is_told() {
        let (dir, profile) = place();
        let root = dir.path().canonicalize().unwrap();
        let mounts = parse_mounts(b"30 1 0:33 / /net rw - autofs /etc/auto.net rw");
        let places = Places { mounts };
        let fitted = fit(profile, &places);
        let paths: Vec<&str> = fitted.profile.files.iter().map(|file| file.path.as_str()).collect();
        let same = root.join("same");
        assert_eq!(paths, [same.to_str().unwrap()], "by both of its paths");
        let file = &fitted.profile.files[0];
        assert_eq!(file.pages(), 3, "no page past the end");
        assert_eq!(file.identity, identity_at(&same).unwrap());
        let reason = |name: &str| {
            let found = fitted.left.iter().rfind(|left| left.path.ends_with(name));
            found.map(|left| left.reason.as_str()).unwrap_or_default()
        };
        assert!(reason("/other").contains("differs"), "{:?}", fitted.left);
        assert!(reason("/gone").contains("no such file"));
        assert!(reason("/net/host/x").contains("mounted"));
    }

    #[test]
    fn importing_again_is_no_news_and_a_dry_run_writes_nothing() {
        let (dir, profile) = place();
        let stores = Stores::at(dir.path().join("store"));
        let places = Places::default();
        let taken = |dry_run| import(&stores, Layer::User, profile.clone(), &places, dry_run).unwrap().news;
        assert!(taken(true));
        assert!(stores.list(Layer::User).unwrap().is_empty());
        assert!(taken(false));
        let key = ProgramKey::of_profile(&profile);
        let first = stores.find(&key).unwrap().unwrap().profile;
        assert!(!taken(false) && !taken(true));
        assert_eq!(stores.find(&key).unwrap().unwrap().profile, first);
    }

    /// An export lacks names that are nobody else's business.
    #[test]
    fn the_export_of_a_profile_takes_nothing_from_it() {
        let (dir, profile) = place();
        let stores = Stores::at(dir.path().join("store"));
        let take = |profile| import(&stores, Layer::User, profile, &Places::default(), false).unwrap().news;
        let name = |path: &str| Lookup { path: path.into(), list: false, counts: Counts::default() };
        let own = Profile { lookups: vec![name("/a"), name("/z")], ..profile.clone() };
        assert!(take(own.clone()));
        assert!(!take(Profile { lookups: vec![name("/z")], ..profile.clone() }));
        let key = ProgramKey { program: profile.program.clone(), role: profile.role };
        assert_eq!(stores.find(&key).unwrap().unwrap().profile.lookups, own.lookups);
    }

    /// As what many machines learned comes back to one of them.
    #[test]
    fn what_a_profile_was_worth_here_stays_although_others_know_more() {
        let (dir, profile) = place();
        let stores = Stores::at(dir.path().join("store"));
        let key = ProgramKey::of_profile(&profile);
        let own = Profile {
            files: vec![ProfiledFile { extents: vec![], ..profile.files[0].clone() }],
            starts: vec![ColdStart { unix_s: 3, took_us: 5, ..ColdStart::default() }],
            history: History { observations: 4, due: 2, rest: 3, ..History::default() },
            sources: vec![6, 7],
            ..profile.clone()
        };
        stores.update(&key, Layer::User, |_| Some(own.clone())).unwrap();
        let of_many = Profile { sources: vec![6, 7, 8], ..profile };
        assert!(import(&stores, Layer::User, of_many, &Places::default(), false).unwrap().news);
        let known = stores.find(&key).unwrap().unwrap().profile;
        assert_eq!((known.pages(), &known.sources[..]), (3, &[6, 7, 8][..]));
        assert_eq!(known.starts, own.starts);
        assert_eq!((known.history.due, known.history.rest), (2, 3));
    }

    /// As where the hosts of a fleet export, and each imports what was merged.
    #[test]
    fn what_was_learned_here_stays_whatever_others_know() {
        let (dir, profile) = place();
        let stores = Stores::at(dir.path().join("store"));
        let key = ProgramKey::of_profile(&profile);
        let known = || stores.find(&key).unwrap().unwrap().profile;
        let same = |start: u64, end: u64, counts| {
            let range = PageRange::new(PageIndex(start), PageIndex(end));
            ProfiledFile {
                extents: vec![Extent { counts, ..Extent::new(range, 0) }],
                ..profile.files[0].clone()
            }
        };
        let name = |path: &str| Lookup { path: path.into(), list: false, counts: Counts::default() };
        let [often, seldom] = [100, 20].map(|used| Counts::from_sixteenths(used, 128));
        let learned = Profile {
            files: vec![same(1, 3, often)],
            lookups: vec![name("/home/ann/x"), name("/lib/x")],
            sources: Vec::new(),
            ..profile.clone()
        };
        stores.update(&key, Layer::User, |_| Some(learned.clone())).unwrap();
        let own = known();
        if !is_own(&own.sources, stores.directory(Layer::User).unwrap(), &key) {
            return skip(Need::Path("/etc/machine-id".into()), "it has no id");
        }
        // With an export of this host's among them, and without.
        for sources in [vec![own.sources[0], 8], (20..60).collect()] {
            let others = Profile {
                files: vec![same(0, 2, seldom)],
                lookups: vec![name("/lib/x"), name("/lib/y")],
                sources,
                ..profile.clone()
            };
            let take =
                || import(&stores, Layer::User, others.clone(), &Places::default(), false).unwrap().news;
            assert!(take());
            assert!(!take());
            let now = known();
            let counts = |page| {
                let extents = &now.files[0].extents;
                extents
                    .iter()
                    .find(|extent| extent.range.contains(PageIndex(page)))
                    .map(|extent| extent.counts)
            };
            assert_eq!([0, 1, 2].map(counts), [Some(seldom), Some(often), Some(often)]);
            let names: Vec<&str> = now.lookups.iter().map(|name| &*name.path).collect();
            assert_eq!(names, ["/home/ann/x", "/lib/x", "/lib/y"]);
            assert_eq!(now.sources, own.sources);
            stores.update(&key, Layer::User, |_| Some(own.clone())).unwrap();
        }
    }

    #[test]
    fn what_is_private_is_left_out_of_layers_that_all_read_in_a_dry_run_as_well() {
        let (dir, profile) = place();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let layers = Some(vec![dir.path().join("machine")]);
        let paths = StartContextPaths {
            store: Some(dir.path().join("user")),
            layers,
            ..StartContextPaths::default()
        };
        let stores = Stores::for_uid(rustix::process::geteuid().as_raw(), &paths).unwrap();
        let take = |profile: &Profile, layer, dry_run| {
            import(&stores, layer, profile.clone(), &Places::default(), dry_run).unwrap()
        };
        let private = Profile { role: "sh -c #0badcafe".into(), ..profile.clone() };
        let unseen = Profile { role: "java -cp @0badcafe Main".into(), ..profile.clone() };
        for dry_run in [true, false] {
            let (in_call, not_seen) = (Private::InCall.to_string(), Private::Unseen.to_string());
            let all = [(&private, &*in_call), (&unseen, &*not_seen), (&profile, "not everybody may read it")];
            for (profile, why) in all {
                let imported = take(profile, Layer::Machine, dry_run);
                assert!(!imported.news && imported.profile.files.is_empty(), "{dry_run}");
                assert!(imported.left.iter().any(|left| left.reason.contains(why)), "{:?}", imported.left);
            }
            assert!(take(&private, Layer::User, dry_run).news);
        }
        assert!(stores.list(Layer::Machine).unwrap().is_empty());
    }

    #[test]
    fn automounted_places_are_known() {
        let mountinfo = b"22 1 0:5 / /proc rw - proc proc rw\n\
            30 1 0:33 / /net rw,relatime shared:7 - autofs /etc/auto.net rw,fd=6\n\
            31 1 0:34 / /data rw - autofs systemd-1 rw,fd=7\n\
            32 31 8:2 / /data rw - ext4 /dev/sda2 rw\n\
            33 30 0:35 / /net/there rw - nfs host:/there rw\n";
        let places = Places { mounts: parse_mounts(mountinfo) };
        assert!(places.wait("/net/host/x") && places.wait("/net"));
        assert!(!places.wait("/network") && !places.wait("/proc/1"));
        assert!(!places.wait("/data/x") && !places.wait("/net/there/x"), "mounted already");
    }
}
