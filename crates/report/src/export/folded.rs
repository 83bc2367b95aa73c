//! Folded stacks: `comm;outermost call;…;function WEIGHT`, a line for each stack.

use std::collections::BTreeMap;
use std::io::Write;

use prepage_core::{CodePlace, StackId, Tally, ThreadIndex};
use prepage_trace::parquet::{TraceFile, Wanted};
use rustc_hash::FxHashMap;

use super::{ExportError, Weight};
use crate::filter::{Filter, Sieve};
use crate::report::place_path;
use crate::symbols::{Symbols, nameless, places_of_calls};

/// What faults are counted by: without a stack, the place of the instruction stands for it.
type Key = (ThreadIndex, Result<StackId, CodePlace>);

pub fn write(
    file: &TraceFile,
    filter: &Filter,
    weight: Weight,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let wanted = filter.wanted() | Wanted::THREAD | Wanted::CODE | Wanted::STACK;
    let new = || (Sieve::new(filter), FxHashMap::<Key, u64>::default(), Tally::default());
    let (parts, names) = file.fold(wanted, new, |(sieve, weights, all), batch| {
        for fault in batch.faults.iter().filter(|fault| sieve.passes(fault, batch.names)) {
            all.add(fault);
            let key = (fault.thread, fault.stack.ok_or_else(|| fault.code_place()));
            let more = match weight {
                Weight::Count => 1,
                Weight::Cost => fault.cost_ns.unwrap_or(0),
            };
            let sum = weights.entry(key).or_default();
            *sum = sum.saturating_add(more);
        }
    })?;
    let mut all = Tally::default();
    parts.iter().for_each(|(.., part)| all.merge(part));
    if weight == Weight::Cost && !all.is_timed() {
        return Err(ExportError::NoCosts);
    }
    let (objects, threads, stacks) = (names.objects.all(), names.threads.all(), names.stacks.all());
    let places = |key: &Key| match key.1 {
        Ok(id) => places_of_calls(&stacks[id.index()].places).collect(),
        Err(place) => vec![place],
    };
    let keys = || parts.iter().flat_map(|(_, weights, _)| weights.keys());
    let symbols = Symbols::of(&objects, keys().flat_map(places));
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (key, weight) in parts.iter().flat_map(|(_, weights, _)| weights) {
        let mut line = frame(&threads[key.0.0 as usize].comm);
        for place in places(key).into_iter().rev() {
            line.push(';');
            let known = symbols.name(place).map(frame);
            line += &known.unwrap_or_else(|| frame(&nameless(place_path(&objects, place))));
        }
        let sum = lines.entry(line).or_default();
        *sum = sum.saturating_add(*weight);
    }
    for (line, sum) in lines {
        if sum > 0 {
            writeln!(out, "{line} {sum}")?;
        }
    }
    Ok(())
}

/// `;` ends a frame and a line break ends a stack, so neither may be in a name.
fn frame(name: &str) -> String {
    name.replace(';', ":").replace(['\n', '\r'], " ")
}
