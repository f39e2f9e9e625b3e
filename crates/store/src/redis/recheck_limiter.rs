//! Limits the rechecks of denials.
//!
//! Guarantees:
//! - Within one reservation lifetime, a counter has at most one recheck and a replica at most
//!   [`MAX_RECHECKS`].
//!
//! Not covered:
//! - Fairness. Counters with the same hash share one recheck, so a counter may wait several
//!   reservation lifetimes.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::kernel::key::CounterKey;
use crate::kernel::units::Nanos;

/// The most rechecks of this process in one reservation lifetime. So many rechecks take a few
/// milliseconds of Redis' time.
const MAX_RECHECKS: usize = 256;

/// The time of the last recheck, by the hash of the counter.
#[derive(Debug)]
pub(super) struct RecheckLimiter {
    last_rechecks: [AtomicU64; MAX_RECHECKS],
    random: RandomState,
}

impl Default for RecheckLimiter {
    fn default() -> Self {
        Self {
            last_rechecks: [const { AtomicU64::new(0) }; MAX_RECHECKS],
            random: RandomState::new(),
        }
    }
}

impl RecheckLimiter {
    /// Returns `true` if a recheck of `key` is due at `now`, and then records the recheck as done.
    /// It is due once in each reservation lifetime.
    pub(super) fn try_claim(&self, key: &CounterKey, now: Nanos, term: Nanos) -> bool {
        let place = self.random.hash_one(key.as_bytes()) % MAX_RECHECKS as u64;
        let last_recheck = &self.last_rechecks[usize::try_from(place).unwrap_or(0)];
        let last = last_recheck.load(Relaxed);
        let is_due = last == 0 || term <= now.since(Nanos(last));
        is_due && last_recheck.compare_exchange(last, now.0.max(1), Relaxed, Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_RECHECKS, RecheckLimiter};
    use crate::kernel::key::{CounterKey, KeyStrategy};
    use crate::kernel::units::Nanos;

    fn key(name: &str) -> CounterKey {
        CounterKey::unique("d", [("k", name)].into_iter(), KeyStrategy::Gcra)
    }

    #[test]
    fn a_counter_is_rechecked_once_per_reservation_lifetime() {
        let (overdue, term) = (RecheckLimiter::default(), Nanos(10));
        let due = |now| overdue.try_claim(&key("a"), Nanos(now), term);
        assert_eq!([0, 1, 10, 11, 20, 21].map(due), [true, false, false, true, false, true]);
    }

    #[test]
    fn rechecks_per_reservation_lifetime_are_bounded() {
        let overdue = RecheckLimiter::default();
        let due = |name: &u32| overdue.try_claim(&key(&name.to_string()), Nanos(1), Nanos(10));
        let looks = (0..100_000).filter(due).count();
        assert_eq!(looks, MAX_RECHECKS, "of so many each place has some");
    }
}
