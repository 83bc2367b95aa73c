//! From columns to faults.

use std::collections::HashMap;
use std::hash::Hash;

use ::parquet::errors::ParquetError;
use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, UInt32Type, UInt64Type};
use arrow_array::{Array, PrimitiveArray, RecordBatch, StringArray, UInt32Array};
use prepage_core::{
    Fault, FaultClass, FrameNumber, ObjectId, PageIndex, Permissions, StackId, Thread, ThreadIndex,
};

use super::names::Names;
use super::reader::Files;
use super::scan::Wanted;
use super::schema::{
    ADDRESS, CLASS, CODE, CODE_OFFSET, COMM, COST, Column, DEVICE, FRAME, INODE, IP, OBJECT, PAGE,
    PERMISSIONS, PID, STACK, START, TID,
};
use super::stack_text::parse_stack;

/// Whether `column` has to be read for what is `wanted`.
pub(super) fn needs(wanted: Wanted, column: Column) -> bool {
    match column {
        CLASS | COST => true,
        START => wanted.start,
        PID | TID | COMM => wanted.thread,
        // Where no object is known, the code's place is the address.
        IP => wanted.ip || wanted.code,
        ADDRESS => wanted.address,
        OBJECT | DEVICE | INODE => wanted.object,
        PAGE => wanted.page,
        PERMISSIONS => wanted.permissions,
        CODE | CODE_OFFSET => wanted.code,
        STACK => wanted.stack,
        FRAME => wanted.frame,
        _ => false,
    }
}

/// Turns the batches of one row group into faults.
pub(super) struct Decoder<'a> {
    wanted: Wanted,
    files: &'a Files,
    names: &'a Names,
    texts: Texts,
    threads: Numbers<(u32, u32, u32), ThreadIndex>,
    objects: Numbers<(u32, Option<(u64, u64)>), ObjectId>,
    codes: Numbers<u32, ObjectId>,
    stacks: Numbers<u32, StackId>,
    faults: Vec<Fault>,
}

impl<'a> Decoder<'a> {
    pub fn new(wanted: Wanted, files: &'a Files, names: &'a Names) -> Self {
        Self {
            wanted,
            files,
            names,
            texts: Texts::default(),
            threads: Numbers::default(),
            objects: Numbers::default(),
            codes: Numbers::default(),
            stacks: Numbers::default(),
            faults: Vec::new(),
        }
    }

    /// The faults of `batch`.
    pub fn decode(&mut self, batch: &RecordBatch) -> Result<&[Fault], ParquetError> {
        self.faults.clear();
        self.faults.resize(batch.num_rows(), BLANK);
        self.classes(batch)?;
        for (fault, cost_ns) in self.faults.iter_mut().zip(numbers::<UInt64Type>(batch, COST)?) {
            fault.cost_ns = cost_ns;
        }
        if self.wanted.start {
            self.plain(batch, START, |fault, value| fault.start_ns = value)?;
        }
        if self.wanted.ip || self.wanted.code {
            self.plain(batch, IP, |fault, value| (fault.ip, fault.code_offset) = (value, value))?;
        }
        if self.wanted.address {
            self.plain(batch, ADDRESS, |fault, value| fault.address = value)?;
        }
        if self.wanted.page {
            for (fault, page) in self.faults.iter_mut().zip(numbers::<UInt64Type>(batch, PAGE)?) {
                fault.page = page.map(PageIndex);
            }
        }
        if self.wanted.thread {
            self.threads(batch)?;
        }
        if self.wanted.object {
            self.objects(batch)?;
        }
        if self.wanted.permissions && there(batch, PERMISSIONS) {
            self.permissions(batch)?;
        }
        if self.wanted.code && there(batch, CODE) {
            self.code(batch)?;
        }
        if self.wanted.stack && there(batch, STACK) {
            self.stacks(batch)?;
        }
        if self.wanted.frame && there(batch, FRAME) {
            for (fault, frame) in self.faults.iter_mut().zip(numbers::<UInt64Type>(batch, FRAME)?) {
                fault.frame = frame.and_then(FrameNumber::new);
            }
        }
        Ok(&self.faults)
    }

    fn plain(
        &mut self,
        batch: &RecordBatch,
        column: Column,
        set: impl Fn(&mut Fault, u64),
    ) -> Result<(), ParquetError> {
        let values = numbers::<UInt64Type>(batch, column)?.values();
        self.faults.iter_mut().zip(values).for_each(|(fault, &value)| set(fault, value));
        Ok(())
    }

    fn classes(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        let (keys, values) = text(batch, CLASS)?;
        let classes: Vec<Option<FaultClass>> =
            values.iter().map(|name| name.and_then(FaultClass::from_name)).collect();
        for (fault, &key) in self.faults.iter_mut().zip(keys.values()) {
            fault.class = classes[key as usize].ok_or_else(|| {
                invalid(CLASS, &format!("no class is called {}", values.value(key as usize)))
            })?;
        }
        Ok(())
    }

    fn threads(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        let (comms, names) = text(batch, COMM)?;
        let mut names = self.texts.of_batch(names);
        let pids = numbers::<UInt32Type>(batch, PID)?.values();
        let tids = numbers::<UInt32Type>(batch, TID)?.values();
        let rows = pids.iter().zip(tids).zip(comms.values());
        for (fault, ((&pid, &tid), &comm)) in self.faults.iter_mut().zip(rows) {
            let comm = names.number(comm);
            fault.thread = self.threads.of((pid, tid, comm), || {
                self.names.thread_index(&Thread { pid, tid, comm: names.text(comm) })
            })?;
        }
        Ok(())
    }

    fn objects(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        let (keys, paths) = text(batch, OBJECT)?;
        let mut paths = self.texts.of_batch(paths);
        let devices = numbers::<UInt64Type>(batch, DEVICE)?;
        let inodes = numbers::<UInt64Type>(batch, INODE)?;
        let rows = keys.iter().zip(devices.iter().zip(inodes));
        for (fault, (key, (device, inode))) in self.faults.iter_mut().zip(rows) {
            let Some(key) = key else { continue };
            let path = paths.number(key);
            let inode = device.zip(inode);
            fault.object =
                Some(self.objects.of((path, inode), || {
                    self.names.object_id(&self.files.object(paths.text(path), inode))
                })?);
        }
        Ok(())
    }

    fn permissions(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        let (keys, values) = text(batch, PERMISSIONS)?;
        let known: Vec<Option<Permissions>> =
            values.iter().map(|text| text.and_then(Permissions::from_text)).collect();
        for (fault, key) in self.faults.iter_mut().zip(keys) {
            let Some(key) = key.map(|key| key as usize) else { continue };
            fault.permissions = known[key]
                .ok_or_else(|| invalid(PERMISSIONS, &format!("{} are no permissions", values.value(key))))?;
        }
        Ok(())
    }

    fn code(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        let (keys, paths) = text(batch, CODE)?;
        let mut paths = self.texts.of_batch(paths);
        for (fault, key) in self.faults.iter_mut().zip(keys) {
            let Some(key) = key else { continue };
            let path = paths.number(key);
            fault.code =
                Some(self.codes.of(path, || self.names.object_id(&self.files.code(paths.text(path))))?);
        }
        if there(batch, CODE_OFFSET) {
            for (fault, offset) in self.faults.iter_mut().zip(numbers::<UInt64Type>(batch, CODE_OFFSET)?) {
                fault.code_offset = offset.unwrap_or(fault.code_offset);
            }
        }
        Ok(())
    }

    fn stacks(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        let (keys, texts) = text(batch, STACK)?;
        let mut texts = self.texts.of_batch(texts);
        for (fault, key) in self.faults.iter_mut().zip(keys) {
            let Some(key) = key else { continue };
            let number = texts.number(key);
            fault.stack = Some(self.stacks.of(number, || {
                let text = texts.text(number);
                let stack = parse_stack(&text, |path| self.names.object_id(&self.files.code(path)).ok());
                self.names.stack_id(&stack.ok_or_else(|| invalid(STACK, &format!("{text} is no stack")))?)
            })?);
        }
        Ok(())
    }
}

/// A fault of which nothing was read.
const BLANK: Fault = Fault::new(0, ThreadIndex(0), 0, FaultClass::Failed);

/// Texts of a row group, numbered: each batch may bring a dictionary of its own.
#[derive(Default)]
struct Texts {
    numbers: HashMap<String, u32>,
    texts: Vec<String>,
}

impl Texts {
    fn of_batch<'t>(&'t mut self, values: &'t StringArray) -> BatchTexts<'t> {
        BatchTexts { numbers: vec![u32::MAX; values.len()], values, texts: self }
    }
}

/// The dictionary of one batch. Only entries in use are looked up.
struct BatchTexts<'t> {
    values: &'t StringArray,
    numbers: Vec<u32>,
    texts: &'t mut Texts,
}

impl BatchTexts<'_> {
    fn number(&mut self, key: u32) -> u32 {
        let known = self.numbers[key as usize];
        if known != u32::MAX {
            return known;
        }
        let text = self.values.value(key as usize);
        let number = match self.texts.numbers.get(text) {
            Some(&number) => number,
            None => {
                let number = self.texts.texts.len() as u32;
                self.texts.texts.push(text.to_owned());
                self.texts.numbers.insert(text.to_owned(), number);
                number
            }
        };
        self.numbers[key as usize] = number;
        number
    }

    fn text(&self, number: u32) -> String {
        self.texts.texts[number as usize].clone()
    }
}

/// Numbers in the tables for what the rows say. Neighbouring rows mostly say the same.
struct Numbers<K, Id> {
    last: Option<(K, Id)>,
    known: HashMap<K, Id>,
}

impl<K, Id> Default for Numbers<K, Id> {
    fn default() -> Self {
        Self { last: None, known: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash, Id: Copy> Numbers<K, Id> {
    fn of(&mut self, key: K, find: impl FnOnce() -> Result<Id, ParquetError>) -> Result<Id, ParquetError> {
        if let Some((last, id)) = self.last
            && last == key
        {
            return Ok(id);
        }
        let id = match self.known.get(&key) {
            Some(&id) => id,
            None => {
                let id = find()?;
                self.known.insert(key, id);
                id
            }
        };
        self.last = Some((key, id));
        Ok(id)
    }
}

/// Whether the file has `column`, which files of the first prepage lack.
fn there(batch: &RecordBatch, column: Column) -> bool {
    batch.column_by_name(column.name).is_some()
}

fn numbers<T: ArrowPrimitiveType>(
    batch: &RecordBatch,
    column: Column,
) -> Result<&PrimitiveArray<T>, ParquetError> {
    let array = batch.column_by_name(column.name).and_then(|array| array.as_primitive_opt());
    let array = array.ok_or_else(|| invalid(column, "missing"))?;
    no_unexpected_nulls(column, array).map(|()| array)
}

/// The keys and the dictionary of a text column.
fn text(batch: &RecordBatch, column: Column) -> Result<(&UInt32Array, &StringArray), ParquetError> {
    let array = batch.column_by_name(column.name).and_then(|array| array.as_dictionary_opt::<UInt32Type>());
    let array = array.ok_or_else(|| invalid(column, "missing"))?;
    let values = array.values().as_string_opt().ok_or_else(|| invalid(column, "no text"))?;
    no_unexpected_nulls(column, array.keys()).map(|()| (array.keys(), values))
}

fn no_unexpected_nulls(column: Column, array: &dyn Array) -> Result<(), ParquetError> {
    if array.null_count() > 0 && !column.nullable { Err(invalid(column, "has nulls")) } else { Ok(()) }
}

fn invalid(column: Column, what: &str) -> ParquetError {
    ParquetError::General(format!("column {}: {what}", column.name))
}
