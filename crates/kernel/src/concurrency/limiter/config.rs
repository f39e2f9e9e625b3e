//! The configuration of a limiter.

use crate::concurrency::adaptive::AdaptiveConfig;
use crate::concurrency::pace::PaceConfig;
use crate::concurrency::{ClassParts, OverloadAnswers, RetryAfterRule};
use crate::units::Nanos;

/// The configuration of one concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LimiterConfig {
    /// The limit in requests; with `adaptive`, its initial value. With `pace`, the initial rate.
    pub limit: u32,
    /// The adaptation to latency; `None` keeps the limit at `limit`.
    pub adaptive: Option<AdaptiveConfig>,
    /// Admits requests by time instead of by the number in flight.
    pub pace: Option<PaceConfig>,
    /// The queue of waiting requests; `None` denies a request at once when the limit is reached.
    pub queue: Option<QueueConfig>,
    /// The part of the limit that each class may fill.
    pub classes: ClassParts,
    /// The most customers that are counted apart; further ones, and requests without a customer, count
    /// as one customer. `None`: the limit does not tell customers apart.
    pub fair_keys: Option<u32>,
    /// The answers of the backend that mean overload. The caller classifies each answer by them.
    pub overloaded_by: OverloadAnswers,
    /// The effect of a `Retry-After` in such an answer. The caller applies it.
    pub retry_after: RetryAfterRule,
}

impl LimiterConfig {
    /// A constant `limit` without a queue.
    #[must_use]
    pub const fn fixed(limit: u32) -> Self {
        Self {
            limit,
            adaptive: None,
            pace: None,
            queue: None,
            classes: ClassParts::ONE,
            fair_keys: None,
            overloaded_by: OverloadAnswers::DEFAULT,
            retry_after: RetryAfterRule::Ignore,
        }
    }
}

/// The bounds of a queue of waiting requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueConfig {
    /// The largest number of waiting requests.
    pub size: u32,
    /// The longest wait of one request.
    pub timeout: Nanos,
}
