//! The commands as their users meet them, in one program: it is compiled and linked once, and where one test waits, others run.
//! Tests that change settings of the machine, or measure it, are programs of their own: `bench`, `learn`, `modes`, `rates`, `yama`.

#[path = "../support/mod.rs"]
mod support;

mod aside;
mod bench_maps;
mod browser;
mod enable;
mod endings;
mod help;
mod hostile;
mod import;
mod incomplete;
mod packaging;
mod predict;
mod record;
mod report;
mod residency;
mod run;
mod said;
mod same;
mod scripts;
mod service;
mod simulate;
mod store;
mod travel;
mod vm_top;
