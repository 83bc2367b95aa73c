//! All tests of the simulator by what it offers to others, compiled and linked once.

mod input;
mod naive;
mod replay;
mod study;
mod traces;
mod vectors;
