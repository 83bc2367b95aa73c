//! The number by which a profile names the host that learned it.
//!
//! It follows from the machine's id (machine-id(5)), the store and the program: two machines that were cloned from one image, with the
//! profiles in it, are two hosts as soon as each of them learns. Nobody finds the machine's id by it, or the store's directory, which may be below a
//! user's home.

use std::path::Path;

use prepage_core::random::SplitMix;
use prepage_sys::random::random;

use crate::key::ProgramKey;

/// Where systemd and D-Bus keep the machine's id.
const MACHINE_ID: &str = "/etc/machine-id";
/// Digits of an id. What is not set yet is empty, or a word.
const DIGITS: usize = 32;

/// The number for what is learned of `key` in the store in `directory`. Where the machine has no id, that is the one `known`, else random.
pub fn source(directory: &Path, key: &ProgramKey, known: &[u64]) -> u64 {
    match (machine_id(), known) {
        (Some(id), _) => of_machine(&id, directory, key),
        (None, [known]) => *known,
        _ => random(),
    }
}

/// Whether a profile of `sources` was learned here, in the store in `directory`, and by nobody else. Where the machine has no id, nobody can tell.
pub fn is_own(sources: &[u64], directory: &Path, key: &ProgramKey) -> bool {
    is_of_machine(machine_id().as_deref(), sources, directory, key)
}

fn is_of_machine(id: Option<&str>, sources: &[u64], directory: &Path, key: &ProgramKey) -> bool {
    id.is_some_and(|id| sources == [of_machine(id, directory, key)])
}

fn machine_id() -> Option<String> {
    let id = std::fs::read_to_string(MACHINE_ID).ok()?;
    Some(id.trim().to_owned()).filter(|id| id.len() == DIGITS)
}

fn of_machine(id: &str, directory: &Path, key: &ProgramKey) -> u64 {
    let names = [directory.as_os_str().as_encoded_bytes(), key.program.as_bytes(), key.role.as_bytes()];
    let mixed = |number: u64, byte: &u8| SplitMix::new(number ^ u64::from(*byte)).next();
    // No step loses anything: of a number that ends with the names, whoever guesses these finds the same rest in all profiles of a machine, and knows
    // that the guess is right. The id at the end cannot be taken back off.
    let parts = std::iter::once(id.as_bytes()).chain(names).chain(std::iter::once(id.as_bytes()));
    parts.fold(0, |number, part| part.iter().chain(&[0]).fold(number, mixed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_stores_and_programs_have_numbers_of_their_own() {
        let key = |role: &str| ProgramKey { program: "/usr/bin/x".into(), role: role.into() };
        let ids = ["3d1219c7c4c5404aaa1f6d2a48adfda4", "3d1219c7c4c5404aaa1f6d2a48adfda5"];
        let of =
            |id: usize, directory: &str, role: &str| of_machine(ids[id], Path::new(directory), &key(role));
        let all = [of(0, "/a", "x"), of(1, "/a", "x"), of(0, "/b", "x"), of(0, "/a", "x y")];
        assert_eq!(all.iter().collect::<std::collections::HashSet<_>>().len(), 4, "{all:?}");
        assert_eq!(of(0, "/a", "x"), all[0]);
    }

    /// What [`SplitMix`] made `value` of.
    fn unmixed(value: u64) -> u64 {
        let unshifted =
            |value: u64, by: u32| (by..64).step_by(by as usize).fold(value, |out, at| out ^ (value >> at));
        // Newton's method: each round doubles the bits that are right.
        let inverse = |odd: u64| {
            (0..6).fold(odd, |found, _| found.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(found))))
        };
        let value = unshifted(value, 31).wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
        let value = unshifted(value, 27).wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
        unshifted(value, 30).wrapping_sub(0x9e37_79b9_7f4a_7c15)
    }

    /// Program and role stand in the profile, the store's directory can be guessed.
    #[test]
    fn two_numbers_do_not_tell_whether_a_guessed_directory_is_right() {
        let key = |role: &str| ProgramKey { program: "/usr/bin/x".into(), role: role.into() };
        let (id, directory) = ("3d1219c7c4c5404aaa1f6d2a48adfda4", "/home/ann/.local/state/prepage");
        let before = |parts: &[&str], number: u64| {
            let bytes = parts.iter().rev().flat_map(|part| part.bytes().chain([0]).rev());
            bytes.fold(number, |number, byte| unmixed(number) ^ u64::from(byte))
        };
        let number = of_machine(id, Path::new(directory), &key("x"));
        let whole = [id, directory, "/usr/bin/x", "x", id];
        assert_eq!(before(&whole, number), 0, "it is taken back off rightly");
        let rest = |role: &str| {
            before(&[directory, "/usr/bin/x", role], of_machine(id, Path::new(directory), &key(role)))
        };
        assert_ne!(rest("x"), rest("x -a"));
    }

    /// As in most containers.
    #[test]
    fn without_an_id_nothing_passes_for_learned_here() {
        let (directory, id) = (Path::new("/a"), "3d1219c7c4c5404aaa1f6d2a48adfda4");
        let key = ProgramKey { program: "/usr/bin/x".into(), role: "x".into() };
        let own = of_machine(id, directory, &key);
        let is_own = |id, sources: &[u64]| is_of_machine(id, sources, directory, &key);
        assert!(is_own(Some(id), &[own]));
        assert!(!is_own(Some(id), &[own, 8]) && !is_own(Some(id), &[8]));
        assert!(!is_own(None, &[8]) && !is_own(None, &[own]));
    }
}
