//! The resident prefetcher: every program of the machine starts with its pages on their way, and nobody types a prefix.
//!
//! ```text
//!  fanotify: execs ─► Watch ─► Awaited (until argv can be read) ─► Process: who, what, as whom
//!                                                                    │
//!  stores ─► Library: profiles in memory ──── choose ────────────────┤
//!                ▲                                                   ├─ fetch: Engine on a Crew's threads, with the rights that
//!                │                                                   │         may read what the profile names
//!                └── persist ◄── observe (a copy of the service, by the Learner, within its share) ┘
//!  Names: what the kernel knows of the files of known programs, looked up while nothing else happens
//!  fetched, or held out ─► Gains: how long it took ─► whether the next one is fetched; status and metrics show it
//!  Process ─► Log (who starts what when) ─► Idle: expected programs brought into free memory ─► used, or sent out
//! ```
//! The four steps are those of `prepage run` ([`prepage_prefetch`]); only who calls them differs. Nothing waits for the service:
//! it is told of execs and answers none, holds no file or mount in use for longer than it reads there, and whatever hangs in it hangs alone.
//!
//! Containers need no watch of their own. The kernel tells of an exec in an overlay on the file system below, by the handle of the file below,
//! in whatever mount namespace it is done; all containers of an image have that file in common, and so a profile (`place`). What the profile
//! names is opened below the root of the process that starts: without another mount on the way, without a link that leads out, and with the rights of
//! everybody. Containers' profiles are kept apart from those of the machine and of users (`containers` below the machine's), and nothing of either
//! is read or written for them. ADR 21 has the reasons.
//!
//! | module        | noun                                                                     |
//! |---------------|--------------------------------------------------------------------------|
//! | [`service`]   | all of it, running                                                       |
//! | [`options`]   | how it is to run                                                         |
//! | `confined`    | what it gives up before it begins                                        |
//! | `watch`       | the file systems whose execs are seen                                    |
//! | `hot`         | programs executed all the time, which the kernel passes over             |
//! | `pace`        | how often the mounts are looked at                                       |
//! | `moment`      | when an exec was told                                                    |
//! | `awaited`     | execs whose new program is not there yet                                 |
//! | `files`       | what is known of an executed file without a look at its process          |
//! | `spent`       | the processor time of the looks at each user's starts                    |
//! | `streaks`     | programs that need nothing again and again, however they are called      |
//! | `process`     | a process that has executed a program                                    |
//! | `place`       | where it looks names up: here, or below the root of a container          |
//! | `library`, `shelf`, `known` | the profiles held in memory; those of one user, or of all; and one of them |
//! | `homes`       | where users' own profiles and configuration lie                          |
//! | `fetches`     | the prefetches under way                                                 |
//! | `account`     | when one of them began and ended, and what it came to                    |
//! | `roots`       | which containers are asked, and which of them do not answer              |
//! | `beyond`      | what of a profile others do not bring in already                         |
//! | `holdings`    | what they hold until they have ended                                     |
//! | `last_starts` | what was done for the last starts                                        |
//! | `crew`        | threads that wait for work, bounded, replaced where they hang            |
//! | `fair_crew`   | the same of which no user takes all                                      |
//! | `gains`       | what fetching gains: starts that are followed, and some of them held out |
//! | `learner`     | observe and persist, within a share of the processor                     |
//! | `line`, `writing` | what an observation asks the service for, and where it writes    |
//! | `for_all`     | what of that all users may be told                                       |
//! | `refused`     | what of that could not be kept, and is not observed for now              |
//! | `allowance`   | that share                                                               |
//! | `accounts`    | whose accounts were removed                                              |
//! | `tree`        | whose start a process belongs to                                         |
//! | `names`       | metadata kept in memory                                                  |
//! | `idle`        | what is brought in while nothing else happens                            |
//! | `log`         | who starts what when                                                     |
//! | `pages`       | what is kept of each user, for root alone                                |
//! | `reading`     | what the machine does                                                    |
//! | `brought`     | the pages brought in for one program                                     |
//! | `courtesy`, `device_use` | when that has to wait, for others use the device               |
//! | `askers`      | who asks file systems that may never answer                              |
//! | `round`       | what of that hangs, and is left out                                      |
//! | `searches`    | where users look for programs                                            |
//! | [`period`], [`subject`] | a boot or a session: replayed, and learned until the machine is quiet |
//! | `due`         | which boots and sessions are learned                                     |
//! | `early`       | the same from the initramfs on                                           |
//! | `turn`        | which of the two follows a boot                                          |
//! | `replay`, [`blocks`], `ext4` | what is known of it: files, and the file system's own blocks |
//! | `missed`      | blocks that no name leads to, and that boots have missed                 |
//! | [`image`], [`arrange`] | an image before its next boot: where these blocks lie in it, and files moved for it |
//! | `opened`      | what is opened meanwhile, and what of it was used                        |
//! | `start_opens`, `start_names` | the same of a start that is observed, and what it looks up |
//! | `quiet`       | when that is over                                                        |
//! | [`counters`], `status`, [`socket`] | what is reported of it                               |
//! | `owner`       | which service that is                                                    |
//! | `notify`      | what systemd is told                                                     |
//!
//! ```no_run
//! use prepage_service::options::Options;
//! use prepage_service::service::Service;
//!
//! Service::run(&Options::default())?; // until SIGTERM
//! # Ok::<(), prepage_service::options::ServiceError>(())
//! ```
#![forbid(unsafe_code)]

mod account;
mod accounts;
mod allowance;
pub mod arrange;
mod askers;
mod awaited;
mod beyond;
pub mod blocks;
mod brought;
mod confined;
pub mod counters;
mod courtesy;
mod crew;
mod device_use;
mod due;
mod early;
mod ext4;
mod fair_crew;
mod fetches;
mod files;
mod for_all;
mod gains;
mod holdings;
mod homes;
mod hot;
mod idle;
pub mod image;
mod known;
mod last_starts;
mod learner;
mod library;
mod line;
mod log;
mod missed;
mod moment;
mod names;
#[cfg(test)]
mod needed_file;
mod notify;
mod opened;
pub mod options;
mod owner;
mod pace;
mod pages;
pub mod period;
mod place;
mod process;
mod quiet;
mod reading;
mod refused;
mod replay;
mod roots;
mod round;
mod searches;
pub mod service;
mod shelf;
pub mod socket;
mod spent;
mod start_names;
mod start_opens;
mod status;
mod streaks;
pub mod subject;
mod tree;
mod turn;
mod watch;
mod writing;
