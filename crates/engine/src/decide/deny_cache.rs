//! The deny cache: remembers denials of shared counters, so that retries need no store call.
//!
//! Guarantees:
//! - Only limits with `mode: cached_deny` are cached.
//! - The store would deny too, unless another replica refunded hits or changed the limit.
//! - A denial ends when its hits would be allowed, counted from the sending of the charge.
//! - A denial applies to checks of as many hits or more, never to 0 hits or refunds.
//! - With `on_excess: charge`, a denial decides only checks of 0 hits; other checks are charged.
//! - A new configuration ends all denials; a refund through this replica ends those of its counter.
//! - The cache has at most 65,536 counters (12 MB). A full shard evicts the denial that ends first.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use smallvec::SmallVec;

use crate::config::LimitMode;
use crate::decide::charge_decision::ChargeDecision;
use crate::decide::limit_plan::LimitPlan;
use crate::decide::plan::CheckPlan;
use crate::kernel::decision::{Cost, VoteGroup};
use crate::kernel::key::CounterKey;
use crate::kernel::rate::{CounterDecision, Headroom, Strategy};
use crate::kernel::units::{Hits, Nanos, Revision};
use crate::store::{Charge, ChargeMode, ChargeOutcome, Outcomes, StoreFailure};
use crate::telemetry::event::{DenialsFromCache, Event as _};
use sluicegate_lease::charge_subset::ChargeSubset;

const SHARDS: usize = 4096;

/// The largest number of counters in a shard. Small, because a lookup searches linearly.
const COUNTERS_PER_SHARD: usize = 16;

#[derive(Debug)]
pub(crate) struct DenyCache {
    shards: Box<[Mutex<DenialShard>]>,
    /// `true` after the first cached denial. Until then, refunds skip the cache.
    has_denials: AtomicBool,
    /// Hash key, random for each process: no client can choose counter keys that fall into one
    /// shard.
    secret: [u8; 16],
}

pub(crate) enum DenyLookup {
    All(SmallVec<[ChargeDecision; 2]>),
    /// Some charges have no cached denial and need a store call.
    Partial(Box<PartialDecision>),
}

pub(crate) struct PartialDecision {
    /// One outcome for each charge; a placeholder failure for the charges `to_send`.
    pub(crate) outcomes: Outcomes,
    pub(crate) to_send: ChargeSubset,
}

#[derive(Debug, Default)]
struct DenialShard {
    denials: Vec<CounterDenial>,
    /// The time of the last refund to a counter of this shard. A denial of a check that was sent
    /// before is not cached, because it may have missed the refunded hits.
    last_refund: Nanos,
}

#[derive(Debug)]
struct CounterDenial {
    hash: [u64; 2],
    /// The configuration revision and the limit's strategy at the denial.
    under: (Revision, Strategy),
    denial: RememberedDenial,
}

/// One denial of a counter. All instants are on this process's clock.
#[derive(Clone, Copy, Debug)]
struct RememberedDenial {
    hits: Hits,
    /// The denial is used until this instant, the earliest at which the hits may be allowed. It
    /// counts from the sending of the charge.
    ends_at: Nanos,
    /// The latest instant at which the hits are allowed without other traffic. A retry-after points
    /// here, so that no client retries too early.
    allowed_at: Nanos,
    remaining: Hits,
    resets_at: Nanos,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreCallTimes {
    pub(crate) sent_at: Nanos,
    pub(crate) replied_at: Nanos,
    pub(crate) revision: Revision,
}

impl DenyCache {
    pub(crate) fn new() -> Self {
        let random = RandomState::new();
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&random.hash_one(0_u8).to_le_bytes());
        secret[8..].copy_from_slice(&random.hash_one(1_u8).to_le_bytes());
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, has_denials: AtomicBool::new(false), secret }
    }

    /// Returns `true` if the check has a limit with `mode: cached_deny`, or a refund that may end a
    /// cached denial.
    pub(crate) fn needs_lookup(&self, plan: &CheckPlan<'_>) -> bool {
        let refunds = || plan.charges.list.iter().any(|c| matches!(c.cost, Cost::Refund(_)));
        plan.limits.iter().any(is_cached) || self.has_denials.load(Relaxed) && refunds()
    }

    /// Looks up a cached denial for each charge of `plan`. A refund ends the denial of its counter.
    pub(crate) fn look_up(
        &self,
        plan: &CheckPlan<'_>,
        revision: Revision,
        now: Nanos,
    ) -> DenyLookup {
        let cached_denials: SmallVec<[Option<ChargeOutcome>; 2]> = charges_with_parts(plan)
            .map(|(part, charge)| self.cached_denial(part, charge, revision, now))
            .collect();
        let lookup = match plan.charges.mode {
            ChargeMode::Each | ChargeMode::Preview => with_misses(plan, &cached_denials),
            ChargeMode::AllOrNothing { quota_for_all, .. } => {
                deny_whole_check(plan, &cached_denials, quota_for_all)
                    .unwrap_or_else(|| with_misses(plan, &[]))
            }
        };
        let denials = lookup.denial_count();
        if denials != 0 {
            DenialsFromCache { denials }.emit();
        }
        lookup
    }

    /// Caches the denials in `outcomes` for the charges `sent` in this store call.
    pub(crate) fn record_outcomes(
        &self,
        plan: &CheckPlan<'_>,
        sent: &ChargeSubset,
        outcomes: &[ChargeOutcome],
        call: StoreCallTimes,
    ) {
        for (index, (descriptor, charge)) in charges_with_parts(plan).enumerate() {
            let outcome = outcomes.get(index);
            match (charge.cost, outcome) {
                (Cost::Refund(_), _) => self.remove(&charge.key, call.replied_at),
                (
                    Cost::Charge(hits),
                    Some(
                        ChargeOutcome::Decided(CounterDecision::Deny {
                            retry_after,
                            headroom: room,
                        })
                        | ChargeOutcome::Counted(
                            CounterDecision::Deny { retry_after, headroom: room },
                            _,
                        ),
                    ),
                ) if is_cached(descriptor)
                    && sent.contains(index)
                    && charge.strategy.on_excess().needed(hits) != Hits(0) =>
                {
                    let needed = charge.strategy.on_excess().needed(hits);
                    let denied_hits = hits_denied_at(plan, index, needed);
                    let denial = RememberedDenial::new(denied_hits, *retry_after, *room, call);
                    self.insert(charge, denial, call);
                }
                _ => {}
            }
        }
    }

    fn cached_denial(
        &self,
        descriptor: &LimitPlan<'_>,
        charge: &Charge,
        revision: Revision,
        now: Nanos,
    ) -> Option<ChargeOutcome> {
        match charge.cost {
            Cost::Refund(_) => {
                self.remove(&charge.key, now);
                None
            }
            Cost::Charge(hits) if is_cached(descriptor) => {
                let hits = hits_to_look_up(charge, hits)?;
                let hash = self.hash_key(&charge.key);
                let shard = self.lock_shard(hash);
                let cached = shard.denials.iter().find(|denial| denial.hash == hash)?;
                cached.decide((revision, charge.strategy), hits, now).map(ChargeOutcome::Decided)
            }
            Cost::Charge(_) => None,
        }
    }

    fn insert(&self, charge: &Charge, denial: RememberedDenial, call: StoreCallTimes) {
        let hash = self.hash_key(&charge.key);
        let mut shard = self.lock_shard(hash);
        if denial.ends_at <= call.replied_at || call.sent_at <= shard.last_refund {
            return;
        }
        self.has_denials.store(true, Relaxed);
        let under = (call.revision, charge.strategy);
        shard.insert(CounterDenial { hash, under, denial }, call.replied_at);
    }

    fn remove(&self, key: &CounterKey, now: Nanos) {
        let hash = self.hash_key(key);
        let mut shard = self.lock_shard(hash);
        shard.denials.retain(|denial| denial.hash != hash);
        shard.last_refund = shard.last_refund.max(now);
    }

    fn lock_shard(&self, hash: [u64; 2]) -> MutexGuard<'_, DenialShard> {
        let index = usize::try_from(hash[0] % SHARDS as u64).unwrap_or(0);
        self.shards[index].lock()
    }

    fn hash_key(&self, key: &CounterKey) -> [u64; 2] {
        let mut hasher = SipHasher13::new_with_key(&self.secret);
        hasher.write(key.as_bytes());
        let hash = hasher.finish128();
        [hash.h1, hash.h2]
    }
}

impl DenyLookup {
    fn denial_count(&self) -> u64 {
        let is_denial = |outcome: &ChargeOutcome| matches!(outcome, ChargeOutcome::Decided(_));
        let is_cached = |decision: &ChargeDecision| match decision {
            ChargeDecision::Store(outcome) => is_denial(outcome),
            _ => false,
        };
        let count = match self {
            Self::All(decisions) => decisions.iter().filter(|decision| is_cached(decision)).count(),
            Self::Partial(partial) => {
                partial.outcomes.iter().filter(|outcome| is_denial(outcome)).count()
            }
        };
        u64::try_from(count).unwrap_or(u64::MAX)
    }
}

impl DenialShard {
    /// Inserts `new`. If a denial of the same counter and of fewer hits is still valid, that one
    /// stays, because it applies to more checks.
    fn insert(&mut self, new: CounterDenial, now: Nanos) {
        let is_same_counter = |cached: &CounterDenial| cached.hash == new.hash;
        if let Some(cached) = self.denials.iter_mut().find(|cached| is_same_counter(cached)) {
            let keeps_cached = cached.under == new.under
                && now < cached.denial.ends_at
                && cached.denial.hits < new.denial.hits;
            if !keeps_cached {
                *cached = new;
            }
            return;
        }
        if self.denials.len() < COUNTERS_PER_SHARD {
            self.denials.push(new);
        } else if let Some(ends_first) =
            self.denials.iter_mut().min_by_key(|cached| cached.denial.ends_at)
        {
            *ends_first = new;
        }
    }
}

impl CounterDenial {
    /// Returns the decision for a check of `hits`, or `None` if this denial does not apply.
    fn decide(
        &self,
        revision_and_strategy: (Revision, Strategy),
        hits: Hits,
        now: Nanos,
    ) -> Option<CounterDecision> {
        if self.under != revision_and_strategy
            || self.denial.ends_at <= now
            || hits < self.denial.hits
        {
            return None;
        }
        let RememberedDenial { allowed_at, remaining, resets_at, .. } = self.denial;
        let room = Headroom { remaining, reset_after: resets_at.since(now) };
        if u64::from(revision_and_strategy.1.max_at_once()) < hits.0 {
            return Some(CounterDecision::ExceedsLimit(room));
        }
        let extra_wait = revision_and_strategy.1.extra_wait(hits.less(self.denial.hits))?;
        Some(CounterDecision::Deny {
            retry_after: allowed_at.since(now).plus(extra_wait),
            headroom: room,
        })
    }
}

impl RememberedDenial {
    fn new(hits: Hits, retry_after: Nanos, room: Headroom, call: StoreCallTimes) -> Self {
        Self {
            hits,
            ends_at: call.sent_at.plus(retry_after),
            allowed_at: call.replied_at.plus(retry_after),
            remaining: room.remaining,
            resets_at: call.replied_at.plus(room.reset_after),
        }
    }
}

fn is_cached(descriptor: &LimitPlan<'_>) -> bool {
    descriptor.mode() == LimitMode::CachedDeny
}

/// Returns the hits whose cached denial decides a charge of `hits`; `None` if only the store can
/// decide it.
fn hits_to_look_up(charge: &Charge, hits: Hits) -> Option<Hits> {
    let on_excess = charge.strategy.on_excess();
    let is_charged_in_any_case = on_excess.is_charge() && hits != Hits(0);
    Some(on_excess.needed(hits)).filter(|needed| *needed != Hits(0) && !is_charged_in_any_case)
}

fn charges_with_parts<'p>(
    plan: &'p CheckPlan<'_>,
) -> impl Iterator<Item = (&'p LimitPlan<'p>, &'p Charge)> {
    let descriptors = plan.limits.iter().filter(|descriptor| descriptor.is_charged());
    descriptors.zip(&plan.charges.list)
}

/// Returns the hits that the denial of charge `index` covers. An all-or-nothing check is decided on
/// the sum of its hits for a counter, so earlier hits for the same counter are added.
fn hits_denied_at(plan: &CheckPlan<'_>, index: usize, hits: Hits) -> Hits {
    match plan.charges.mode {
        ChargeMode::Each => return hits,
        ChargeMode::AllOrNothing { .. } | ChargeMode::Preview => {}
    }
    let (earlier, rest) = plan.charges.list.split_at(index.min(plan.charges.list.len()));
    let same = earlier.iter().filter(|charge| rest.first().is_some_and(|c| c.key == charge.key));
    let before = same.filter_map(|charge| match charge.cost {
        Cost::Charge(hits) => Some(hits),
        Cost::Refund(_) => None,
    });
    before.fold(hits, Hits::plus)
}

/// Returns the cached denials, and the charges without one to send to the store.
fn with_misses(plan: &CheckPlan<'_>, cached_denials: &[Option<ChargeOutcome>]) -> DenyLookup {
    let cached_denial = |index: usize| cached_denials.get(index).copied().flatten();
    let placeholder = ChargeOutcome::Failed(StoreFailure::InvalidReply);
    let outcomes =
        (0..plan.charges.list.len()).map(|index| cached_denial(index).unwrap_or(placeholder));
    let to_send = ChargeSubset::select(
        &plan.charges,
        |index| cached_denial(index).is_none(),
        plan.charges.mode,
    );
    DenyLookup::Partial(Box::new(PartialDecision { outcomes: outcomes.collect(), to_send }))
}

/// Denies an all-or-nothing check if the cached denial of one limit is enough for that.
///
/// Returns `None` if only shadow-mode or quota limits have a cached denial, or if the check has a
/// refund, which is made in any case.
fn deny_whole_check(
    plan: &CheckPlan<'_>,
    cached_denials: &[Option<ChargeOutcome>],
    quota_for_all: bool,
) -> Option<DenyLookup> {
    let list = &plan.charges.list;
    let has_refund = list.iter().any(|charge| matches!(charge.cost, Cost::Refund(_)));
    let denies = |(charge, outcome): (&Charge, &Option<ChargeOutcome>)| {
        outcome.is_some() && charge.standing.group == VoteGroup::Enforced && !charge.standing.shadow
    };
    if has_refund || quota_for_all || !list.iter().zip(cached_denials).any(denies) {
        return None;
    }
    let decisions = cached_denials
        .iter()
        .map(|outcome| outcome.map_or(ChargeDecision::NotCharged, ChargeDecision::Store));
    Some(DenyLookup::All(decisions.collect()))
}

#[cfg(test)]
mod tests;
