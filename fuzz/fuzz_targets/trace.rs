#![no_main]
#[path = "../trace_checks.rs"]
mod trace_checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| trace_checks::trace(bytes));
