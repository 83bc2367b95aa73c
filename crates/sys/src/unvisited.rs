//! [`arm`](crate::arm) on architectures whose registers it does not know: no process is visited, and programs that the agent cannot
//! enter are not armed.

use std::convert::Infallible;

use crate::agent::FirstTouches;
pub use crate::visit_error::VisitError;

/// A visit, of which there is none.
#[derive(Debug)]
pub struct Visit(Infallible);

impl Visit {
    /// # Errors
    /// Always.
    pub fn begin(_pid: u32) -> Result<Self, VisitError> {
        Err(VisitError::Unsupported)
    }

    /// # Errors
    /// Always.
    pub fn at_exec(_pid: u32) -> Result<Self, VisitError> {
        Err(VisitError::Unsupported)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        match self.0 {}
    }

    /// Whether it waits for an exec.
    pub fn is_at_exec(&self) -> bool {
        match self.0 {}
    }

    /// Whether the process may be expected to stop at any moment.
    pub fn is_soon_over(&self) -> bool {
        match self.0 {}
    }

    /// Ends it.
    pub fn end<T>(&mut self, _arm: impl FnOnce(FirstTouches) -> T) -> Option<Result<T, VisitError>> {
        match self.0 {}
    }
}

/// Whether visits were given up to processes that have not stopped yet.
pub fn let_go_of_given_up() -> bool {
    false
}

/// Whether two processes have one address space. Yes where that cannot be told.
pub fn shares_memory(_pid: u32, _with: u32) -> bool {
    true
}

/// Nothing is to be looked up.
pub fn get_ready() {}
