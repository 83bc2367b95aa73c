#![no_main]
#[path = "../profile_checks.rs"]
mod profile_checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| profile_checks::elf(bytes));
