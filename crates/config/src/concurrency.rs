//! The validated `concurrency` block of a rule: a limit on requests in flight.
//!
//! Not covered:
//! - Enforcement (see [`crate::kernel::concurrency`]).

use std::ops::RangeInclusive;

use super::rule::RuleNumber;
use super::table_column::TableColumn;

use crate::kernel::concurrency::RequesterKeys;
use crate::kernel::concurrency::adaptive::Hundredths;
use crate::kernel::concurrency::limiter::LimiterConfig;
pub use crate::kernel::concurrency::{ConcurrencyMode, RejectReply};
pub use crate::kernel::coordinator::ConcurrencyFallback;
use crate::kernel::coordinator::aggregate::VoteAggregate;
use crate::kernel::units::Nanos;

/// The default of `max_duration`, the lifetime of a permit whose release never arrives.
pub const DEFAULT_MAX_DURATION: Nanos = Nanos::from_secs(60);

/// The longest `max_duration` of a fleet-wide limit without warning W30. The store keeps the share
/// of a crashed replica reserved for `max_duration`.
pub const LONG_MAX_DURATION: Nanos = Nanos::from_secs(300);

/// The largest concurrency limit for which `mode: shared` causes warning W31. Split among
/// a few dozen replicas, such a limit leaves most of them without a share.
pub const SMALL_LIMIT: u32 = 10;

/// The smallest concurrency limit for which `mode: strict` causes warning W32. A limit of this size
/// can be split into shares, which avoids a store call for each request.
pub const LARGE_LIMIT: u32 = 1_000;

/// The permitted values of `adaptive.tolerance`.
pub const TOLERANCE: RangeInclusive<Hundredths> = Hundredths(105)..=Hundredths(1_000);

/// The permitted values of `adaptive.decrease`.
pub const DECREASE: RangeInclusive<Hundredths> = Hundredths(10)..=Hundredths(99);

/// The permitted values of `adaptive.smoothing`.
pub const SMOOTHING: RangeInclusive<Hundredths> = Hundredths(5)..=Hundredths(100);

/// The permitted values of `adaptive.probe_depth`. A probe of less depth could measure a queue.
pub const PROBE_DEPTH: RangeInclusive<Hundredths> = Hundredths(30)..=Hundredths(90);

/// The permitted values of `adaptive.increase`.
pub const INCREASE: RangeInclusive<u32> = 1..=1_000;

/// The longest unit of a paced rate limit, so that its rate is at least 1 per hour.
pub const MAX_PACE_UNIT: Nanos = Nanos::from_secs(3_600);

/// The largest rate of a paced rate limit, in requests per second.
pub const MAX_PACE: u32 = 1_000_000;

/// The default of `increase` of a paced rate limit.
pub const DEFAULT_PACE_INCREASE: u32 = 1;

/// The default of `decrease` of a paced rate limit.
pub const DEFAULT_PACE_DECREASE: Hundredths = Hundredths(80);

/// The HTTP status of a request that a paced rate limit denies.
pub const PACE_STATUS: u16 = 429;

/// The default of `fair.max_keys`.
pub const DEFAULT_FAIR_KEYS: u32 = 10_000;

/// The permitted values of `fair.max_keys`. A customer needs about 200 bytes.
pub const FAIR_KEYS: RangeInclusive<u32> = 1..=100_000;

/// The fields `classes` and `fair`, whose numbers are in [`LimiterConfig`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequesterRule {
    /// The entries of a check with its class and its customer.
    pub keys: RequesterKeys,
    /// The column of a table with the weight of each customer. [`TableColumn::entry`] has no meaning.
    pub weight: Option<TableColumn>,
}

/// A concurrency limit, and the response to a request that gets no permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyLimit {
    /// The number of the rule.
    pub number: RuleNumber,
    /// `true` if the rule also has `rate_limit`.
    pub has_rate_limit: bool,
    /// The initial limit, the bounds and algorithm of an adaptive limit, and the queue.
    pub rules: LimiterConfig,
    /// The rule that combines the replicas' votes on a shared adaptive limit.
    pub aggregate: VoteAggregate,
    /// The mode, if the file has one. Without it, the limit is fleet-wide (`shared`) with a shared
    /// store and `local` with the memory store.
    pub mode: Option<ConcurrencyMode>,
    /// The limit of a replica whose share expired during a store outage; unused in `local` mode.
    pub on_store_failure: ConcurrencyFallback,
    /// The lifetime of a permit whose release never arrives. Then the permit is free again.
    pub max_duration: Nanos,
    /// The response to a request that the concurrency limit rejects.
    pub reject: RejectReply,
    /// Shadow mode: requests above the limit are reported, but not rejected.
    pub shadow: bool,
    /// The full path of the rule, as in [`super::Rule::path`].
    pub path: Box<str>,
    /// The file and line of the limit, `file:line`.
    pub location: Box<str>,
    /// The column of a table with the limit of each id.
    pub from: Option<Box<TableColumn>>,
    /// The classes and customers of requests; `None` if the limit does not tell requests apart.
    pub requesters: Option<Box<RequesterRule>>,
}

impl ConcurrencyLimit {
    /// Returns the limit of a blocked id. No store is asked for it.
    pub(super) fn blocked(&self) -> Self {
        let rules = LimiterConfig::fixed(0);
        Self {
            rules,
            mode: Some(ConcurrencyMode::Local),
            from: None,
            requesters: None,
            ..self.clone()
        }
    }

    /// Returns this limit for another number of requests.
    pub(super) fn resized(&self, limit: u32) -> Self {
        let rules = LimiterConfig { limit, ..self.rules };
        Self { rules, from: None, ..self.clone() }
    }
}
