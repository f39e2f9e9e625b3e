//! The times and bounds that a ceiling's coordinator and members agree on.
//!
//! Guarantees: a [`Terms`] from [`Terms::new`] fences every member before its exposure is let go.
//! Leaves out: whether two members were given the same; each heartbeat is judged by the law that
//! came with it, and a safe law after a safe law is safe.

use thiserror::Error;

use super::aggregate::Aggregate;
use super::split::Split;
use crate::kernel::units::{Nanos, Share};

/// The largest ceiling: products with ratios stay below 2^53, exact in the store's doubles.
pub const MOST: Share = Share(1 << 24);

/// How long things last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// From one heartbeat to the next when nothing is urgent.
    pub heartbeat: Nanos,
    /// How long a share is good, from the heartbeat that asked for it.
    pub term: Nanos,
    /// How much sooner than the term a member stops.
    pub margin: Nanos,
    /// The longest a request may go on after it was admitted.
    pub max_duration: Nanos,
}

/// Why terms or a law cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TermsError {
    /// Members would be fenced although nothing is wrong.
    #[error(
        "a term of {term} less its margin {margin} is over before a second heartbeat of {heartbeat} can be missed; use a term of at least {least}"
    )]
    TermTooShort {
        /// The term asked for.
        term: Nanos,
        /// What drift takes off it.
        margin: Nanos,
        /// The heartbeat asked for.
        heartbeat: Nanos,
        /// A term that would do.
        least: Nanos,
    },
    /// No heartbeat at all.
    #[error("a heartbeat of 0 would never end")]
    NoHeartbeat,
    /// The ceiling's bounds contradict each other.
    #[error(
        "a ceiling starts at {start} between {min} and {max}; wanted 1 <= min <= start <= max <= {MOST}"
    )]
    Bounds {
        /// The least ceiling.
        min: Share,
        /// Where it starts.
        start: Share,
        /// The largest ceiling.
        max: Share,
    },
}

impl Terms {
    /// Terms with the least margin that holds while clocks differ by `drift_ppm` parts in a million.
    ///
    /// # Errors
    /// A heartbeat of zero, or a term that is not two heartbeats longer than its margin.
    pub fn new(
        heartbeat: Nanos,
        term: Nanos,
        max_duration: Nanos,
        drift_ppm: u32,
    ) -> Result<Self, TermsError> {
        if heartbeat == Nanos(0) {
            return Err(TermsError::NoHeartbeat);
        }
        let margin = Self::least_margin(term, max_duration, drift_ppm);
        let least = margin.plus(heartbeat).plus(heartbeat);
        if term < least {
            return Err(TermsError::TermTooShort { term, margin, heartbeat, least });
        }
        Ok(Self { heartbeat, term, margin, max_duration })
    }

    /// The least margin: ⌈(term + `max_duration`)·d / (1 + d)⌉, with d the drift.
    ///
    /// A member whose clock is slow by d takes (term − margin + `max_duration`)·(1 + d) of the
    /// store's time to be rid of its last request; that may be term + `max_duration` at most.
    ///
    /// ```
    /// use sluicegate::kernel::coordinator::Terms;
    /// use sluicegate::kernel::units::Nanos;
    /// // A tenth: 90 ticks of a slow clock are 99 of the store's, 91 are 100.1.
    /// assert_eq!(Terms::least_margin(Nanos(100), Nanos(0), 100_000), Nanos(10));
    /// ```
    #[must_use]
    pub fn least_margin(term: Nanos, max_duration: Nanos, drift_ppm: u32) -> Nanos {
        let span = u128::from(term.plus(max_duration).0);
        let drift = u128::from(drift_ppm);
        let whole = drift.saturating_add(1_000_000);
        let margin = span.saturating_mul(drift).div_ceil(whole);
        Nanos(u64::try_from(margin).unwrap_or(u64::MAX))
    }

    /// How long a member may use a share, from the heartbeat that asked for it.
    #[must_use]
    pub const fn usable(&self) -> Nanos {
        self.term.since(self.margin)
    }

    /// How long after a member was last heard its last request has ended.
    #[must_use]
    pub const fn longest(&self) -> Nanos {
        self.term.plus(self.max_duration)
    }

    /// How long one lets pass between two heartbeats who has too much in flight for what others wait for, and at most who waits for
    /// others ([`Terms::moment`] at least): a twentieth of the usual.
    #[must_use]
    pub const fn debounce(&self) -> Nanos {
        Nanos(self.heartbeat.0.div_ceil(20))
    }

    /// From one of the instants at which all members speak to the next: a tenth less than a heartbeat, so that half of it
    /// and what a joiner waits for besides the others' requests, some looks and messages, are half a heartbeat together.
    #[must_use]
    pub const fn period(&self) -> Nanos {
        self.heartbeat.since(self.debounce()).since(self.debounce())
    }

    /// The pause between two heartbeats of one who waits for something that is about to come, and by how much two members may
    /// differ in what they take for an instant at which all speak: a hundredth of the usual.
    #[must_use]
    pub const fn moment(&self) -> Nanos {
        Nanos(self.heartbeat.0.div_ceil(100))
    }

    /// How long after the votes were counted they are again: one period to tell all of the new ceiling, one to hear what they make
    /// of it. Less than both, as each speaks a little sooner or later.
    #[must_use]
    pub const fn two_periods(&self) -> Nanos {
        Nanos(self.heartbeat.0.saturating_mul(7).div_ceil(4))
    }

    /// How long a member keeps its turn where the ceiling is smaller than the fleet.
    #[must_use]
    pub const fn stint(&self) -> Nanos {
        Nanos(self.heartbeat.0.saturating_mul(4))
    }
}

/// All that a ceiling's coordinator is told besides the heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Law {
    /// How long things last.
    pub terms: Terms,
    /// The least ceiling; at least 1.
    pub min: Share,
    /// Where the ceiling starts.
    pub start: Share,
    /// The largest ceiling; with `min` equal to it the ceiling is static.
    pub max: Share,
    /// How the members' ratios become one.
    pub aggregate: Aggregate,
    /// How the ceiling becomes shares.
    pub split: Split,
}

impl Law {
    /// A law whose ceiling starts at `start` and stays between `min` and `max`; ratios are folded
    /// by the lower median and shares follow demand.
    ///
    /// # Errors
    /// Bounds that contradict each other or do not fit.
    pub fn new(terms: Terms, min: Share, start: Share, max: Share) -> Result<Self, TermsError> {
        let ordered = Share(1) <= min && min <= start && start <= max && max <= MOST;
        if !ordered {
            return Err(TermsError::Bounds { min, start, max });
        }
        let (aggregate, split) = (Aggregate::default(), Split::default());
        Ok(Self { terms, min, start, max, aggregate, split })
    }
}
