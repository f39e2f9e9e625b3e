//! A request for one permit, and the reasons to reject it.
//!
//! Not covered:
//! - The limits that cover a request.

use crate::kernel::concurrency::Requester;
use crate::kernel::concurrency::limiter::LimiterConfig;
use crate::kernel::decision::Reason;
use crate::kernel::units::{Nanos, Revision};
use crate::limits::shared_limit::SharedLimit;

/// A request for one permit.
#[derive(Clone, Copy, Debug)]
pub struct PermitRequest<'a> {
    /// The name of the bucket to acquire the permit from.
    pub bucket: &'a [u8],
    /// The path of the limit in the configuration, for metrics and logs.
    pub limit_path: &'a str,
    /// The revision of the configuration that defines the limit.
    pub revision: Revision,
    /// The parameters of the limit: size, queue and adaptive algorithm. They replace the bucket's
    /// parameters, unless those come from a later revision.
    pub rules: &'a LimiterConfig,
    /// The time after which an unreleased permit expires. `None` if the end of the request is
    /// always reported, as for a stream.
    pub permit_lifetime: Option<Nanos>,
    /// The longest wait in the queue. Zero: the request does not queue.
    pub queue_timeout: Nanos,
    /// The longest wait for the store, if the acquire needs a store call. Zero: the call is sent,
    /// but its reply is not awaited.
    pub store_timeout: Nanos,
    /// The class and customer of the request; [`Requester::ANY`] without.
    pub by: Requester,
    /// The parameters of a limit in mode `shared`. `None` for modes `local` and `strict`.
    pub shared: Option<SharedLimit>,
}

/// The reason why a request got no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// The limit is reached, and the request does not queue: there is no queue, or its queue
    /// timeout is zero.
    #[error("the concurrency limit is reached")]
    Full,
    /// No share of the limit was granted before the store timeout.
    #[error("no share of the concurrency limit arrived in time")]
    NoShare,
    /// The limit is reached, and the queue is full.
    #[error("the concurrency limit is reached, and its queue is full")]
    QueueFull,
    /// The queue timeout passed before a permit was free.
    #[error("no permit became free in the time to wait for one")]
    QueueTimeout,
    /// The largest number or total name size of buckets is reached, and no bucket could be removed:
    /// none of the examined ones is idle.
    #[error("the largest number of concurrency buckets is in use")]
    TooManyBuckets,
}

impl AcquireError {
    /// Returns the reason that replies, metrics and logs name.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Full | Self::NoShare => Reason::ConcurrencyLimitReached,
            Self::QueueFull => Reason::QueueFull,
            Self::QueueTimeout => Reason::QueueTimeout,
            Self::TooManyBuckets => Reason::TooManyBuckets,
        }
    }
}
