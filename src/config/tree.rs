//! The rules of one domain and how a descriptor finds its own.

/// The rules of one domain.
#[derive(Debug, Default)]
pub struct DescriptorTree {}
