//! Writes a trace of made-up faults for `make bench-report`: as many as asked for, as a busy machine would have them.
//!
//!     cargo run --release -p prepage-report --example generate_trace -- 10000000 FILE

use std::error::Error;
use std::path::Path;

use prepage_core::{
    CodePlace, Fault, FaultClass, Object, ObjectId, PageIndex, Permissions, Stack, StackId, Thread,
    ThreadIndex, TraceFacts,
};
use prepage_trace::Tables;
use prepage_trace::parquet::TraceWriter;

const FILES: u64 = 400;
const THREADS: u64 = 3000;
const STACKS: u64 = 20_000;
const PART: u64 = 1 << 16;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [count, path] = arguments.as_slice() else {
        return Err("which number of faults, to which file?".into());
    };
    let count: u64 = count.parse()?;
    let mut random = Random(1);
    let mut objects: Vec<Object> = (0..FILES)
        .map(|nth| {
            Object::new(format!("/usr/lib/x86_64-linux-gnu/libnumber{nth}.so.{nth}"), Some((8 << 20, nth)))
        })
        .collect();
    objects.push(Object::new("[anon]", None));
    let threads: Vec<Thread> = (0..THREADS)
        .map(|nth| Thread {
            pid: 1000 + (nth / 3) as u32,
            tid: 1000 + nth as u32,
            comm: format!("worker-{}", nth % 50),
        })
        .collect();
    let stacks: Vec<Stack> = (0..STACKS).map(|_| Stack { places: random.places() }).collect();
    let tables = Tables { objects: &objects, threads: &threads, stacks: &stacks };
    let mut writer = TraceWriter::create(Path::new(path))?;
    let mut start_ns = 0;
    let mut left = count;
    while left > 0 {
        let part = left.min(PART);
        let faults: Vec<Fault> = (0..part)
            .map(|_| {
                start_ns += random.below(2000);
                random.fault(start_ns)
            })
            .collect();
        writer.write(tables, &faults, TraceFacts::default)?;
        left -= part;
    }
    let facts = TraceFacts {
        command: vec!["made-up".into(), count.to_string()],
        duration_ns: start_ns + 1,
        counted: Some((count, 0)),
        ..TraceFacts::default()
    };
    match writer.finish(tables, &facts)? {
        0 => Ok(()),
        unsaved => Err(format!("the disk is full: {unsaved} faults are missing").into()),
    }
}

/// A multiplicative generator, the same every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Small numbers more often than great ones.
    fn mostly_small(&mut self, end: u64) -> u64 {
        let most = self.below(end) + 1;
        self.below(most)
    }

    fn places(&mut self) -> Vec<CodePlace> {
        let depth = 3 + self.below(12);
        let place = |random: &mut Self| CodePlace {
            object: Some(ObjectId(random.mostly_small(FILES) as u32)),
            offset: 0x1000 + 16 * random.mostly_small(5000),
        };
        (0..depth).map(|_| place(self)).collect()
    }

    fn fault(&mut self, start_ns: u64) -> Fault {
        let class = match self.below(100) {
            0..4 => FaultClass::Disk,
            4..34 => FaultClass::Cached,
            34..88 => FaultClass::ZeroFill,
            88..99 => FaultClass::CopyOnWrite,
            _ => FaultClass::Failed,
        };
        let cost_ns = match class {
            FaultClass::Failed => None,
            FaultClass::Disk => Some(40_000 + self.mostly_small(2_000_000)),
            _ => Some(300 + self.mostly_small(20_000)),
        };
        let file = self.mostly_small(FILES);
        let page = self.mostly_small(11_300);
        let anonymous = class == FaultClass::ZeroFill;
        let thread = ThreadIndex(self.mostly_small(THREADS) as u32);
        let stack = self.mostly_small(STACKS) as u32;
        let base = if anonymous { 0x7f00_0000_0000 } else { 0x5500_0000_0000 + (file << 30) };
        let code = CodePlace { object: Some(ObjectId(0)), offset: 16 * self.mostly_small(50_000) };
        Fault {
            cost_ns,
            ip: 0x5500_0000_0000 + code.offset,
            object: Some(ObjectId(if anonymous { FILES as u32 } else { file as u32 })),
            page: (!anonymous).then_some(PageIndex(page)),
            permissions: Permissions::READ.with(Permissions::PRIVATE),
            code: code.object,
            code_offset: code.offset,
            stack: Some(StackId::new(stack)),
            ..Fault::new(start_ns, thread, base + page * 4096, class)
        }
    }
}
