use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A record of `record_type` around `body`, with the trailer that the kernel adds.
fn side_band_bytes(record_type: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = header(record_type, misc, body.len() + TRAILER_BYTES);
    bytes.extend_from_slice(body);
    for word in [70u32, 71] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    for word in [5_000u64, 9] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes
}

fn header(record_type: u32, misc: u16, body_bytes: usize) -> Vec<u8> {
    let mut bytes = record_type.to_ne_bytes().to_vec();
    bytes.extend_from_slice(&misc.to_ne_bytes());
    bytes.extend_from_slice(&(8 + body_bytes as u16).to_ne_bytes());
    bytes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn a_fault_sample_has_no_raw_bytes() {
    let mut bytes = header(abi::PERF_RECORD_SAMPLE, 2, 40);
    for word in [42u64, 0x1000, (71 << 32) | 70, 5_000, 0xdead_b000] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    let record = Record::decode(&bytes).expect("a sample");
    assert_eq!((record.time_ns, record.pid, record.tid), (5_000, 70, 71));
    let sample = Sample { id: 42, ip: 0x1000, address: 0xdead_b000, rest: &[] };
    assert_eq!(record.kind, RecordKind::Sample(sample));
    let with = |rest| Sample { rest, ..sample }.fault();
    let sources = [Some(Source::PageFaults), Some(Source::MinorFaults), Some(Source::MajorFaults)];
    assert_eq!([with(&[]), with(&[0; 8]), with(&[0; 16])], sources);
    assert_eq!([with(&[0; 24]), with(&[0; 40])], [None, Some(Source::PageFaults)]);
}

#[test]
fn a_tracepoint_sample_has_its_fields() {
    let mut bytes = header(abi::PERF_RECORD_SAMPLE, 2, 48);
    for word in [42u64, 0x1000, 0, 5_000, 0] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes.extend_from_slice(&4u32.to_ne_bytes());
    bytes.extend_from_slice(b"abcd");
    let record = Record::decode(&bytes).expect("a sample");
    let RecordKind::Sample(sample) = record.kind else { panic!("not a sample: {record:?}") };
    assert_eq!(sample.raw(), Some(b"abcd".as_slice()));
    let cut = Record::decode(&bytes[..bytes.len() - 1]).expect("a sample");
    let RecordKind::Sample(cut) = cut.kind else { panic!("not a sample: {cut:?}") };
    assert_eq!(cut.raw(), None);
}

#[test]
fn a_callchain_has_its_markers_left_out() {
    let mut bytes = header(abi::PERF_RECORD_SAMPLE, 2, 72);
    for word in [42u64, 0x1000, 0, 5_000, 0, 3, abi::PERF_CONTEXT_USER, 0x1000, 0x2000] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    let chain = |bytes: &[u8]| {
        let record = Record::decode(bytes).expect("a sample");
        let RecordKind::Sample(sample) = record.kind else { panic!("not a sample: {record:?}") };
        sample.callchain().map(Iterator::collect::<Vec<_>>)
    };
    assert_eq!(chain(&bytes), Some(vec![0x1000, 0x2000]));
    assert_eq!(chain(&bytes[..bytes.len() - 8]), None);
    bytes[48..56].fill(0xff);
    assert_eq!(chain(&bytes), None, "more calls than there is memory");
}

#[test]
fn a_mapping_is_of_the_process_in_its_body() {
    let mut body = words(&[1, 2]);
    for word in [0x7000u64, 0x2000, 0x1000] {
        body.extend_from_slice(&word.to_ne_bytes());
    }
    body.extend_from_slice(&words(&[254, 3, 17, 0, 0, 0, 5, 2]));
    body.extend_from_slice(b"/bin/true\0\0\0\0\0\0\0");
    let bytes = side_band_bytes(abi::PERF_RECORD_MMAP2, 0, &body);
    let record = Record::decode(&bytes).expect("a mapping");
    assert_eq!((record.pid, record.tid, record.time_ns), (1, 2, 5_000));
    let RecordKind::Mmap2(map) = record.kind else { panic!("not a mapping: {record:?}") };
    assert_eq!((map.address, map.len, map.offset), (0x7000, 0x2000, 0x1000));
    assert_eq!((map.device, map.inode, map.protection, map.flags), ((254, 3), 17, 5, 2));
    assert_eq!(map.path, b"/bin/true");
}

#[test]
fn fork_exit_and_exec_name_both_sides() {
    let body = words(&[11, 10, 12, 10, 0, 0]);
    let fork = side_band_bytes(abi::PERF_RECORD_FORK, 0, &body);
    let record = Record::decode(&fork).expect("a fork");
    assert_eq!((record.pid, record.tid), (11, 12));
    assert_eq!(record.kind, RecordKind::Fork { parent_pid: 10, parent_tid: 10 });

    let exit = side_band_bytes(abi::PERF_RECORD_EXIT, 0, &body);
    assert_eq!(Record::decode(&exit).expect("an exit").kind, RecordKind::Exit);

    let mut body = words(&[11, 12]);
    body.extend_from_slice(b"cc1\0\0\0\0\0");
    let comm = side_band_bytes(abi::PERF_RECORD_COMM, abi::PERF_RECORD_MISC_COMM_EXEC as u16, &body);
    assert_eq!(Record::decode(&comm).expect("a name").kind, RecordKind::Comm { name: b"cc1", exec: true });
}

#[test]
fn a_record_cut_short_is_malformed_at_every_length() {
    let mut body = words(&[11, 12]);
    body.extend_from_slice(&[0; 64]);
    for record_type in [abi::PERF_RECORD_SAMPLE, abi::PERF_RECORD_MMAP2, abi::PERF_RECORD_FORK] {
        let whole = side_band_bytes(record_type, 0, &body);
        for len in 0..32 {
            assert!(Record::decode(&whole[..len]).is_err(), "type {record_type}, {len} bytes");
        }
    }
}

/// Reads everything that can be asked of a record.
fn read_all(bytes: &[u8]) -> Option<(u64, u32, u32)> {
    let record = Record::decode(bytes).ok()?;
    match record.kind {
        RecordKind::Sample(sample) => {
            let raw_bytes = sample.raw().map_or(0, <[u8]>::len);
            let calls = sample.callchain().map_or(0, Iterator::count);
            assert!(raw_bytes + 4 <= bytes.len() && 8 * calls <= bytes.len());
        }
        RecordKind::Mmap2(map) => assert!(map.path.len() < bytes.len() && !map.path.contains(&0)),
        RecordKind::Comm { name, .. } => assert!(name.len() < bytes.len() && !name.contains(&0)),
        _ => {}
    }
    Some((record.time_ns, record.pid, record.tid))
}

/// A type that there is, or any.
fn record_type() -> impl Strategy<Value = u32> {
    prop_oneof![9 => 0u32..24, 1 => any::<u32>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn no_bytes_make_the_decoder_panic(
        record_type in record_type(),
        misc in any::<u16>(),
        body in vec(any::<u8>(), 0..300),
        cut in 0usize..308,
    ) {
        let mut bytes = header(record_type, misc, body.len());
        bytes.extend_from_slice(&body);
        read_all(&bytes);
        read_all(&bytes[..cut.min(bytes.len())]);
        read_all(&body);
    }

    #[test]
    fn lengths_in_a_sample_are_not_believed(claimed in any::<u64>(), words in vec(any::<u64>(), 0..20)) {
        let mut bytes = header(abi::PERF_RECORD_SAMPLE, 2, 48 + 8 * words.len());
        for word in [1, 2, 3, 4, 5, claimed].iter().chain(&words) {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        let RecordKind::Sample(sample) = Record::decode(&bytes).expect("a sample").kind else {
            panic!("not a sample")
        };
        let addresses = |&word: &u64| word < abi::PERF_CONTEXT_MAX;
        let expected = usize::try_from(claimed).ok().and_then(|count| words.get(..count));
        let expected = expected.map(|words| words.iter().copied().filter(addresses).collect::<Vec<_>>());
        prop_assert_eq!(sample.callchain().map(Iterator::collect::<Vec<_>>), expected);
        let fits = claimed as u32 as usize <= 4 + 8 * words.len();
        prop_assert_eq!(sample.raw().map(<[u8]>::len), fits.then_some(claimed as u32 as usize));
    }

    #[test]
    fn a_mapping_is_read_as_it_was_written(
        numbers in any::<[u64; 3]>(),
        ids in any::<[u32; 4]>(),
        inode in any::<u64>(),
        path in vec(1u8.., 0..200),
        padding in 1usize..9,
    ) {
        let mut body = words(&ids[..2]);
        numbers.iter().for_each(|word| body.extend_from_slice(&word.to_ne_bytes()));
        body.extend_from_slice(&words(&ids[2..]));
        body.extend_from_slice(&inode.to_ne_bytes());
        body.extend_from_slice(&words(&[0, 0, 5, 2]));
        body.extend_from_slice(&path);
        body.extend_from_slice(&vec![0; padding]);
        let bytes = side_band_bytes(abi::PERF_RECORD_MMAP2, 0, &body);
        let record = Record::decode(&bytes).expect("a mapping");
        let [address, len, offset] = numbers;
        let map = Mmap2 {
            address, len, offset, inode, device: (ids[2], ids[3]), protection: 5, flags: 2, path: &path,
        };
        prop_assert_eq!((record.pid, record.tid), (ids[0], ids[1]));
        prop_assert_eq!(record.kind, RecordKind::Mmap2(map));
        // Cut short it is malformed, or lacks the end of its path; it is never another mapping's.
        for len in 0..bytes.len() {
            if let Ok(Record { kind: RecordKind::Mmap2(cut), .. }) = Record::decode(&bytes[..len]) {
                prop_assert_eq!((cut.address, cut.inode), (address, inode));
                prop_assert!(path.starts_with(cut.path));
            }
        }
    }
}
