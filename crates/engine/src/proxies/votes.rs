//! The votes of proxies on adaptive limits. The proxies of a replica have one vote together.
//!
//! Guarantees:
//! - Invented proxies cannot outvote other replicas.
//!
//! Not covered:
//! - Honest proxies of the same replica: the median of its proxies may be wrong.

use std::collections::{BTreeMap, HashMap};

use crate::kernel::coordinator::aggregate::LimitFactor;
use crate::kernel::lease::ReplicaIncarnation;
use crate::kernel::units::Nanos;

/// The number of heartbeat intervals for which a vote counts.
const VOTE_HEARTBEATS: u64 = 4;

/// The time after which the votes on a limit are removed: no shorter than that for which one
/// counts.
const LONGEST_KEPT: Nanos = Nanos::from_secs(600);

/// The last votes of all proxies, by the hash of the bucket.
#[derive(Debug, Default)]
pub(super) struct ProxyVotes(HashMap<u64, BTreeMap<ReplicaIncarnation, (LimitFactor, Nanos)>>);

impl ProxyVotes {
    /// Records a vote. Returns the lower median of the recent votes if this proxy reports it for
    /// all: the proxy with the smallest incarnation does.
    pub(super) fn fold(
        &mut self,
        bucket: u64,
        proxy: ReplicaIncarnation,
        vote: (LimitFactor, Nanos),
        heartbeat: Nanos,
    ) -> Option<LimitFactor> {
        let (_, now) = vote;
        let votes = self.0.entry(bucket).or_default();
        votes.insert(proxy, vote);
        let longest = Nanos(heartbeat.0.saturating_mul(VOTE_HEARTBEATS));
        votes.retain(|_, (_, at)| now.since(*at) <= longest);
        let reports = votes.first_key_value().is_some_and(|(first, _)| *first == proxy);
        let mut factors: Vec<_> = votes.values().map(|(factor, _)| *factor).collect();
        factors.sort_unstable();
        let median = factors.get(factors.len().saturating_sub(1) / 2).copied();
        median.filter(|_| reports)
    }

    /// Removes the limits without a recent vote.
    pub(super) fn sweep(&mut self, now: Nanos) {
        let is_recent = |(_, at): &(LimitFactor, Nanos)| now.since(*at) <= LONGEST_KEPT;
        self.0.retain(|_, votes| votes.values().any(is_recent));
    }

    /// Removes the votes of a proxy whose stream ended.
    pub(super) fn remove(&mut self, proxy: ReplicaIncarnation) {
        self.0.retain(|_, votes| {
            votes.remove(&proxy);
            !votes.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxies_of_a_replica_have_one_vote() {
        let (mut votes, second) = (ProxyVotes::default(), Nanos::SECOND);
        let mut fold = |proxy, factor, at| {
            let vote = (LimitFactor(factor), Nanos::from_secs(at));
            votes.fold(1, ReplicaIncarnation(proxy), vote, second)
        };
        assert_eq!(fold(5, 60_000, 0), Some(LimitFactor(60_000)));
        assert_eq!(fold(7, 10, 0), None);
        assert_eq!(fold(9, 20, 0), None);
        assert_eq!(fold(5, 60_000, 1), Some(LimitFactor(20)), "the median");
        // The votes of the first proxy are over: the next one reports.
        assert_eq!(fold(7, 10, 6), Some(LimitFactor(10)));
        votes.sweep(Nanos::from_secs(606));
        assert_eq!(votes.0.len(), 1);
        votes.sweep(Nanos::from_secs(607));
        assert!(votes.0.is_empty(), "a proxy on a long stream votes on many limits");
    }
}
