//! Faults as the columns of a trace file.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;

use arrow_array::types::UInt32Type;
use arrow_array::{ArrayRef, DictionaryArray, StringArray, UInt32Array, UInt64Array};
use prepage_core::{Fault, FaultClass, FrameNumber, Permissions, StackId};
use rustc_hash::FxHashMap;

use super::stack_text::stack_text;
use crate::tables::Tables;

/// The columns of `faults`, in the order of [`super::schema::COLUMNS`].
pub(super) fn arrays(faults: &[Fault], tables: Tables<'_>) -> Vec<ArrayRef> {
    let Tables { objects, threads, stacks } = tables;
    let object = |fault: &Fault| fault.object.map(|id| &objects[id.0 as usize]);
    let thread = |fault: &Fault| &threads[fault.thread.0 as usize];
    let path = |number: usize| Cow::Borrowed(objects[number].path.as_str());
    let u64s = |value: &dyn Fn(&Fault) -> u64| -> ArrayRef {
        Arc::new(faults.iter().map(value).collect::<UInt64Array>())
    };
    let optional = |value: &dyn Fn(&Fault) -> Option<u64>| -> ArrayRef {
        Arc::new(faults.iter().map(value).collect::<UInt64Array>())
    };
    let u32s = |value: &dyn Fn(&Fault) -> u32| -> ArrayRef {
        Arc::new(faults.iter().map(value).collect::<UInt32Array>())
    };
    let inode = |fault: &Fault| object(fault).and_then(|object| object.inode);
    let permissions: Vec<Permissions> = Permissions::all().collect();
    vec![
        u64s(&|fault| fault.start_ns),
        optional(&|fault| fault.cost_ns),
        u32s(&|fault| thread(fault).pid),
        u32s(&|fault| thread(fault).tid),
        dictionary(
            faults,
            |number| threads[number].comm.as_str().into(),
            |fault| Some(fault.thread.0 as usize),
        ),
        dictionary(
            faults,
            |number| FaultClass::ALL[number].name().into(),
            |fault| Some(fault.class as usize),
        ),
        u64s(&|fault| fault.ip),
        u64s(&|fault| fault.address),
        dictionary(faults, path, |fault| fault.object.map(|id| id.0 as usize)),
        optional(&|fault| inode(fault).map(|(device, _)| device)),
        optional(&|fault| inode(fault).map(|(_, inode)| inode)),
        optional(&|fault| fault.page.map(|page| page.0)),
        dictionary(
            faults,
            |number| permissions[number].text().into(),
            |fault| match fault.permissions.is_empty() {
                true => None,
                false => permissions.iter().position(|known| *known == fault.permissions),
            },
        ),
        dictionary(faults, path, |fault| fault.code.map(|id| id.0 as usize)),
        optional(&|fault| fault.code.map(|_| fault.code_offset)),
        optional(&|fault| fault.frame.map(FrameNumber::get)),
        dictionary(
            faults,
            |number| stack_text(&stacks[number], |id| &objects[id.0 as usize].path).into(),
            |fault| fault.stack.map(StackId::index),
        ),
        Arc::new(
            faults.iter().map(|fault| fault.cluster_pages.map(NonZeroU32::get)).collect::<UInt32Array>(),
        ),
    ]
}

/// Text given as numbers into a table, of which only the entries in use are handed on.
fn dictionary<'a>(
    faults: &[Fault],
    text: impl Fn(usize) -> Cow<'a, str>,
    number: impl Fn(&Fault) -> Option<usize>,
) -> ArrayRef {
    // By number, not by entry of the table: a table can be far longer than the batch.
    let mut places: FxHashMap<usize, u32> = FxHashMap::default();
    let mut used: Vec<Cow<'a, str>> = Vec::new();
    let keys: UInt32Array = faults
        .iter()
        .map(|fault| {
            let number = number(fault)?;
            Some(*places.entry(number).or_insert_with(|| {
                used.push(text(number));
                used.len() as u32 - 1
            }))
        })
        .collect();
    let values = Arc::new(StringArray::from_iter_values(used));
    Arc::new(DictionaryArray::<UInt32Type>::new(keys, values))
}
