//! The fleet as one replica sees it: the live replicas, and the releases forwarded between
//! replicas.

pub mod forwarding;
pub mod membership;
