//! The timing and the bounds of a fleet-wide concurrency limit.
//!
//! Guarantees:
//! - A replica stops using a share before the coordinator grants it to others
//!   ([`ShareTiming::new`]).
//!
//! Not covered:
//! - Different configurations: the coordinator applies to each heartbeat the sender's own, which is
//!   safe.

use thiserror::Error;

use super::aggregate::VoteAggregate;
use crate::concurrency::ClassParts;
use crate::units::{Nanos, Share};

/// The largest concurrency limit, in permits.
///
/// Its products with factors stay below 2^53, so the doubles of Redis scripts represent them
/// exactly.
pub const MOST: Share = Share(1 << 24);

/// The durations that govern heartbeats and shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShareTiming {
    /// The interval between regular heartbeats.
    pub heartbeat: Nanos,
    /// The lifetime of a share, which a replica counts from sending the heartbeat.
    pub share_lifetime: Nanos,
    /// The clock margin: the time before the end of its lifetime at which a replica stops using a
    /// share.
    ///
    /// It makes the end safe although clock rates differ.
    pub margin: Nanos,
    /// The longest time for which a request can run after its admission.
    pub max_duration: Nanos,
}

/// The error for a timing, or for bounds of a limit, that cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CoordinatorConfigError {
    /// The share lifetime ends before two heartbeats are due, so shares would expire without a
    /// fault.
    #[error(
        "a share expiry of {term} is too short for a heartbeat of {heartbeat}; use at least {least}"
    )]
    LifetimeTooShort {
        /// The configured share lifetime.
        term: Nanos,
        /// The clock margin that this lifetime needs.
        margin: Nanos,
        /// The configured heartbeat interval.
        heartbeat: Nanos,
        /// The shortest valid share lifetime.
        least: Nanos,
    },
    /// The heartbeat interval is zero.
    #[error("the heartbeat is 0; use for example 1s")]
    NoHeartbeat,
    /// The bounds of the concurrency limit contradict each other or exceed [`MOST`].
    #[error(
        "the concurrency limit {start} is not between {min} and {max}, or these exceed 1 to {MOST}"
    )]
    Bounds {
        /// The least limit.
        min: Share,
        /// The initial limit.
        start: Share,
        /// The largest limit.
        max: Share,
    },
}

/// The limit of a replica whose share expired because the store did not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConcurrencyFallback {
    /// 0: every request is rejected.
    Deny,
    /// The smaller of two numbers: the replica's last share, and its last fair share. A replica
    /// that never had a share uses the limit divided by the number of replicas.
    #[default]
    Local,
    /// The whole limit, which this replica then enforces for itself.
    Allow,
}

impl ShareTiming {
    /// A timing with the smallest clock margin that is safe if clock rates differ by `drift_ppm`
    /// millionths.
    ///
    /// # Errors
    /// Returns an error if `heartbeat` is zero, or if `share_lifetime` is shorter than the clock
    /// margin plus two heartbeat intervals.
    pub fn new(
        heartbeat: Nanos,
        share_lifetime: Nanos,
        max_duration: Nanos,
        drift_ppm: u64,
    ) -> Result<Self, CoordinatorConfigError> {
        if heartbeat == Nanos(0) {
            return Err(CoordinatorConfigError::NoHeartbeat);
        }
        let margin = Self::least_margin(share_lifetime, max_duration, drift_ppm);
        let least = margin.plus(heartbeat).plus(heartbeat);
        if share_lifetime < least {
            return Err(CoordinatorConfigError::LifetimeTooShort {
                term: share_lifetime,
                margin,
                heartbeat,
                least,
            });
        }
        Ok(Self { heartbeat, share_lifetime, margin, max_duration })
    }

    /// The smallest safe clock margin: ⌈(lifetime + `max_duration`)·d / (1 + d)⌉, with the clock
    /// drift d.
    ///
    /// If a replica's clock is slow by d, its last request ends after (lifetime − margin +
    /// `max_duration`)·(1 + d) of the store's time. The store frees the share after lifetime +
    /// `max_duration`, so the product must not exceed this sum.
    ///
    /// ```
    /// use sluicegate_kernel::coordinator::ShareTiming;
    /// use sluicegate_kernel::units::Nanos;
    /// // Drift of a tenth: 90 ticks of a slow clock are 99 ticks of the store's, 91 are 100.1.
    /// assert_eq!(ShareTiming::least_margin(Nanos(100), Nanos(0), 100_000), Nanos(10));
    /// ```
    #[must_use]
    pub fn least_margin(share_lifetime: Nanos, max_duration: Nanos, drift_ppm: u64) -> Nanos {
        let span = u128::from(share_lifetime.plus(max_duration).0);
        let drift = u128::from(drift_ppm);
        let drift_plus_one = drift.saturating_add(1_000_000);
        let margin = span.saturating_mul(drift).div_ceil(drift_plus_one);
        Nanos(u64::try_from(margin).unwrap_or(u64::MAX))
    }

    /// The time for which a replica may use a share, counted from sending the heartbeat.
    #[must_use]
    pub const fn usable_lifetime(&self) -> Nanos {
        self.share_lifetime.since(self.margin)
    }

    /// The longest time from a replica's last heartbeat to the end of its last request.
    #[must_use]
    pub const fn longest_use(&self) -> Nanos {
        self.share_lifetime.plus(self.max_duration)
    }

    /// The pause between early heartbeats of a replica with more requests in flight than its new
    /// share, while other replicas wait for these permits.
    ///
    /// It is a twentieth of the heartbeat interval. A replica that waits for permits of others
    /// starts with pauses from [`ShareTiming::short_pause`] up to this.
    #[must_use]
    pub const fn debounce(&self) -> Nanos {
        Nanos(self.heartbeat.0.div_ceil(20))
    }

    /// The interval between the fleet's common heartbeat instants: nine tenths of the heartbeat
    /// interval.
    ///
    /// A joining replica waits for half of this interval on average. With its own messages this
    /// makes half a heartbeat interval, plus the time until requests of other replicas end.
    #[must_use]
    pub const fn period(&self) -> Nanos {
        self.heartbeat.since(self.debounce()).since(self.debounce())
    }

    /// The shortest pause between heartbeats of a replica that expects its share to change soon.
    ///
    /// It is a hundredth of the heartbeat interval. The common heartbeat instants that two replicas
    /// compute differ by at most this.
    #[must_use]
    pub const fn short_pause(&self) -> Nanos {
        Nanos(self.heartbeat.0.div_ceil(100))
    }

    /// The interval between vote counts: one period to announce the limit, one to collect votes on
    /// it.
    ///
    /// It is less than two heartbeat intervals, because replicas send slightly early or late.
    #[must_use]
    pub const fn vote_interval(&self) -> Nanos {
        Nanos(self.heartbeat.0.saturating_mul(7).div_ceil(4))
    }

    /// The shortest pause between two computations of the entitlements of a large fleet: an eighth of
    /// the heartbeat interval.
    #[must_use]
    pub const fn entitlement_pause(&self) -> Nanos {
        Nanos(self.heartbeat.0 / 8)
    }

    /// The time for which a replica keeps its only permit, if replicas outnumber permits and take
    /// turns.
    #[must_use]
    pub const fn turn_duration(&self) -> Nanos {
        Nanos(self.heartbeat.0.saturating_mul(4))
    }
}

/// The configuration of a fleet-wide concurrency limit, which the coordinator applies to a
/// heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoordinatorConfig {
    /// The durations that govern heartbeats and shares.
    pub timing: ShareTiming,
    /// The smallest limit, in permits; at least 1.
    pub min: Share,
    /// The limit before the first vote count, in permits.
    pub start: Share,
    /// The largest limit, in permits; if it equals `min`, the limit is static.
    pub max: Share,
    /// The rule that combines the replicas' votes.
    pub aggregate: VoteAggregate,
    /// The part of the limit that each class may fill.
    pub classes: ClassParts,
}

impl CoordinatorConfig {
    /// A configuration that combines votes by the lower median.
    ///
    /// # Errors
    /// Returns an error if the bounds contradict each other or exceed [`MOST`].
    pub fn new(
        timing: ShareTiming,
        min: Share,
        start: Share,
        max: Share,
    ) -> Result<Self, CoordinatorConfigError> {
        let ordered = Share(1) <= min && min <= start && start <= max && max <= MOST;
        if !ordered {
            return Err(CoordinatorConfigError::Bounds { min, start, max });
        }
        Ok(Self {
            timing,
            min,
            start,
            max,
            aggregate: VoteAggregate::default(),
            classes: ClassParts::ONE,
        })
    }
}
