//! Makes the store calls of one check under envoyproxy/ratelimit's keys, and converts the replies
//! into charge outcomes.
//!
//! Guarantees:
//! - A counter in the deny cache causes no store call.
//! - Charges of one slot share a call; calls to several slots run concurrently.
//!
//! Not covered:
//! - Sending commands to Redis ([`super::send`]).

use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::deny_cache::{DenyCacheLookup, KeyDenial};
use super::send::CounterReply;
use super::{CompatCounter, CompatCounters, DecidingStep};
use crate::kernel::decision::{Verdict, VoteGroup, combine};
use crate::kernel::rate::CounterDecision;
use crate::kernel::units::{Hits, Nanos};
use crate::store::redis::RedisStore;
use crate::store::{Charge, ChargeMode, ChargeOutcome, Charges, CounterHits, Outcomes};

pub(super) struct CompatCheck<'q> {
    pub(super) reference: &'q CompatCounters,
    pub(super) redis: &'q RedisStore,
    pub(super) now: Nanos,
    pub(super) charges: &'q Charges,
    pub(super) counters: &'q [CompatCounter],
    pub(super) deciding_step: DecidingStep,
    pub(super) call_timeout: Duration,
}

/// Indices of some charges of the check.
pub(super) type CounterIndexes = SmallVec<[usize; 2]>;

pub(super) type CounterReplies = SmallVec<[CounterReply; 2]>;

type DenyCacheLookups = SmallVec<[DenyCacheLookup; 2]>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SendMode {
    /// Charge in a pipeline, as envoyproxy/ratelimit does.
    Charge,
    /// Charge 0 hits in a pipeline, because the deny cache already denies the check.
    ChargeNothing,
    /// Read the counters in a pipeline, without charging them.
    Read,
    /// Decide and charge in the script `reference.lua`, with this mode argument.
    Script(&'static str),
}

impl CompatCheck<'_> {
    pub(super) async fn charge(&self) -> Outcomes {
        let _refund_guard = RefundGuard::begin(self);
        let lookups: DenyCacheLookups = self.counters.iter().map(|it| self.look_up(it)).collect();
        let is_cached_denial: SmallVec<[bool; 2]> =
            lookups.iter().map(|look| look.is_over).collect();
        let uncached_indexes: CounterIndexes =
            (0..is_cached_denial.len()).filter(|&place| !is_cached_denial[place]).collect();
        let mut outcomes: Outcomes =
            self.counters.iter().map(|it| it.cached_denial(self.now)).collect();
        if uncached_indexes.is_empty() {
            return outcomes;
        }
        let send_mode = self.send_mode(&is_cached_denial);
        let parts = self.group_by_slot(&uncached_indexes);
        let calls = parts.iter().map(|(slot, places)| self.call(*slot, places, send_mode));
        for ((_, places), replies) in parts.iter().zip(join_all(calls).await) {
            for (&place, reply) in places.iter().zip(replies) {
                outcomes[place] = self.apply_reply(place, reply, lookups[place]);
            }
        }
        outcomes
    }

    /// Groups the charges with these indices by the Cluster slot of their keys. Outside a Cluster
    /// there is one group.
    fn group_by_slot(&self, indexes: &[usize]) -> SmallVec<[(u16, CounterIndexes); 1]> {
        let mut parts: SmallVec<[(u16, CounterIndexes); 1]> = SmallVec::new();
        for &place in indexes {
            let slot = self.redis.route.slot_of(&self.counters[place].key);
            match parts.iter_mut().find(|(of, _)| *of == slot) {
                Some((_, places)) => places.push(place),
                None => parts.push((slot, SmallVec::from_elem(place, 1))),
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

    /// Chooses how to send the charges without a cached denial. The argument is true for each
    /// charge with a cached denial.
    fn send_mode(&self, is_cached_denial: &[bool]) -> SendMode {
        let stops = self.reference.options.stop_when_over;
        let is_denied =
            is_cached_denial.contains(&true) && self.is_denied_by_cache(is_cached_denial);
        match self.charges.mode {
            ChargeMode::Preview => SendMode::Read,
            ChargeMode::Each if !stops || self.deciding_step == DecidingStep::AnEarlierOne => {
                SendMode::Charge
            }
            ChargeMode::Each if is_denied => SendMode::ChargeNothing,
            // A check with a single charge has no other charges to skip, so it needs no script.
            ChargeMode::Each if self.charges.list.len() == 1 => SendMode::Charge,
            ChargeMode::AllOrNothing { .. } if is_denied => SendMode::Read,
            ChargeMode::Each | ChargeMode::AllOrNothing { .. } => {
                SendMode::Script(self.script_mode(is_cached_denial))
            }
        }
    }

    fn is_denied_by_cache(&self, is_cached_denial: &[bool]) -> bool {
        let votes = self.charges.list.iter().zip(is_cached_denial).map(|(charge, known)| {
            (charge.standing.group, charge.standing.enforced_verdict(*known))
        });
        let (quota_for_all, rescued) = self.quota_flags();
        let passed = rescued.then_some((VoteGroup::Quota, Verdict::Allow));
        combine(votes.chain(passed), quota_for_all) == Verdict::Deny
    }

    const fn quota_flags(&self) -> (bool, bool) {
        match self.charges.mode {
            ChargeMode::AllOrNothing { quota_for_all, quota_cannot_deny: rescued } => {
                (quota_for_all, rescued)
            }
            ChargeMode::Each | ChargeMode::Preview => (self.reference.options.quota_for_all, false),
        }
    }

    /// Returns the mode argument of `reference.lua`.
    fn script_mode(&self, is_cached_denial: &[bool]) -> &'static str {
        let (quota_for_all, rescued) = self.quota_flags();
        // The script does not receive charges with a cached denial. A limit in shadow mode among
        // them allows the check, so the quota group must not deny it.
        let passes = |(charge, known): (&Charge, &bool)| {
            let in_group = quota_for_all || charge.standing.group == VoteGroup::Quota;
            *known && in_group && charge.standing.shadow
        };
        let rescued = rescued || self.charges.list.iter().zip(is_cached_denial).any(passes);
        match (self.charges.mode, quota_for_all, rescued) {
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
        place: usize,
        reply: CounterReply,
        before: DenyCacheLookup,
    ) -> ChargeOutcome {
        let (counter, now) = (&self.counters[place], self.now);
        if let CounterReply::Charged(held)
        | CounterReply::Skipped(held)
        | CounterReply::OverLimit(held) = reply
            && u64::from(counter.window.limit()) < held
        {
            let over = KeyDenial {
                limit: self.reference.cache_limit(counter),
                end: self.denial_expiry(counter),
            };
            self.reference.deny_cache.insert(&counter.key, over, now, before);
        }
        let hits_of = |held| CounterHits { hits: held, is_cached_denial: false };
        match reply {
            CounterReply::Charged(held) => {
                ChargeOutcome::Counted(counter.step_after_charge(held, now), hits_of(held))
            }
            CounterReply::Skipped(held) => {
                ChargeOutcome::Counted(counter.preview_step(held, now, Hits(0)), hits_of(held))
            }
            CounterReply::OverLimit(held) => {
                let together = self.hits_through(place);
                ChargeOutcome::Counted(
                    counter.preview_step(held, now, together),
                    hits_of(held.saturating_add(together.0)),
                )
            }
            CounterReply::Refunded(held) => {
                ChargeOutcome::Refunded(CounterDecision::Allow(counter.headroom_at(held, now)))
            }
            CounterReply::Failed(cause) => ChargeOutcome::Failed(cause),
        }
    }

    /// Returns the instant until which a denial may be cached. If several calls decide the check,
    /// its hits may be refunded, so the denial is cached for at most the lifetime of a reservation.
    fn denial_expiry(&self, counter: &CompatCounter) -> Nanos {
        let is_for_itself = matches!(self.charges.mode, ChargeMode::Each);
        if is_for_itself && self.deciding_step == DecidingStep::ThisOne {
            return counter.end;
        }
        counter.end.min(self.now.plus(self.redis.reservation_client.lifetime()))
    }

    /// Returns the hits of the charge with this index plus those of all earlier charges of the
    /// check to the same counter.
    pub(super) fn hits_through(&self, index: usize) -> Hits {
        let own = &self.counters[index];
        let earlier = self.counters.iter().take(index);
        let same = earlier.filter(|it| it.key == own.key && !it.is_refund);
        same.fold(own.hits, |sum, it| sum.plus(it.hits))
    }
}

/// A guard that drops refunded counters from the deny cache when the check begins and when it ends.
///
/// Another check may cache a denial from before the refund while this check waits. Dropping the
/// guard also covers a canceled check, whose refund Redis may already have made.
struct RefundGuard<'q>(&'q CompatCheck<'q>);

impl<'q> RefundGuard<'q> {
    fn begin(check: &'q CompatCheck<'q>) -> Self {
        check.invalidate_refunded();
        Self(check)
    }
}

impl Drop for RefundGuard<'_> {
    fn drop(&mut self) {
        self.0.invalidate_refunded();
    }
}
