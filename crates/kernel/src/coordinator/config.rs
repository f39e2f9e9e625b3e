//! The timing and the bounds of a fleet-wide limit.
//!
//! Guarantees:
//! - With a [`ShareTiming`] from [`ShareTiming::new`], replicas
//!   stop before the coordinator frees their exposure.
//!
//! Not covered:
//! - Replicas with different configurations: each heartbeat is judged by its own, which is safe.

use thiserror::Error;

use super::aggregate::VoteAggregate;
use super::split::SplitMode;
use crate::units::{Nanos, Share};

/// The largest limit: its products with ratios stay below 2^53, so they are exact in doubles.
pub const MOST: Share = Share(1 << 24);

/// The timing of heartbeats and shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShareTiming {
    /// The interval between regular heartbeats.
    pub heartbeat: Nanos,
    /// The lifetime of a share, counted from the heartbeat.
    pub share_lifetime: Nanos,
    /// The time before the end of the lifetime at which a replica stops.
    pub margin: Nanos,
    /// The longest duration of a request after its admission.
    pub max_duration: Nanos,
}

/// A timing or bounds that cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CoordinatorConfigError {
    /// Replicas would be fenced without a fault.
    #[error(
        "a term of {term} less its margin {margin} is over before a second heartbeat of {heartbeat} can be missed; use a term of at least {least}"
    )]
    LifetimeTooShort {
        /// The configured lifetime of a share.
        term: Nanos,
        /// The margin for clock drift.
        margin: Nanos,
        /// The configured heartbeat interval.
        heartbeat: Nanos,
        /// The shortest valid lifetime.
        least: Nanos,
    },
    /// The heartbeat interval is zero.
    #[error("a heartbeat of 0 would never end")]
    NoHeartbeat,
    /// The limit's bounds contradict each other.
    #[error(
        "a ceiling starts at {start} between {min} and {max}; wanted 1 <= min <= start <= max <= {MOST}"
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

impl ShareTiming {
    /// A timing with the least safe margin for clock rates that differ by `drift_ppm`, in 10^-6.
    ///
    /// # Errors
    /// Returns an error for a zero `heartbeat`, or a
    /// lifetime shorter than the margin plus two heartbeats.
    pub fn new(
        heartbeat: Nanos,
        share_lifetime: Nanos,
        max_duration: Nanos,
        drift_ppm: u32,
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

    /// The least margin: ⌈(lifetime + `max_duration`)·d / (1 + d)⌉, with d the drift.
    ///
    /// If a replica's clock is slow by d, its last request ends after (lifetime − margin +
    /// `max_duration`)·(1 + d) of the store's time. This may be at most lifetime + `max_duration`.
    ///
    /// ```
    /// use sluicegate_kernel::coordinator::ShareTiming;
    /// use sluicegate_kernel::units::Nanos;
    /// // A tenth: 90 ticks of a slow clock are 99 of the store's, 91 are 100.1.
    /// assert_eq!(ShareTiming::least_margin(Nanos(100), Nanos(0), 100_000), Nanos(10));
    /// ```
    #[must_use]
    pub fn least_margin(share_lifetime: Nanos, max_duration: Nanos, drift_ppm: u32) -> Nanos {
        let span = u128::from(share_lifetime.plus(max_duration).0);
        let drift = u128::from(drift_ppm);
        let whole = drift.saturating_add(1_000_000);
        let margin = span.saturating_mul(drift).div_ceil(whole);
        Nanos(u64::try_from(margin).unwrap_or(u64::MAX))
    }

    /// The time for which a replica may use a share, counted from the heartbeat.
    #[must_use]
    pub const fn usable_lifetime(&self) -> Nanos {
        self.share_lifetime.since(self.margin)
    }

    /// The longest time from a replica's last heartbeat to the end of its last request.
    #[must_use]
    pub const fn longest_use(&self) -> Nanos {
        self.share_lifetime.plus(self.max_duration)
    }

    /// The pause between heartbeats of a replica with
    /// too many requests in flight, while others wait.
    ///
    /// It is a twentieth of the heartbeat interval. It is also the longest pause
    /// of a replica that waits for others; [`ShareTiming::short_pause`] is the shortest.
    #[must_use]
    pub const fn debounce(&self) -> Nanos {
        Nanos(self.heartbeat.0.div_ceil(20))
    }

    /// The interval between common heartbeat instants: a tenth less than a heartbeat.
    ///
    /// A joining replica waits for half of it on average. With its own messages this
    /// makes half a heartbeat, plus the time for the requests of others to end.
    #[must_use]
    pub const fn period(&self) -> Nanos {
        self.heartbeat.since(self.debounce()).since(self.debounce())
    }

    /// The pause between heartbeats of a replica that expects a change soon.
    ///
    /// It is a hundredth of the heartbeat interval. Common
    /// instants of two replicas differ by at most this.
    #[must_use]
    pub const fn short_pause(&self) -> Nanos {
        Nanos(self.heartbeat.0.div_ceil(100))
    }

    /// The interval between vote counts: one period to announce the limit, one to collect votes.
    ///
    /// It is less than two heartbeats, because replicas send slightly early or late.
    #[must_use]
    pub const fn vote_interval(&self) -> Nanos {
        Nanos(self.heartbeat.0.saturating_mul(7).div_ceil(4))
    }

    /// The turn of a replica if the limit is smaller than the fleet.
    #[must_use]
    pub const fn turn_duration(&self) -> Nanos {
        Nanos(self.heartbeat.0.saturating_mul(4))
    }
}

/// The configuration of a fleet-wide limit for its coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoordinatorConfig {
    /// The timing.
    pub timing: ShareTiming,
    /// The least limit; at least 1.
    pub min: Share,
    /// The initial limit.
    pub start: Share,
    /// The largest limit; if `min` is equal, the limit is static.
    pub max: Share,
    /// The rule that combines the replicas' votes.
    pub aggregate: VoteAggregate,
    /// The rule that divides the limit into shares.
    pub split: SplitMode,
}

impl CoordinatorConfig {
    /// A configuration with the default aggregate (lower median) and split (demand).
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
        let (aggregate, split) = (VoteAggregate::default(), SplitMode::default());
        Ok(Self { timing, min, start, max, aggregate, split })
    }
}
