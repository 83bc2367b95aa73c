use super::*;

/// The bytes of a file after `change`.
fn changed(before: &[u8], change: &Change) -> Vec<u8> {
    let mut after = before[..change.keep_bytes as usize].to_vec();
    after[..change.head.len()].copy_from_slice(&change.head);
    after.extend_from_slice(&change.tail);
    after
}

fn add(before: &[u8], payload: &[u8]) -> Result<Vec<u8>, SectionError> {
    let original = Original::of(before)?;
    Ok(changed(before, &append(&original, payload)?))
}

fn shell() -> Vec<u8> {
    std::fs::read("/bin/sh").unwrap()
}

#[test]
fn a_section_is_added_replaced_and_taken_out_again() {
    let before = shell();
    let first = add(&before, b"one payload").unwrap();
    let elf = Elf::parse(&first[..]).unwrap();
    assert_eq!(elf.segments, Elf::parse(&before[..]).unwrap().segments);
    let sections = elf.sections(&first[..]).unwrap();
    let own = sections.last().unwrap();
    assert_eq!((own.name.as_str(), own.kind), (SECTION_NAME, SECTION_TYPE));
    assert_eq!(own.address, 0);
    assert_eq!(&first[own.offset_bytes as usize..][..11], b"one payload");
    let second = add(&first, b"another").unwrap();
    assert_eq!(second, add(&before, b"another").unwrap(), "one replaces the other");
    assert_eq!(changed(&second, &take_out(&second[..]).unwrap()), before);
    assert!(matches!(take_out(&before[..]), Err(SectionError::None)));
}

#[test]
fn only_the_header_changes_in_what_was_there() {
    let before = shell();
    let after = add(&before, &[7; 100]).unwrap();
    let differ: Vec<usize> = (0..before.len()).filter(|&at| before[at] != after[at]).collect();
    assert!(differ.iter().all(|at| (40..48).contains(at) || (58..64).contains(at)), "{differ:?}");
}

#[test]
fn a_file_without_section_headers_gets_some() {
    let mut before = shell();
    before[40..48].fill(0);
    before[58..64].fill(0);
    // Nothing speaks of the old table any more: it would count as data of the program's own.
    let elf = Elf::parse(&before[..]).unwrap();
    let end = elf.segments.iter().map(|s| s.offset_bytes + s.file_bytes).max().unwrap();
    before.truncate(end as usize);
    let after = add(&before, b"payload").unwrap();
    let sections = Elf::parse(&after[..]).unwrap().sections(&after[..]).unwrap();
    let names: Vec<&str> = sections.iter().map(|section| section.name.as_str()).collect();
    assert_eq!(names, ["", ".shstrtab", SECTION_NAME]);
    assert_eq!(changed(&after, &take_out(&after[..]).unwrap()), before);
}

#[test]
fn files_of_both_sizes_of_words_and_both_byte_orders_are_changed_alike() {
    for (class, head_bytes) in [(1, 52), (2, 64)] {
        for order in [1, 2] {
            let kind = if order == 1 { ET_EXEC.0.to_le_bytes() } else { ET_EXEC.0.to_be_bytes() };
            let mut before = [&b"\x7fELF"[..], &[class, order, 1], &[0; 9], &kind].concat();
            before.resize(head_bytes, 0);
            // One that is there already has its names moved.
            let mut first = add(&before, b"one payload").unwrap();
            let name = first.windows(SECTION_NAME.len()).rposition(|name| name == SECTION_NAME.as_bytes());
            first[name.unwrap()] = b'_';
            let after = add(&first, b"another").unwrap();
            let sections = Elf::parse(&after[..]).unwrap().sections(&after[..]).unwrap();
            let names: Vec<&str> = sections.iter().map(|section| section.name.as_str()).collect();
            assert_eq!(names, ["", ".shstrtab", "_prepage", SECTION_NAME], "{class} {order}");
            let holds = |section: &Section, payload: &[u8]| {
                after[section.offset_bytes as usize..].starts_with(payload)
            };
            assert!(holds(&sections[2], b"one payload") && holds(&sections[3], b"another"));
            assert_eq!(changed(&after, &take_out(&after[..]).unwrap()), first);
        }
    }
}

#[test]
fn a_section_whose_name_lies_past_all_names_is_not_taken_for_ours() {
    let mut before = shell();
    let table = Elf::parse(&before[..]).unwrap().section_table;
    let entry = |nr: u16| table.offset_bytes as usize + usize::from(nr) * 64;
    let names_bytes = before[entry(table.names) + 32..][..4].to_vec();
    before[entry(1)..][..4].copy_from_slice(&names_bytes);
    let after = add(&before, b"payload").unwrap();
    let sections = Elf::parse(&after[..]).unwrap().sections(&after[..]).unwrap();
    assert_eq!(sections[1].name, SECTION_NAME);
    assert_eq!(changed(&after, &take_out(&after[..]).unwrap()), before);
}

#[test]
fn what_has_data_at_its_end_is_left_alone() {
    let mut before = shell();
    before.extend_from_slice(b"PK\x05\x06 an archive");
    assert!(matches!(add(&before, b"x"), Err(SectionError::Trailing { bytes: 15 })));
}

#[test]
fn a_section_that_others_moved_is_not_guessed_at() {
    let mut after = add(&shell(), b"payload").unwrap();
    after.push(0);
    assert!(matches!(take_out(&after[..]), Err(SectionError::NotOurs)));
    after.pop();
    after[5000] ^= 1;
    assert!(matches!(take_out(&after[..]), Err(SectionError::NotOurs)));
}

#[test]
fn flipped_bits_in_the_tables_are_refused_or_understood() {
    let whole = add(&shell(), b"payload").unwrap();
    let table = Elf::parse(&whole[..]).unwrap().section_table;
    let places = (0..64).chain((table.offset_bytes as usize..whole.len()).step_by(5));
    for place in places {
        for bit in [0, 7] {
            let mut bytes = whole.clone();
            bytes[place] ^= 1 << bit;
            if let Ok(original) = Original::of(&bytes[..]) {
                let _ = append(&original, b"other");
            }
            let _ = take_out(&bytes[..]);
        }
    }
}
