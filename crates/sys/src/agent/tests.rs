//! Logs that no agent wrote: a program can put anything into the memory it shares.

use std::path::Path;

use super::record::SLOT_BYTES;
use super::{Event, Log, Lookup, Record};
use proptest::prelude::*;

const SLOTS_AT: u64 = 4096;

fn log_of(bytes: &[u8], cursor: u64) -> Log {
    let log = Log::create(64 * SLOT_BYTES).unwrap();
    log.write(SLOTS_AT, bytes);
    log.write(64, &cursor.to_ne_bytes());
    log
}

/// The slots of a record of `path`, as an agent writes them.
fn opened(path: &str) -> Vec<u8> {
    let (head, rest) = path.as_bytes().split_at(path.len().min(44));
    let more: Vec<&[u8]> = rest.chunks(60).collect();
    let mut bytes = vec![0x51, 3];
    bytes.extend((1 + more.len() as u16).to_ne_bytes());
    bytes.extend(7u32.to_ne_bytes());
    bytes.extend(9u64.to_ne_bytes());
    bytes.extend((path.len() as u16).to_ne_bytes());
    bytes.extend([0, 0]);
    bytes.extend(head);
    for text in more {
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        bytes.extend([0x52, 0, 0, 0]);
        bytes.extend(text);
    }
    bytes.resize(bytes.len().next_multiple_of(64), 0);
    bytes
}

fn record(path: &str) -> Record {
    let event = Event::Name { path: Path::new(path).to_owned(), lookup: Lookup::Open };
    Record { time_ns: 9, pid: 7, event }
}

#[test]
fn names_of_any_length_come_out_as_they_went_in() {
    let names: Vec<String> = [1, 43, 44, 45, 104, 105, 164, 165].map(|len| "/".repeat(len)).to_vec();
    let bytes: Vec<u8> = names.iter().flat_map(|name| opened(name)).collect();
    let mut log = log_of(&bytes, bytes.len() as u64 / SLOT_BYTES);
    assert_eq!(log.read().unwrap(), names.iter().map(|name| record(name)).collect::<Vec<_>>());
    assert_eq!(log.read().unwrap(), []);
    assert_eq!(log.lost().unwrap(), Default::default());
}

#[test]
fn a_record_whose_writer_was_killed_is_passed_over() {
    let mut bytes = vec![0; 64];
    bytes.extend(opened("/after"));
    let mut log = log_of(&bytes, 2);
    for _ in 0..3 {
        assert_eq!(log.read().unwrap(), [], "the writer may still come");
    }
    assert_eq!(log.read().unwrap(), [record("/after")]);
    assert_eq!(log.lost().unwrap().torn, 1);
    let mut log = log_of(&bytes, 2);
    assert_eq!(log.read_last().unwrap(), [record("/after")]);
}

#[test]
fn a_record_that_is_finished_late_is_read_then() {
    let mut log = log_of(&[0; 64], 1);
    assert_eq!(log.read().unwrap(), []);
    log.write(SLOTS_AT, &opened("/late"));
    assert_eq!(log.read().unwrap(), [record("/late")]);
    assert_eq!(log.lost().unwrap().torn, 0);
}

proptest! {
    #[test]
    fn any_bytes_are_read_to_their_end(
        mut slots in prop::collection::vec(any::<[u8; 64]>(), 64),
        likely in prop::collection::vec(0..8u8, 64),
        cursor: u64,
    ) {
        for (slot, likely) in slots.iter_mut().zip(likely) {
            // Most look like something.
            slot[0] = match likely { 0 => 0, 1 => slot[0], 2 | 3 => 0x52, _ => 0x51 };
            slot[1] %= 10;
            slot[2] %= 4;
            slot[3] = 0;
            slot[17] = 0;
        }
        let mut log = log_of(&slots.concat(), cursor);
        log.read_last().unwrap();
        prop_assert!(log.read_last().unwrap().is_empty());
    }
}
