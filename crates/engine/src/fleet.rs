//! The fleet as one replica sees it: the live replicas, the reports to the store, and the releases
//! that replicas forward to each other.

pub mod forwarding;
pub mod incarnation;
pub mod live;
pub mod live_view;
pub mod membership;
pub mod reporter;
pub(crate) mod view_scope;
