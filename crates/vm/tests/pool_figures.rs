//! What a pool tells of its frames is what the kernel counts, after each of 10,000 random steps under a limit, for objects of each kind.
//!
//! One test: it counts the memfds of the whole process.

mod support;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_vm::{Map, MapOptions, Mode, Object, Pool, PoolOptions, Source, SourceError, Vm, VmOptions};
use support::{Words, memfd_pages, modes, pages, random, touch, word};

const PAGES: u64 = 200;
/// Of objects whose frames may be huge pages, in a file system of the process's own: 16 MiB and more.
const MANY_PAGES: u64 = (16 << 20) / PAGE_SIZE + 3;
const LIMIT: u64 = 256;
/// As long as reclaim may be at work on a machine that is busy with others.
const PATIENCE: Duration = Duration::from_secs(60);

/// What objects are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Source,
    /// A source that cannot read one page in seven.
    Failing,
    File,
    LargeFile,
    WritableFile,
    Memory,
}

const KINDS: [Kind; 6] =
    [Kind::Source, Kind::Failing, Kind::File, Kind::LargeFile, Kind::WritableFile, Kind::Memory];

/// An object, and what it holds.
struct Thing {
    kind: Kind,
    object: Object,
    /// What was written to the beginnings of its pages.
    written: HashMap<u64, u64>,
    /// Its file goes with it.
    _file: Option<tempfile::NamedTempFile>,
}

impl Thing {
    fn new(vm: &Vm, kind: Kind, large: &tempfile::NamedTempFile, pages: u64) -> Self {
        let len_bytes = pages * PAGE_SIZE - pages % 100;
        let file = matches!(kind, Kind::File | Kind::WritableFile).then(|| support::file(len_bytes));
        let object = match (kind, &file) {
            (Kind::Source, _) => vm.source("words", Words { len_bytes, ..Default::default() }),
            (Kind::Failing, _) => vm.source("failing", Failing(Words { len_bytes, ..Default::default() })),
            (Kind::Memory, _) => vm.memory(len_bytes),
            (Kind::WritableFile, Some(file)) => vm.file_writable(file.path()),
            (_, Some(file)) => vm.file(file.path()),
            (_, None) => vm.file(large.path()),
        };
        Self { kind, object: object.unwrap(), written: HashMap::new(), _file: file }
    }

    fn takes_writes(&self) -> bool {
        matches!(self.kind, Kind::WritableFile | Kind::Memory)
    }

    fn fails(&self, page: u64) -> bool {
        self.kind == Kind::Failing && page % 7 == 3
    }

    /// The first word of a page.
    fn word(&self, page: u64) -> u64 {
        let first = if self.kind == Kind::Memory { 0 } else { word(page * PAGE_SIZE) };
        self.written.get(&page).copied().unwrap_or(first)
    }
}

struct Mapped {
    /// The number of its object.
    of: usize,
    is_private: bool,
    map: Map,
}

struct Failing(Words);

impl Source for Failing {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let pages = PageRange::covering(offset_bytes, into.len() as u64);
        match pages.iter().any(|page| page.0 % 7 == 3) {
            true => Err(SourceError::Other("it never could".into())),
            false => self.0.read(offset_bytes, into),
        }
    }
}

/// All other threads of this process, with how often each gave up its processor; `None` where one of them is at work.
fn at_rest() -> Option<Vec<(String, u64)>> {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    let mut threads = Vec::new();
    for thread in std::fs::read_dir("/proc/self/task").unwrap() {
        let thread = thread.unwrap().file_name().into_string().unwrap();
        // One that has ended by now was at work.
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
        let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        let switches = |name: &str| value(name).parse::<u64>().unwrap();
        if thread != own {
            let sleeps = value("State:").starts_with('S');
            threads.push(sleeps.then(|| {
                let switches = switches("voluntary_ctxt_switches:") + switches("nonvoluntary_ctxt_switches:");
                (thread, switches)
            })?);
        }
    }
    threads.sort();
    Some(threads)
}

/// All ways to count give the same, at once where no other thread has run since before the figures were taken. While the reclaimer is at work it changes one
/// count after the other.
fn compare(pool: &Pool, things: &[Thing], after: &str) {
    let began = Instant::now();
    let mut rested = None;
    let objects = || things.iter().map(|thing| &thing.object);
    loop {
        let figures = pool.figures();
        let count = |what: &dyn Fn(&Object, PageIndex) -> bool| {
            let of_one = |object: &Object| object.pages().iter().filter(|&page| what(object, page)).count();
            objects().map(of_one).sum::<usize>() as u64
        };
        let resident = count(&|object, page| object.is_resident(page));
        let wired = count(&|object, page| object.is_wired(page));
        let frames: Vec<_> = objects().flat_map(Object::frames).collect();
        let dirty = frames.iter().filter(|frame| frame.is_dirty).count() as u64;
        let listed = pool.objects();
        // What was frozen has objects that nobody else knows.
        let of_frozen = listed.iter().filter(|object| object.name.contains("snapshot"));
        let frozen = of_frozen.map(|object| object.resident_pages).sum::<u64>();
        let found = [
            figures.resident_pages,
            memfd_pages(),
            objects().map(Object::resident_pages).sum::<u64>() + frozen,
            listed.iter().map(|object| object.resident_pages).sum(),
            frames.len() as u64 + frozen,
        ];
        let of_frames = [
            frames.iter().filter(|frame| frame.is_wired).count() as u64,
            figures.wired_pages.saturating_sub(frozen),
            resident.saturating_sub(figures.unwired_pages),
            resident.saturating_sub(listed.iter().map(|object| object.unwired_pages).sum::<u64>()),
        ];
        let of_dirty = [
            figures.dirty_pages,
            objects().map(Object::dirty_pages).sum(),
            listed.iter().map(|object| object.dirty_pages).sum(),
        ];
        let reserved = listed.iter().map(|object| object.pages).sum::<u64>();
        assert!(figures.resident_pages <= LIMIT + figures.beyond_pages_total, "{figures:?}");
        assert_eq!(figures.resident_pages, figures.wired_pages + figures.unwired_pages);
        if found == [resident + frozen; 5]
            && of_frames == [wired; 4]
            && of_dirty == [dirty; 3]
            && [figures.promised_pages, figures.reserved_pages] == [0, reserved]
        {
            return;
        }
        let now = at_rest();
        assert!(
            began.elapsed() < PATIENCE && (now.is_none() || now != rested),
            "after {after}: {found:?} and not {resident} and {frozen}; {of_frames:?} and not {wired}; {of_dirty:?} and not {dirty}; {figures:?}"
        );
        rested = now;
        std::thread::yield_now();
    }
}

/// No map shows an unwired page, once who unwired it has gone on. The maps are idle: no page becomes wired meanwhile.
fn hidden(object: &Object) {
    for page in object.pages().iter() {
        let began = Instant::now();
        let is_hidden = || object.is_wired(page) || object.mappings_of(page).unwrap().is_empty();
        while !is_hidden() {
            assert!(began.elapsed() < PATIENCE, "page {} is unwired and shown", page.0);
            std::thread::yield_now();
        }
    }
}

#[test]
fn the_pool_counts_what_the_kernel_counts() {
    let Some(directory) = support::swap_directory() else { return };
    let options = PoolOptions::default().limit_bytes(LIMIT * PAGE_SIZE);
    let pool = Pool::with(&options.swap(directory, 1 << 30)).unwrap();
    let vm = Vm::new(VmOptions::default().explain(false).pool(&pool)).unwrap();
    let probe = vm.source("probe", Words { len_bytes: PAGE_SIZE, ..Default::default() }).unwrap();
    let modes = modes(&vm, &probe);
    drop(probe);
    if !modes.contains(&Mode::Inline) {
        return;
    }
    let large = support::file(MANY_PAGES * PAGE_SIZE);
    let mut random = random();
    let mut things: Vec<Thing> = Vec::new();
    let mut maps: Vec<Mapped> = Vec::new();
    let mut snapshots: Vec<Object> = Vec::new();
    let mut made = [0; KINDS.len()];
    let mut frozen = 0;
    for step in 0..10_000 {
        if things.len() < 4 {
            let kind = random(KINDS.len() as u64) as usize;
            made[kind] += 1;
            things.push(Thing::new(&vm, KINDS[kind], &large, 1 + random(PAGES)));
        }
        let which = random(things.len() as u64) as usize;
        let thing = &things[which];
        let object = &thing.object;
        let count = object.pages().len();
        let start = random(count);
        let range = pages(start, start + 1 + random((count - start).min(PAGES)));
        let after = match random(18) {
            0 | 1 if maps.len() < 10 => {
                let policy = ["none", "aligned:16", "around:3:2"][random(3) as usize].parse().unwrap();
                let writes = random(2) == 0;
                let is_private = writes && !thing.takes_writes();
                let options = match (writes, is_private) {
                    (_, true) => MapOptions::private(),
                    (true, false) => MapOptions::writable(),
                    (false, false) => MapOptions::shared(),
                };
                let mode = modes[random(modes.len() as u64) as usize];
                let map = vm.map(object, &options.mode(mode).policy(policy).window(range)).unwrap();
                maps.push(Mapped { of: which, is_private, map });
                "map"
            }
            2 => {
                object.evict(range).unwrap();
                "evict"
            }
            3 | 4 => {
                object.unwire(range).unwrap();
                "unwire"
            }
            5 => {
                pool.reclaim(random(32));
                "reclaim"
            }
            6 if maps.len() > 4 => {
                drop(maps.swap_remove(random(maps.len() as u64) as usize));
                "unmap"
            }
            7 if step % 9 == 0 => {
                let gone = things.remove(which);
                maps.retain(|mapped| mapped.of != which);
                maps.iter_mut().for_each(|mapped| mapped.of -= usize::from(mapped.of > which));
                // They hold it.
                snapshots.clear();
                drop(gone);
                "drop of an object"
            }
            8 if thing.takes_writes() => {
                object.write_back(range).unwrap();
                "write back"
            }
            9 if step % 5 == 0 => {
                pool.flush().unwrap();
                "flush"
            }
            10 if snapshots.len() > 2 => {
                snapshots.clear();
                "drop of snapshots"
            }
            choice if !maps.is_empty() => {
                let which = random(maps.len() as u64) as usize;
                let mapped = &mut maps[which];
                if choice == 11 && mapped.is_private && snapshots.len() < 4 {
                    let snapshot = mapped.map.snapshot().unwrap();
                    frozen += snapshot.resident_pages();
                    snapshots.push(snapshot);
                    "snapshot"
                } else {
                    use_map(&mut things[mapped.of], mapped, choice, &mut random)
                }
            }
            _ => "nothing",
        };
        compare(&pool, &things, after);
        if step % 100 == 0 {
            things.iter().for_each(|thing| hidden(&thing.object));
        }
    }
    let counted = vm.statistics().counted;
    assert!(counted.pages_reclaimed > 1000 && counted.pages_rewired > 100, "{counted:?}");
    assert!(
        counted.pages_swapped > 10 && counted.pages_written_back > 10 && counted.pages_failed > 10,
        "{counted:?}"
    );
    assert!(made.iter().all(|&made| made > 0) && frozen > 0, "{made:?}, {frozen} frozen pages");
    drop((maps, snapshots, things));
    let began = Instant::now();
    while !pool.objects().is_empty() || memfd_pages() > 0 {
        assert!(began.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    compare(&pool, &[], "the end");
}

/// Does something with a map; says what.
fn use_map(
    thing: &mut Thing,
    mapped: &mut Mapped,
    choice: u64,
    random: &mut impl FnMut(u64) -> u64,
) -> &'static str {
    let Mapped { is_private, map, .. } = mapped;
    let window = map.window();
    let page = random(window.len());
    let at = window.start().0 + page;
    let range = PageRange::new(PageIndex(at), PageIndex((at + 8).min(window.end().0)));
    let is_all_there = (page + 1) * PAGE_SIZE <= map.len_bytes();
    match choice {
        12 => {
            let fails = range.iter().any(|page| thing.fails(page.0));
            assert_eq!(map.populate(range).is_err(), fails);
            "populate"
        }
        13 if !range.iter().any(|page| thing.fails(page.0)) => {
            let pinned = map.pin(range).unwrap();
            for page in range.iter().map(|page| page.0 - window.start().0) {
                if (page + 1) * PAGE_SIZE <= map.len_bytes() {
                    assert_eq!(first_word(thing, map, page), thing.word(page + window.start().0));
                }
            }
            drop(pinned);
            "pin"
        }
        14 | 15 if is_all_there && thing.takes_writes() => {
            let value = random(u64::MAX);
            // Refused by a map that only reads.
            if map.write_at(page * PAGE_SIZE, &value.to_le_bytes()).is_ok() {
                thing.written.insert(at, value);
            }
            "write"
        }
        14 | 15 if is_all_there && !thing.fails(at) && *is_private => {
            let byte = &mut map.as_mut_slice()[(page * PAGE_SIZE) as usize];
            // Twice, so that it holds what it did.
            (0..2).for_each(|_| *std::hint::black_box(&mut *byte) ^= 1);
            "private write"
        }
        _ => {
            if is_all_there && thing.fails(at) {
                map.read_at(page * PAGE_SIZE, &mut [0]).unwrap_err();
            } else if is_all_there {
                assert_eq!(first_word(thing, map, page), thing.word(at));
            }
            "touch"
        }
    }
}

/// Of the map's page `page`, by a touch where the map has slices.
fn first_word(thing: &Thing, map: &Map, page: u64) -> u64 {
    if !thing.takes_writes() {
        return touch(map, page);
    }
    let mut bytes = [0; 8];
    map.read_at(page * PAGE_SIZE, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}
