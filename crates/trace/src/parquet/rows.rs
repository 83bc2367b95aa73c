//! From columns to faults.

use std::hash::Hash;
use std::num::NonZeroU32;

use ::parquet::errors::ParquetError;
use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, UInt32Type, UInt64Type};
use arrow_array::{Array, PrimitiveArray, RecordBatch, StringArray, UInt32Array};
use prepage_core::{
    Fault, FaultClass, FrameNumber, ObjectId, PageIndex, Permissions, StackId, Thread, ThreadIndex,
};
use rustc_hash::FxHashMap;

use super::names::Names;
use super::reader::Files;
use super::schema::{
    ADDRESS, CLASS, CLUSTER, CODE, CODE_OFFSET, COMM, COST, Column, DEVICE, FRAME, INODE, IP, OBJECT, PAGE,
    PERMISSIONS, PID, STACK, START, TID,
};
use super::stack_text::parse_stack;

/// Turns batches into faults. What it has met once it need not look up again while the dictionary stays the same: mostly for a
/// row group.
pub(super) struct Decoder<'a> {
    files: &'a Files,
    names: &'a Names,
    threads: Numbers<(u32, u32, u32), ThreadIndex>,
    objects: Numbers<(u32, Option<(u64, u64)>), ObjectId>,
    codes: Numbers<u32, ObjectId>,
    stacks: Numbers<u32, StackId>,
    in_stacks: FxHashMap<String, ObjectId>,
    faults: Vec<Fault>,
}

impl<'a> Decoder<'a> {
    pub fn new(files: &'a Files, names: &'a Names) -> Self {
        Self {
            files,
            names,
            threads: Numbers::default(),
            objects: Numbers::default(),
            codes: Numbers::default(),
            stacks: Numbers::default(),
            in_stacks: FxHashMap::default(),
            faults: Vec::new(),
        }
    }

    /// The faults of `batch`, which has the columns that are wanted and that the file has.
    pub fn decode(&mut self, batch: &RecordBatch) -> Result<&[Fault], ParquetError> {
        self.faults.clear();
        self.faults.resize(batch.num_rows(), BLANK);
        self.classes(batch)?;
        self.nullable::<UInt64Type>(batch, COST, |fault, cost_ns| fault.cost_ns = cost_ns)?;
        self.plain(batch, START, |fault, value| fault.start_ns = value)?;
        self.plain(batch, IP, |fault, value| (fault.ip, fault.code_offset) = (value, value))?;
        self.plain(batch, ADDRESS, |fault, value| fault.address = value)?;
        self.nullable::<UInt64Type>(batch, PAGE, |fault, page| fault.page = page.map(PageIndex))?;
        self.threads(batch)?;
        self.objects(batch)?;
        self.permissions(batch)?;
        self.code(batch)?;
        self.stacks(batch)?;
        self.nullable::<UInt64Type>(batch, FRAME, |fault, frame| {
            fault.frame = frame.and_then(FrameNumber::new);
        })?;
        self.nullable::<UInt32Type>(batch, CLUSTER, |fault, pages| {
            fault.cluster_pages = pages.and_then(NonZeroU32::new);
        })?;
        Ok(&self.faults)
    }

    fn plain(
        &mut self,
        batch: &RecordBatch,
        column: Column,
        set: impl Fn(&mut Fault, u64),
    ) -> Result<(), ParquetError> {
        if let Some(array) = numbers::<UInt64Type>(batch, column)? {
            self.faults.iter_mut().zip(array.values()).for_each(|(fault, &value)| set(fault, value));
        }
        Ok(())
    }

    fn nullable<T: ArrowPrimitiveType>(
        &mut self,
        batch: &RecordBatch,
        column: Column,
        set: impl Fn(&mut Fault, Option<T::Native>),
    ) -> Result<(), ParquetError> {
        if let Some(array) = numbers::<T>(batch, column)? {
            self.faults.iter_mut().zip(array).for_each(|(fault, value)| set(fault, value));
        }
        Ok(())
    }

    fn classes(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        let Some((keys, values)) = text(batch, CLASS)? else { return Err(invalid(CLASS, "missing")) };
        let classes: Vec<Option<FaultClass>> = values.iter().map(|name| name?.parse().ok()).collect();
        for (fault, &key) in self.faults.iter_mut().zip(keys.values()) {
            fault.class = classes[key as usize].ok_or_else(|| {
                invalid(CLASS, &format!("no class is called {}", values.value(key as usize)))
            })?;
        }
        Ok(())
    }

    fn threads(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        let Some((comms, names)) = text(batch, COMM)? else { return Ok(()) };
        self.threads.enter(names);
        let [pids, tids] =
            [required::<UInt32Type>(batch, PID)?, required(batch, TID)?].map(|array| array.values());
        let rows = pids.iter().zip(tids).zip(comms.values());
        for (fault, ((&pid, &tid), &comm)) in self.faults.iter_mut().zip(rows) {
            fault.thread = self.threads.of((pid, tid, comm), || {
                let comm = names.value(comm as usize).to_owned();
                self.names.threads.number(&Thread { pid, tid, comm }).map(ThreadIndex)
            })?;
        }
        Ok(())
    }

    fn objects(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        let Some((keys, paths)) = text(batch, OBJECT)? else { return Ok(()) };
        self.objects.enter(paths);
        let [devices, inodes] = [required::<UInt64Type>(batch, DEVICE)?, required(batch, INODE)?];
        let rows = keys.iter().zip(devices.iter().zip(inodes));
        for (fault, (key, (device, inode))) in self.faults.iter_mut().zip(rows) {
            let Some(key) = key else { continue };
            let inode = device.zip(inode);
            fault.object = Some(self.objects.of((key, inode), || {
                let path = paths.value(key as usize).to_owned();
                self.names.objects.number(&self.files.object(path, inode)).map(ObjectId)
            })?);
        }
        Ok(())
    }

    fn permissions(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        let Some((keys, values)) = text(batch, PERMISSIONS)? else { return Ok(()) };
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
        let Some((keys, paths)) = text(batch, CODE)? else { return Ok(()) };
        self.codes.enter(paths);
        for (fault, key) in self.faults.iter_mut().zip(keys) {
            let Some(key) = key else { continue };
            fault.code = Some(self.codes.of(key, || {
                let path = paths.value(key as usize).to_owned();
                self.names.objects.number(&self.files.code(path)).map(ObjectId)
            })?);
        }
        self.nullable::<UInt64Type>(batch, CODE_OFFSET, |fault, offset| {
            fault.code_offset = offset.unwrap_or(fault.code_offset);
        })
    }

    fn stacks(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        let Some((keys, texts)) = text(batch, STACK)? else { return Ok(()) };
        self.stacks.enter(texts);
        for (fault, key) in self.faults.iter_mut().zip(keys) {
            let Some(key) = key else { continue };
            fault.stack = Some(self.stacks.of(key, || {
                let text = texts.value(key as usize);
                let stack = parse_stack(text, |path| {
                    if let Some(&id) = self.in_stacks.get(path) {
                        return Some(id);
                    }
                    let object = self.files.code(path.to_owned());
                    let id = ObjectId(self.names.objects.number(&object).ok()?);
                    self.in_stacks.insert(path.to_owned(), id);
                    Some(id)
                });
                let stack = stack.ok_or_else(|| invalid(STACK, &format!("{text} is no stack")))?;
                self.names.stacks.number(&stack).map(StackId::new)
            })?);
        }
        Ok(())
    }
}

/// A fault of which nothing was read.
const BLANK: Fault = Fault::new(0, ThreadIndex(0), 0, FaultClass::Failed);

/// Numbers in the tables for what the rows say, in keys of one dictionary. Neighbouring rows mostly say the same.
struct Numbers<K, Id> {
    /// Kept so that no other can have its address.
    dictionary: Option<StringArray>,
    last: Option<(K, Id)>,
    known: FxHashMap<K, Id>,
}

impl<K, Id> Default for Numbers<K, Id> {
    fn default() -> Self {
        Self { dictionary: None, last: None, known: FxHashMap::default() }
    }
}

impl<K: Copy + Eq + Hash, Id: Copy> Numbers<K, Id> {
    /// Makes `dictionary` the one that keys point into. What was met in another is forgotten: the same key means something else,
    /// and there is no end to the stacks of a long trace.
    fn enter(&mut self, dictionary: &StringArray) {
        let place = |array: &StringArray| (array.value_offsets().as_ptr(), array.len());
        if self.dictionary.as_ref().map(place) != Some(place(dictionary)) {
            (self.dictionary, self.last) = (Some(dictionary.clone()), None);
            self.known.clear();
        }
    }

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

/// A column of numbers; `None` where it is not wanted, or one that files of the first prepage lack.
fn numbers<T: ArrowPrimitiveType>(
    batch: &RecordBatch,
    column: Column,
) -> Result<Option<&PrimitiveArray<T>>, ParquetError> {
    let Some(array) = batch.column_by_name(column.name) else { return Ok(None) };
    let array = array.as_primitive_opt().ok_or_else(|| invalid(column, "no numbers"))?;
    no_unexpected_nulls(column, array).map(|()| Some(array))
}

/// A column of numbers that is read together with one that is there.
fn required<T: ArrowPrimitiveType>(
    batch: &RecordBatch,
    column: Column,
) -> Result<&PrimitiveArray<T>, ParquetError> {
    numbers(batch, column)?.ok_or_else(|| invalid(column, "missing"))
}

/// The keys and the dictionary of a column of text; `None` as for [`numbers`].
fn text(batch: &RecordBatch, column: Column) -> Result<Option<(&UInt32Array, &StringArray)>, ParquetError> {
    let Some(array) = batch.column_by_name(column.name) else { return Ok(None) };
    let array = array.as_dictionary_opt::<UInt32Type>().ok_or_else(|| invalid(column, "no dictionary"))?;
    let values = array.values().as_string_opt().ok_or_else(|| invalid(column, "no text"))?;
    // Keys into a dictionary without entries are not checked by the Parquet library.
    if values.is_empty() && array.keys().null_count() < array.len() {
        return Err(invalid(column, "has keys into an empty dictionary"));
    }
    no_unexpected_nulls(column, array.keys()).map(|()| Some((array.keys(), values)))
}

fn no_unexpected_nulls(column: Column, array: &dyn Array) -> Result<(), ParquetError> {
    if array.null_count() > 0 && !column.nullable { Err(invalid(column, "has nulls")) } else { Ok(()) }
}

fn invalid(column: Column, what: &str) -> ParquetError {
    ParquetError::General(format!("column {}: {what}", column.name))
}
