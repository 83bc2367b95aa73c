//! The commands as their users meet them, on the real kernel.

mod learn;
mod run;
mod support;
