//! The accounts of /etc/passwd. When an account is removed, the service removes what it kept of that user, so that whoever gets the number next learns nothing of it.
//!
//! They are remembered in a file, as accounts are removed also while no service runs. Users whom another source knows, a directory of the network,
//! are not in /etc/passwd at any time, and so are never taken for removed.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use prepage_profiles::trust::{open_directory, read_in};
use prepage_sys::new_file::write_at;

const NAME: &str = "accounts";
/// Larger ones are taken for empty.
const BYTES_MAX: u64 = 16 << 20;
/// Root, who is in each whole list.
const ROOT: u32 = 0;

/// Names by number.
type Names = HashMap<u32, String>;

/// Device, inode and time of change of a list.
type Version = (u64, u64, i64, i64);

/// What is remembered of the accounts.
#[derive(Debug)]
pub struct Accounts {
    directory: PathBuf,
    names: Names,
    /// That of the list that was believed last.
    version: Option<Version>,
    /// That of the list at the last look.
    seen: Option<Version>,
    is_written: bool,
}

impl Accounts {
    /// The accounts that the file in `directory` lists; no accounts if there is no such file.
    pub fn read(directory: PathBuf) -> Self {
        let read = read_in(&directory, Path::new(NAME), BYTES_MAX, ROOT);
        let names = parse(&read.ok().flatten().unwrap_or_default(), 0);
        Self { directory, names, version: None, seen: None, is_written: true }
    }

    /// Looks at the list `passwd` where it has changed, and not since the last look: one that is written over lacks lines meanwhile. Returns the
    /// numbers that are nobody's any more, somebody else's, or somebody's anew: what is left of a removed user's processes goes on to start programs.
    pub fn look(&mut self, passwd: &Path) -> Vec<u32> {
        let Ok(metadata) = std::fs::metadata(passwd) else { return Vec::new() };
        let version = Some((metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()));
        let is_at_rest = std::mem::replace(&mut self.seen, version) == version;
        if version == self.version || !is_at_rest {
            return Vec::new();
        }
        let names = parse(&std::fs::read(passwd).unwrap_or_default(), 2);
        // One that is being written anew says nothing.
        if !names.contains_key(&ROOT) {
            return Vec::new();
        }
        self.version = version;
        let is_another = |uid: &&u32| names.get(uid) != self.names.get(uid);
        let is_known = !self.names.is_empty();
        let of_both =
            self.names.keys().chain(names.keys().filter(|uid| is_known && !self.names.contains_key(uid)));
        let mut gone: Vec<u32> = of_both.filter(is_another).copied().collect();
        gone.sort_unstable();
        self.is_written &= names == self.names;
        self.names = names;
        gone
    }

    /// Writes what has changed: to be called once nothing is kept any more of those who are gone.
    ///
    /// # Errors
    /// As the file system says; it is tried again.
    pub fn write(&mut self) -> io::Result<()> {
        if self.is_written {
            return Ok(());
        }
        // Without a directory nothing was learned yet.
        let opened = open_directory(&self.directory, ROOT).map_err(io::Error::other)?;
        let Some(opened) = opened else { return Ok(()) };
        let mut lines: Vec<String> = self.names.iter().map(|(uid, name)| format!("{uid}:{name}\n")).collect();
        lines.sort();
        write_at(opened.as_fd(), Path::new(NAME), 0o600, lines.concat().as_bytes())?;
        self.is_written = true;
        Ok(())
    }
}

/// Lines of fields with colons between, of which one is a number, and the name is another: the first, or the second where the number is first.
fn parse(text: &[u8], number: usize) -> Names {
    let text = String::from_utf8_lossy(text);
    let account = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let name = fields.get(usize::from(number == 0))?;
        Some((fields.get(number)?.parse().ok()?, (*name).to_owned()))
    };
    // Of several with one number the first counts.
    let mut names = Names::new();
    text.lines().filter_map(account).for_each(|(uid, name)| _ = names.entry(uid).or_insert(name));
    names
}

#[cfg(test)]
mod tests {
    use prepage_testing::{Need, has};

    use super::*;

    #[test]
    fn an_account_that_is_removed_or_made_anew_is_noticed_also_by_the_next_service() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let passwd = directory.path().join("passwd");
        let write = |text: &str| {
            let new = directory.path().join("new");
            std::fs::write(&new, format!("root:x:0:0::/root:/bin/sh\n{text}")).unwrap();
            std::fs::rename(&new, &passwd).unwrap();
        };
        write("a:x:7:7::/home/a:\nb:x:8:8::/home/b:\n");
        let mut accounts = Accounts::read(directory.path().into());
        let look = |accounts: &mut Accounts| {
            assert!(accounts.look(&passwd).is_empty(), "it may be written just now");
            accounts.look(&passwd)
        };
        assert!(look(&mut accounts).is_empty(), "nobody was known");
        accounts.write().unwrap();
        write("b:x:8:8::/home/b:\nc:x:9:9::/home/c:\n");
        assert_eq!((look(&mut accounts), accounts.look(&passwd)), (vec![7, 9], vec![]));
        // It was not written that this is known: what is kept may not have been removed.
        let mut next = Accounts::read(directory.path().into());
        assert_eq!(look(&mut next), [7, 9]);
        next.write().unwrap();
        write("d:x:8:8::/home/d:\nc:x:9:9::/home/c:\n");
        let mut last = Accounts::read(directory.path().into());
        assert_eq!(look(&mut last), [8], "another has the number");
        write("d:x:8:8::/home/d:\nc:x:9:9::/home/c:\ne:x:7:7::/home/e:\n");
        assert_eq!(look(&mut last), [7], "processes of the one before may have gone on");
        std::fs::write(&passwd, "").unwrap();
        assert!(look(&mut last).is_empty(), "it is being written");
    }

    #[test]
    fn while_a_list_is_written_over_nobody_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let passwd = directory.path().join("passwd");
        let write =
            |text: &str| std::fs::write(&passwd, format!("root:x:0:0::/root:/bin/sh\n{text}")).unwrap();
        let all = "a:x:7:7::/home/a:\nb:x:8:8::/home/b:\n";
        let mut accounts = Accounts::read(directory.path().into());
        let looks = |accounts: &mut Accounts| [accounts.look(&passwd), accounts.look(&passwd)].concat();
        write(all);
        assert!(looks(&mut accounts).is_empty(), "nobody was known");
        write("a:x:7:7:");
        assert!(accounts.look(&passwd).is_empty(), "the rest may come");
        write(all);
        assert!(looks(&mut accounts).is_empty());
        write("a:x:7:7::/home/a:\n");
        assert_eq!(looks(&mut accounts), [8]);
    }
}
