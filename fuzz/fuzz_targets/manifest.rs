#![no_main]
#[path = "../manifest_checks.rs"]
mod manifest_checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| manifest_checks::manifest(bytes));
