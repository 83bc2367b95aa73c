//! Brings the pages that a program needs into memory while it starts, and learns from starts which these are.
//!
//! ```text
//!                choose                fetch                observe                persist
//!  StartContext ─► Choice: what is ─► Engine: readers, ─► Observation: what ─► counters of the profile,
//!  pid, user,      worth its reads,   names. Nothing is   the start used        in the user's or the
//!  role            observed or not    known: maps in      (prepage-observe)     machine's layer
//!                                     files, density
//! ```
//! `prepage run` takes these steps beside a program it becomes ([`launch`]); `prepage learn` observes a run with nothing
//! fetched ([`learn`]). Profiles lie in layers, and only what a user may believe is followed (prepage-profiles).
//!
//! | module                            | noun                                                              |
//! |-----------------------------------|-------------------------------------------------------------------|
//! | [`start`]                         | a start, as every step knows it                                   |
//! | [`launch`], `ahead`, `beside`     | `prepage run`: before the exec, and beside the program            |
//! | `warm`                            | whether there is anything to do for a start                       |
//! | `first_pages`                     | what every program needs first                                    |
//! | [`choose`]                        | what one start does with the profile it has                       |
//! | [`engine`], `first_start`       | a prefetch under way: of a profile, of page maps in files         |
//! | `guess`                           | what an unknown program is likely to use                          |
//! | `dense`                           | of an unknown start on a slow device, by what it uses             |
//! | [`progress`]                      | how a start fares that nobody observes                            |
//! | [`persist`]                       | what a start showed goes into the store                           |
//! | [`learn`]                         | one observed run                                                  |
//! | [`memory`], [`calibrate`]         | how much there is for guesses; what a device can do               |
//! | `resident`                        | which pages of files are in memory, as far as a user may know     |
//! | `account`                       | what a prefetch says of itself                                    |
//! | [`config`]                        | what administrator and user want, from two small files            |
//!
//! ```
//! use prepage_core::profile::Profile;
//! use prepage_prefetch::engine::{Engine, device_of};
//!
//! let profile = Profile::default(); // as Stores::find gives it
//! let engine = Engine::new(profile.clone(), &device_of(&profile));
//! if !engine.is_warm() {
//!     let outcome = engine.run();
//!     println!("{} bytes asked for", outcome.requested_bytes);
//! }
//! ```
#![forbid(unsafe_code)]

mod account;
mod ahead;
mod beside;
pub mod calibrate;
pub mod choose;
pub mod config;
mod dense;
pub mod engine;
mod first_pages;
mod first_start;
mod guess;
pub mod launch;
pub mod learn;
pub mod memory;
pub mod persist;
pub mod progress;
mod resident;
pub mod start;
mod warm;
