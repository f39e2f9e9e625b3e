//! Checks over several stores and key formats: a separate Redis for limits per second, and the keys
//! of envoyproxy/ratelimit.
//!
//! Guarantees:
//! - Each charge has one outcome, in the order of the check.
//! - A part is all charges with the same store and key format. All parts are called concurrently.
//! - A failed part does not affect the outcomes of the others.
//! - A decision over several parts first reserves, then charges ([`super::joint_decision`]), within
//!   one deadline.
//! - A denied all-or-nothing check leaves no hits charged.
//! - A check within one part and slot is atomic; a check over several parts is not.
//!
//! Not covered:
//! - Charging counters, which [`RedisStore`] and [`CompatCounters`] do.
//!
//! A denied all-or-nothing check cancels its reservations under Sluicegate's own keys
//! ([`super::reservations`]). It refunds its hits under the keys of envoyproxy/ratelimit. These
//! keys contain the start of their window, so a refund reaches the window that was charged.

use std::time::Duration;

use futures_util::future::{join, join_all};
use smallvec::SmallVec;
use tokio::time::timeout;

use super::joint_decision::{JointDecision, SparedLimits, can_reserve};
use super::outcome::{IndexedOutcomes, all_failed, as_uncharged, write_outcomes};
use super::reference::{self, CompatCounters, DecidingStep};
use super::reservations::Reservations;
use super::{RedisStore, StoreFailure};
use crate::kernel::decision::Cost;
use crate::kernel::rate::limit::EXACT_BOUND;
use crate::kernel::units::{Hits, Nanos};
use crate::store::fleet::{MembershipHeartbeat, MembershipReply};
use crate::store::heartbeat::{ShareRound, ShareRoundReply};
use crate::store::lease::{LeaseMessage, LeaseOutcome};
use crate::store::permits::{
    PermitReport as Telling, PermitReportReply, StrictPermitReply, StrictPermitRequest,
};
use crate::store::stats::StoreStats;
use crate::store::{
    Charge, ChargeMode, ChargeOutcome, Charges, CounterHits, CounterStore, FleetStore, Outcomes,
    StoreReply,
};

/// The stores that contain the counters of this process.
#[derive(Debug)]
pub struct StoreGroup {
    main: RedisStore,
    per_second: Option<RedisStore>,
    reference: Option<CompatCounters>,
}

/// Some charges of a check that have the same store and key format.
struct TargetPart {
    target: ChargeTarget,
    /// The indices of the charges in the check.
    indexes: SmallVec<[usize; 2]>,
    charges: Charges,
}

type TargetParts = SmallVec<[TargetPart; 2]>;

type ChargeIndexes = SmallVec<[usize; 2]>;

#[derive(Clone, Copy, PartialEq, Eq)]
struct ChargeTarget {
    is_per_second: bool,
    is_ratelimit_key: bool,
}

impl StoreGroup {
    /// Creates a group with all counters in `main`.
    #[must_use]
    pub const fn new(main: RedisStore) -> Self {
        Self { main, per_second: None, reference: None }
    }

    /// Keeps the counters of limits per second in `store`.
    #[must_use]
    pub fn with_per_second(self, store: RedisStore) -> Self {
        let per_second = Some(store.beside_other_stores());
        Self { main: self.main.beside_other_stores(), per_second, reference: self.reference }
    }

    /// Enables counters under the keys of envoyproxy/ratelimit, counted as that service counts
    /// them.
    #[must_use]
    pub fn with_reference(self, options: reference::CompatOptions) -> Self {
        let reference = Some(CompatCounters::new(options));
        let per_second = self.per_second.map(RedisStore::beside_other_stores);
        Self { main: self.main.beside_other_stores(), per_second, reference }
    }

    fn target_of(&self, charge: &Charge) -> ChargeTarget {
        ChargeTarget {
            is_per_second: charge.per_second && self.per_second.is_some(),
            is_ratelimit_key: self.reference.is_some() && reference::is_compat_charge(charge),
        }
    }

    fn store_of(&self, target: ChargeTarget) -> &RedisStore {
        self.per_second.as_ref().filter(|_| target.is_per_second).unwrap_or(&self.main)
    }

    /// Groups charges by store and key format. The input contains each charge with its index in the
    /// check.
    fn split_by_target<'c>(
        &self,
        all: impl Iterator<Item = (usize, &'c Charge)>,
        rule: ChargeMode,
    ) -> TargetParts {
        let mut parts = TargetParts::new();
        for (at, charge) in all {
            let place = self.target_of(charge);
            let part_index = parts.iter().position(|part: &TargetPart| part.target == place);
            let number = part_index.unwrap_or_else(|| {
                let charges = Charges { mode: rule, ..Charges::default() };
                parts.push(TargetPart { target: place, indexes: SmallVec::new(), charges });
                parts.len() - 1
            });
            parts[number].indexes.push(at);
            parts[number].charges.list.push(charge.clone());
        }
        parts
    }

    async fn charge_parts(&self, now: Nanos, charges: &Charges) -> Outcomes {
        let parts = self.split_by_target(charges.list.iter().enumerate(), charges.mode);
        let mut outcomes = all_failed(charges, StoreFailure::InvalidReply);
        let (bound, free) = self.separate_joint_parts(parts, charges.mode);
        let apart = self.call_parts(now, &free, DecidingStep::ThisOne, None);
        let (apart, bound) = join(apart, self.decide_jointly(now, charges, &bound)).await;
        write_outcomes(apart, &mut outcomes);
        write_outcomes(bound, &mut outcomes);
        outcomes
    }

    /// Separates the parts that must be decided together, in two steps, from the other parts.
    fn separate_joint_parts(
        &self,
        parts: TargetParts,
        rule: ChargeMode,
    ) -> (TargetParts, TargetParts) {
        let stops = self.reference.as_ref().is_some_and(CompatCounters::skips_after_denial);
        let is_bound = |part: &TargetPart| match rule {
            ChargeMode::Preview => false,
            ChargeMode::Each => part.target.is_ratelimit_key && stops,
            ChargeMode::AllOrNothing { .. } => true,
        };
        let (bound, free): (TargetParts, TargetParts) = parts.into_iter().partition(is_bound);
        match &bound[..] {
            [one] if self.is_single_call(one.target, &one.charges) => {
                (TargetParts::new(), free.into_iter().chain(bound).collect())
            }
            _ => (bound, free),
        }
    }

    /// Returns `true` if one store call can decide all these charges, under any charge mode.
    fn is_single_call(&self, target: ChargeTarget, charges: &Charges) -> bool {
        !target.is_ratelimit_key
            || charges.list.len() == 1
            || !self.store_of(target).route.is_clustered()
    }

    /// Makes one decision for all given parts. First reserves a charge where possible, and queries
    /// the others. Then makes the queried charges, and commits the reservations unless a limit
    /// denied meanwhile.
    async fn decide_jointly(
        &self,
        now: Nanos,
        charges: &Charges,
        bound: &[TargetPart],
    ) -> IndexedOutcomes {
        let places: ChargeIndexes =
            bound.iter().flat_map(|part| part.indexes.iter().copied()).collect();
        if places.is_empty() {
            return IndexedOutcomes::new();
        }
        let (list, together) = (&charges.list, self.joint_decision(charges.mode));
        let has_reference = bound.iter().any(|part| part.target.is_ratelimit_key);
        let (deadline, steps) = (self.main.call_timeout, if has_reference { 3 } else { 2 });
        let patience = deadline / steps;
        let mut outcomes = all_failed(charges, StoreFailure::TimedOut);
        let (mut holding, tried) = self.plan_reservations(list, &places);
        let rest = places.iter().filter(|&at| !tried.contains(at)).map(|&at| (at, &list[at]));
        let rest = self.split_by_target(rest, ChargeMode::Preview);
        let asked = self.call_parts(now, &rest, DecidingStep::ThisOne, Some(patience));
        let (asked, ()) = join(asked, holding.reserve_all(patience, &mut outcomes)).await;
        write_outcomes(
            asked.into_iter().map(|(at, told)| (at, as_uncharged(told))).collect(),
            &mut outcomes,
        );
        let asked = outcomes.clone();
        let second = together.second_step(list, &places, &asked, &tried);
        // Divide the remaining time between the charges of the second step and the commit after
        // them.
        let left = deadline.saturating_sub(patience);
        let patience = if second.is_empty() { left.min(patience) } else { left / 2 };
        let parts =
            self.split_by_target(second.iter().map(|(at, charge)| (*at, charge)), ChargeMode::Each);
        write_outcomes(
            self.call_parts(now, &parts, DecidingStep::AnEarlierOne, Some(patience)).await,
            &mut outcomes,
        );
        if together.spared == SparedLimits::All && together.denies(list, &places, &outcomes) {
            let mut left = outcomes.clone();
            let refunds = self.refund_ratelimit_keys(now, &second, &outcomes, patience);
            let (given, ()) = join(refunds, holding.cancel_all(patience, &mut left)).await;
            outcomes = left;
            for (at, it) in given {
                // A limit that denied keeps its denial; any other limit gets its outcome from
                // before the charge.
                if matches!(it, ChargeOutcome::Refunded(_)) && !outcomes[at].is_denial() {
                    outcomes[at] = asked[at];
                }
            }
        } else {
            holding.commit_all(patience, &mut outcomes).await;
        }
        places.iter().map(|&at| (at, outcomes[at])).collect()
    }

    fn joint_decision(&self, mode: ChargeMode) -> JointDecision {
        let stopping = || JointDecision {
            quota_for_all: self.reference.as_ref().is_some_and(CompatCounters::quota_for_all),
            rescued: false,
            spared: SparedLimits::Others,
        };
        JointDecision::from_mode(mode).unwrap_or_else(stopping)
    }

    /// Returns the reservations for the charges with the given indices, and the indices that can be
    /// reserved.
    fn plan_reservations(
        &self,
        list: &[Charge],
        places: &[usize],
    ) -> (Reservations, ChargeIndexes) {
        let mut holding = Reservations::default();
        let is_ours = |at: usize| !self.target_of(&list[at]).is_ratelimit_key;
        let can = |&&at: &&usize| is_ours(at) && can_reserve(list, at);
        let tried: ChargeIndexes = places.iter().filter(can).copied().collect();
        for &at in &tried {
            holding.add(
                &self.store_of(self.target_of(&list[at])).reservation_client,
                at,
                &list[at],
            );
        }
        (holding, tried)
    }

    /// Refunds the hits that were charged under the keys of envoyproxy/ratelimit. A fixed window
    /// counts denied hits, so these are refunded, too.
    async fn refund_ratelimit_keys(
        &self,
        now: Nanos,
        charged: &[(usize, Charge)],
        outcomes: &Outcomes,
        patience: Duration,
    ) -> IndexedOutcomes {
        let taken = charged.iter().filter_map(|(at, charge)| {
            let is_taken = has_counted_hits(outcomes[*at]);
            let Cost::Charge(hits @ Hits(1..)) = charge.cost else { return None };
            let cost = Cost::Refund(hits);
            let is_theirs = self.target_of(charge).is_ratelimit_key;
            (is_taken && is_theirs).then(|| (*at, Charge { cost, ..charge.clone() }))
        });
        let taken: SmallVec<[(usize, Charge); 2]> = taken.collect();
        let parts =
            self.split_by_target(taken.iter().map(|(at, charge)| (*at, charge)), ChargeMode::Each);
        self.call_parts(now, &parts, DecidingStep::AnEarlierOne, Some(patience)).await
    }

    async fn call_parts(
        &self,
        now: Nanos,
        parts: &[TargetPart],
        decided: DecidingStep,
        patience: Option<Duration>,
    ) -> IndexedOutcomes {
        let ask = |part| self.charge_part(now, part, decided, patience);
        let asked = join_all(parts.iter().map(ask)).await;
        let places = parts.iter().flat_map(|part| part.indexes.iter().copied());
        places.zip(asked.into_iter().flatten()).collect()
    }

    async fn charge_part(
        &self,
        now: Nanos,
        part: &TargetPart,
        decided: DecidingStep,
        patience: Option<Duration>,
    ) -> Outcomes {
        let (store, charges) = (self.store_of(part.target), &part.charges);
        let patience = patience.unwrap_or(store.call_timeout);
        match &self.reference {
            Some(reference) if part.target.is_ratelimit_key => {
                reference.charge(store, now, charges, decided, patience).await
            }
            _ => match store.charge(now, charges) {
                StoreReply::Ready(outcomes) => outcomes,
                StoreReply::Pending(reply) => {
                    let answered = timeout(patience, reply).await;
                    answered.unwrap_or_else(|_| all_failed(charges, StoreFailure::TimedOut))
                }
            },
        }
    }
}

/// Returns `true` if a counter under a key of envoyproxy/ratelimit counted the hits. It counts
/// denied hits, too. It does not count hits that the deny cache denied, nor hits that overflow it.
const fn has_counted_hits(outcome: ChargeOutcome) -> bool {
    matches!(outcome, ChargeOutcome::Counted(_, CounterHits { hits, is_cached_denial: false }) if hits != EXACT_BOUND)
}

impl CounterStore for StoreGroup {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        let Some(first) = charges.list.first() else { return StoreReply::Ready(Outcomes::new()) };
        let place = self.target_of(first);
        let is_whole = charges.list[1..].iter().all(|charge| self.target_of(charge) == place);
        let is_whole = is_whole && self.is_single_call(place, charges);
        match &self.reference {
            _ if !is_whole => StoreReply::Pending(Box::pin(self.charge_parts(now, charges))),
            Some(reference) if place.is_ratelimit_key => {
                let store = self.store_of(place);
                let asked = reference.charge(
                    store,
                    now,
                    charges,
                    DecidingStep::ThisOne,
                    store.call_timeout,
                );
                StoreReply::Pending(Box::pin(asked))
            }
            _ => self.store_of(place).charge(now, charges),
        }
    }

    /// The store does not know the other limits of the domain. If two stores or key formats are
    /// configured, a check of any domain may use both and reserve hits.
    fn reserved_for(&self, charge: &Charge) -> Option<Nanos> {
        self.store_of(self.target_of(charge)).reserved_for(charge)
    }

    fn node_of(&self, now: Nanos, charge: &Charge) -> u32 {
        let place = self.target_of(charge);
        let store = self.store_of(place);
        let within = match &self.reference {
            Some(reference) if place.is_ratelimit_key => reference.slot(store, charge, now).into(),
            _ => store.node_of(now, charge),
        };
        // The bit of the separate Redis for limits per second is above every slot number.
        within | u32::from(place.is_per_second) << u16::BITS
    }

    /// Keys in the format of envoyproxy/ratelimit are never leased.
    fn exchange_lease_message<'a>(
        &'a self,
        now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        let place = ChargeTarget {
            is_per_second: message.per_second && self.per_second.is_some(),
            is_ratelimit_key: false,
        };
        self.store_of(place).exchange_lease_message(now, message)
    }

    fn batch_calls(&self, begin: &mut dyn FnMut()) {
        match &self.per_second {
            Some(store) => self.main.batch_calls(&mut || store.batch_calls(begin)),
            None => self.main.batch_calls(begin),
        }
    }

    fn max_wait(&self) -> Option<Nanos> {
        self.main.max_wait()
    }

    fn current_failure(&self) -> Option<StoreFailure> {
        self.main.current_failure().or_else(|| self.per_second.as_ref()?.current_failure())
    }

    fn stats(&self) -> StoreStats {
        let per_second = self.per_second.as_ref().and_then(|store| store.stats().connections);
        let remembered = self.reference.as_ref().and_then(CompatCounters::deny_cache_stats);
        StoreStats {
            per_second_connections: per_second,
            deny_cache: remembered,
            ..self.main.stats()
        }
    }
}

impl FleetStore for StoreGroup {
    fn update_membership<'a>(
        &'a self,
        beat: &'a MembershipHeartbeat,
    ) -> StoreReply<'a, Result<MembershipReply, StoreFailure>> {
        self.main.update_membership(beat)
    }

    fn report_shares<'a>(
        &'a self,
        now: Nanos,
        round: &'a ShareRound,
    ) -> StoreReply<'a, Result<ShareRoundReply, StoreFailure>> {
        self.main.report_shares(now, round)
    }

    fn acquire_strict_permit<'a>(
        &'a self,
        now: Nanos,
        asked: &'a StrictPermitRequest,
    ) -> StoreReply<'a, Result<StrictPermitReply, StoreFailure>> {
        self.main.acquire_strict_permit(now, asked)
    }

    fn report_strict_permits<'a>(
        &'a self,
        now: Nanos,
        round: &'a Telling,
    ) -> StoreReply<'a, PermitReportReply> {
        self.main.report_strict_permits(now, round)
    }
}
