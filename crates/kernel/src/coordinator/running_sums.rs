//! Sums over all share states of a limit, so that a usual heartbeat reads only its own share state.
//!
//! Guarantees:
//! - Before [`RunningSums::valid_until`], each sum equals the sum over all share states.
//!
//! Not covered:
//! - Expired share states: the sums become invalid, and the coordinator computes them again.

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use super::share_state::ShareState;
use crate::units::{Nanos, Share};

/// Sums over all share states. While a heartbeat is applied, they exclude its own share state.
///
/// They follow from the share states, so they do not count in comparisons and hashes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct RunningSums {
    /// The instant until which the sums are valid; zero if a share state is not live.
    pub valid_until: Nanos,
    /// At most [`RunningSums::expiring`] share states expire before this instant.
    ///
    /// If that number is zero, the sums are valid until this instant. So if all replicas report in
    /// time, the sums never become invalid.
    pub next_expiry: Nanos,
    /// The limit for which the sums are valid.
    pub limit: Share,
    /// The sum of the exposures.
    pub exposure: Share,
    /// The sum of the demands, each at most the limit.
    pub need: Share,
    /// The permits that count against a decreased limit: the larger of the granted share and the
    /// requests in flight, for each replica that received this limit or a lower one.
    pub used: Share,
    /// The number of replicas with demand.
    pub with_demand: u64,
    /// The number of replicas whose granted share is below their need.
    pub short: u64,
    /// The number of replicas whose granted share is zero.
    pub without_share: u64,
    /// The largest possible number of share states that expire before
    /// [`RunningSums::next_expiry`].
    pub expiring: u64,
    /// The fill level of the last split of a limit that was too small for all needs, see
    /// [`super::split`].
    pub fill_level: Share,
}

impl RunningSums {
    /// Adds a live share state to the sums, or removes it: `change` adds or subtracts.
    ///
    /// Both directions share this function, so a removal subtracts exactly the added numbers.
    pub fn put(&mut self, change: fn(u64, u64) -> u64, state: &ShareState) {
        let need = state.demand.min(self.limit);
        let used = state.granted.share.max(state.in_flight);
        let by = |sum: &mut u64, addend: u64| *sum = change(*sum, addend);
        by(&mut self.exposure.0, state.exposure().0);
        by(&mut self.need.0, need.0);
        by(&mut self.used.0, if state.replied_limit <= self.limit { used.0 } else { 0 });
        by(&mut self.with_demand, u64::from(Share(0) < need));
        by(&mut self.short, u64::from(state.granted.share < need));
        by(&mut self.without_share, u64::from(state.granted.share == Share(0)));
        by(&mut self.expiring, u64::from(state.expires_at < self.next_expiry));
    }

    /// Adds a share state that is not live: its permits may still be in use.
    pub fn put_expired(&mut self, state: &ShareState) {
        self.exposure = self.exposure.plus(state.exposure());
        self.used = self.used.plus(state.exposure());
    }

    /// Extends the validity to the next expiry, once all share states that expired before it were
    /// renewed. Then the next expiry is that of `own`.
    ///
    /// Each of the `others` counts as expiring before it. If one of them does not, the sums only
    /// become invalid earlier than necessary.
    pub fn extend(&mut self, own: &ShareState, others: u64) {
        if self.expiring == 0 && Nanos(0) < self.valid_until {
            self.valid_until = self.valid_until.max(self.next_expiry);
            (self.next_expiry, self.expiring) = (own.expires_at, others);
        }
    }
}

impl PartialEq for RunningSums {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for RunningSums {}

impl Hash for RunningSums {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
