//! (being built)
pub mod calls;
mod clock;
pub mod cold;
pub mod doctor;
pub mod engine;
pub mod identity;
pub mod keep;
pub mod launch;
pub mod learn;
pub mod measure;
mod memory;
pub mod program;
pub mod readahead;
pub mod sightings;
pub mod statistics;
pub mod store;
pub mod tracer;
pub mod watch;
