//! The fleet as one replica sees it: the live replicas, and releases forwarded between them.

pub mod forwarding;
pub mod membership;
