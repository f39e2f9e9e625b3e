//! The response to a check that a concurrency limit or a budget rejects.

use crate::concurrency::BucketLoad;
use crate::config::concurrency::RejectReply;
use crate::kernel::decision::Reason;

/// The response to a check that a concurrency limit or a budget rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The status, `Retry-After` and body.
    pub reject: RejectReply,
    /// The reason of the rejection.
    pub reason: Reason,
    /// The path of the rule in the configuration.
    pub path: Box<str>,
    /// The load of the concurrency limit's bucket at the rejection. `None` for a budget, and unless
    /// it is logged or sent as an event.
    pub load: Option<BucketLoad>,
}
