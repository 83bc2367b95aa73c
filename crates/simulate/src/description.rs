//! Descriptions in one line of text: of models, devices, patterns, costs and sweeps.

/// A description that cannot be read, and how it is written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DescriptionError(pub(crate) String);
