#![no_main]
#[path = "../argument_checks.rs"]
mod argument_checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| argument_checks::argument(bytes));
