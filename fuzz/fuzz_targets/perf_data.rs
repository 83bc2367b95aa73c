#![no_main]
#[path = "../trace_checks.rs"]
mod trace_checks;

// The reader of perf.data catches panics of the library that parses it. libFuzzer's hook would end the process at them.
libfuzzer_sys::fuzz_target!(init: std::panic::set_hook(Box::new(|_| ())), |bytes: &[u8]| {
    trace_checks::perf_data(bytes);
});
