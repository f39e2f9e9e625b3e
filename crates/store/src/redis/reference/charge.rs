//! Makes the store calls of one check under envoyproxy/ratelimit's keys, and decodes the replies.
//!
//! Guarantees:
//! - A counter in the deny cache causes no store call.
//! - Charges of one slot share a call; calls to several slots run concurrently.

use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::check::{CompatCheck, CounterIndexes, CounterReply, SendMode};
use super::deny_cache::{DenyCacheLookup, KeyDenial};
use super::{CompatCounter, CompatCounters, DecidingStep};
use crate::kernel::decision::{Verdict, VoteGroup, combine};
use crate::kernel::rate::CounterDecision;
use crate::kernel::units::{Hits, Nanos};
use crate::redis::RedisStore;
use crate::redis::outcome::all_failed;
use crate::{Charge, ChargeMode, ChargeOutcome, Charges, CounterHits, Outcomes, StoreFailure};

type DenyCacheLookups = SmallVec<[DenyCacheLookup; 2]>;

impl CompatCounters {
    /// Makes `charges`, all under keys of envoyproxy/ratelimit, with `call_timeout` for each call.
    pub(in crate::redis) async fn charge(
        &self,
        redis: &RedisStore,
        now: Nanos,
        charges: &Charges,
        deciding_step: DecidingStep,
        call_timeout: Duration,
    ) -> Outcomes {
        let counters: SmallVec<[CompatCounter; 2]> =
            charges.list.iter().filter_map(|charge| self.to_counter(charge, now)).collect();
        if counters.len() != charges.list.len() {
            return all_failed(charges, StoreFailure::InvalidReply);
        }
        let counters = &counters[..];
        let check = CompatCheck {
            reference: self,
            redis,
            now,
            charges,
            counters,
            deciding_step,
            call_timeout,
        };
        check.charge().await
    }
}

impl CompatCheck<'_> {
    async fn charge(&self) -> Outcomes {
        let _refund_guard = RefundGuard::begin(self);
        let lookups: DenyCacheLookups =
            self.counters.iter().map(|counter| self.look_up(counter)).collect();
        let is_cached_denial: SmallVec<[bool; 2]> =
            lookups.iter().map(|lookup| lookup.is_denied).collect();
        let uncached: CounterIndexes =
            (0..is_cached_denial.len()).filter(|&index| !is_cached_denial[index]).collect();
        let mut outcomes: Outcomes =
            self.counters.iter().map(|counter| counter.cached_denial(self.now)).collect();
        if uncached.is_empty() {
            return outcomes;
        }
        let send_mode = self.send_mode(&is_cached_denial);
        let parts = self.group_by_slot(&uncached);
        let calls = parts.iter().map(|(slot, indexes)| self.call(*slot, indexes, send_mode));
        for ((_, indexes), replies) in parts.iter().zip(join_all(calls).await) {
            for (&index, reply) in indexes.iter().zip(replies) {
                outcomes[index] = self.apply_reply(index, reply, lookups[index]);
            }
        }
        outcomes
    }

    /// Groups the charges at `indexes` by the Cluster slot of their keys, behind a proxy by key;
    /// else one group.
    fn group_by_slot(&self, indexes: &[usize]) -> SmallVec<[(u16, CounterIndexes); 1]> {
        let mut parts: SmallVec<[(u16, CounterIndexes); 1]> = SmallVec::new();
        let keys: SmallVec<[&[u8]; 2]> =
            indexes.iter().map(|&index| &*self.counters[index].key).collect();
        for (&index, slot) in indexes.iter().zip(self.redis.route.group_keys(&keys)) {
            match parts.iter_mut().find(|(part_slot, _)| *part_slot == slot) {
                Some((_, part_indexes)) => part_indexes.push(index),
                None => parts.push((slot, SmallVec::from_elem(index, 1))),
            }
        }
        parts
    }

    fn look_up(&self, counter: &CompatCounter) -> DenyCacheLookup {
        if counter.is_refund {
            return DenyCacheLookup::default();
        }
        self.reference.deny_cache.look_up(
            &counter.key,
            self.reference.cache_limit(counter),
            self.now,
        )
    }

    fn invalidate_refunded(&self) {
        for counter in self.counters.iter().filter(|counter| counter.is_refund) {
            self.reference.deny_cache.invalidate(&counter.key);
        }
    }

    /// Chooses how to send the uncached charges; the flags mark charges with a cached denial.
    fn send_mode(&self, is_cached_denial: &[bool]) -> SendMode {
        let skips = self.reference.options.stop_when_over;
        let is_denied =
            is_cached_denial.contains(&true) && self.is_denied_by_cache(is_cached_denial);
        match self.charges.mode {
            ChargeMode::Preview => SendMode::Read,
            ChargeMode::Each if !skips || self.deciding_step == DecidingStep::EarlierCall => {
                SendMode::Charge
            }
            ChargeMode::Each if is_denied => SendMode::ChargeNothing,
            // A single charge has no other charges to skip, so it needs no script.
            ChargeMode::Each if self.charges.list.len() == 1 => SendMode::Charge,
            ChargeMode::AllOrNothing { .. } if is_denied => SendMode::Read,
            ChargeMode::Each | ChargeMode::AllOrNothing { .. } => {
                SendMode::Script(self.script_mode(is_cached_denial))
            }
        }
    }

    fn is_denied_by_cache(&self, is_cached_denial: &[bool]) -> bool {
        let votes = self.charges.list.iter().zip(is_cached_denial).map(|(charge, is_denied)| {
            (charge.standing.group, charge.standing.enforced_verdict(*is_denied))
        });
        let (quota_for_all, quota_cannot_deny) = self.quota_flags();
        let quota_vote = quota_cannot_deny.then_some((VoteGroup::Quota, Verdict::Allow));
        combine(votes.chain(quota_vote), quota_for_all) == Verdict::Deny
    }

    const fn quota_flags(&self) -> (bool, bool) {
        match self.charges.mode {
            ChargeMode::AllOrNothing { quota_for_all, quota_cannot_deny } => {
                (quota_for_all, quota_cannot_deny)
            }
            ChargeMode::Each | ChargeMode::Preview => (self.reference.options.quota_for_all, false),
        }
    }

    /// Returns the mode argument of `reference.lua`.
    fn script_mode(&self, is_cached_denial: &[bool]) -> &'static str {
        let (quota_for_all, quota_cannot_deny) = self.quota_flags();
        // The script does not receive charges with a cached denial. Among them, a limit in shadow
        // mode allows the check, so the quota group must not deny it.
        let keeps_quota = |(charge, is_denied): (&Charge, &bool)| {
            let is_in_group = quota_for_all || charge.standing.group == VoteGroup::Quota;
            *is_denied && is_in_group && charge.standing.shadow
        };
        let quota_cannot_deny =
            quota_cannot_deny || self.charges.list.iter().zip(is_cached_denial).any(keeps_quota);
        match (self.charges.mode, quota_for_all, quota_cannot_deny) {
            (ChargeMode::AllOrNothing { .. }, false, false) => "a",
            (ChargeMode::AllOrNothing { .. }, false, true) => "ar",
            (ChargeMode::AllOrNothing { .. }, true, false) => "aq",
            (ChargeMode::AllOrNothing { .. }, true, true) => "aqr",
            (ChargeMode::Each | ChargeMode::Preview, false, false) => "s",
            (ChargeMode::Each | ChargeMode::Preview, false, true) => "sr",
            (ChargeMode::Each | ChargeMode::Preview, true, false) => "sq",
            (ChargeMode::Each | ChargeMode::Preview, true, true) => "sqr",
        }
    }

    fn apply_reply(
        &self,
        index: usize,
        reply: CounterReply,
        lookup: DenyCacheLookup,
    ) -> ChargeOutcome {
        let (counter, now) = (&self.counters[index], self.now);
        if let CounterReply::Charged(hits)
        | CounterReply::Skipped(hits)
        | CounterReply::OverLimit(hits) = reply
            && u64::from(counter.window.limit()) < hits
        {
            let denial = KeyDenial { limit: self.reference.cache_limit(counter), end: counter.end };
            self.reference.deny_cache.insert(&counter.key, denial, now, lookup);
        }
        let to_outcome = |decision, hits| {
            ChargeOutcome::Counted(decision, CounterHits { hits, is_cached_denial: false })
        };
        match reply {
            CounterReply::Charged(hits) => to_outcome(counter.decision_after(hits, now), hits),
            CounterReply::Skipped(hits) => {
                to_outcome(counter.preview_charge(hits, now, Hits(0)), hits)
            }
            CounterReply::OverLimit(hits) => {
                let total = self.hits_through(index);
                let decision = counter.preview_charge(hits, now, total);
                to_outcome(decision, hits.saturating_add(total.0))
            }
            CounterReply::Refunded(hits) => {
                ChargeOutcome::Refunded(CounterDecision::Allow(counter.headroom_at(hits, now)))
            }
            CounterReply::Failed(cause) => ChargeOutcome::Failed(cause),
        }
    }
}

/// A guard that drops refunded counters from the deny cache when the check begins and when it ends
/// or is canceled: meanwhile another check may cache a denial from before the refund.
struct RefundGuard<'c>(&'c CompatCheck<'c>);

impl<'c> RefundGuard<'c> {
    fn begin(check: &'c CompatCheck<'c>) -> Self {
        check.invalidate_refunded();
        Self(check)
    }
}

impl Drop for RefundGuard<'_> {
    fn drop(&mut self) {
        self.0.invalidate_refunded();
    }
}
