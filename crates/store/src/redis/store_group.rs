//! Checks over several stores and key formats: the main Redis, a separate Redis for limits per
//! second, and the keys of envoyproxy/ratelimit.
//!
//! Guarantees:
//! - Each charge has one outcome, in the order of the check.
//! - A part is all charges with the same store and key format. All parts are called concurrently.
//! - A failed part does not affect the outcomes of the others.
//! - A check within one part and slot is atomic; a check over several parts is charged as with
//!   `charge: each`.

mod fleet;
mod stop_when_over;

use std::time::Duration;

use futures_util::future::{join, join_all};
use smallvec::SmallVec;
use tokio::time::timeout;

use super::outcome::{IndexedOutcomes, all_failed, write_outcomes};
use super::reference::{self, CompatCounters, DecidingStep};
use super::slot_parts::{fail_stale_parts, mode_of_parts};
use super::{RedisStore, StoreFailure};
use crate::kernel::units::Nanos;
use crate::lease::{LeaseMessage, LeaseOutcome};
use crate::stats::StoreStats;
use crate::{Charge, ChargeMode, Charges, CounterStore, Outcomes, StoreReply};

/// The stores that contain the counters of this process.
#[derive(Debug)]
pub struct StoreGroup {
    main: RedisStore,
    per_second: Option<RedisStore>,
    reference: Option<CompatCounters>,
}

/// Charges of a check that have the same store and key format.
struct TargetPart {
    target: ChargeTarget,
    indexes: SmallVec<[usize; 2]>,
    charges: Charges,
}

type TargetParts = SmallVec<[TargetPart; 2]>;

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
        Self { per_second: Some(store), ..self }
    }

    /// Enables counters under envoyproxy/ratelimit's keys, counted as that service counts them.
    #[must_use]
    pub fn with_reference(self, options: reference::CompatOptions) -> Self {
        Self { reference: Some(CompatCounters::new(options)), ..self }
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

    /// Groups charges, each with its index in the check, by store and key format.
    fn split_by_target<'c>(
        &self,
        charges: impl Iterator<Item = (usize, &'c Charge)>,
        mode: ChargeMode,
    ) -> TargetParts {
        let mut parts = TargetParts::new();
        for (index, charge) in charges {
            let target = self.target_of(charge);
            let part_index = parts.iter().position(|part: &TargetPart| part.target == target);
            let part_index = part_index.unwrap_or_else(|| {
                let charges = Charges { mode, ..Charges::default() };
                parts.push(TargetPart { target, indexes: SmallVec::new(), charges });
                parts.len() - 1
            });
            parts[part_index].indexes.push(index);
            parts[part_index].charges.list.push(charge.clone());
        }
        parts
    }

    async fn charge_parts(&self, now: Nanos, charges: &Charges) -> Outcomes {
        let mode = mode_of_parts(charges.mode);
        let parts = self.split_by_target(charges.list.iter().enumerate(), mode);
        let mut outcomes = all_failed(charges, StoreFailure::InvalidReply);
        let (joint, separate) = self.separate_joint_parts(parts, mode);
        let separate = self.call_parts(now, &separate, DecidingStep::ThisCall, None);
        let joint = self.peek_then_charge(now, &charges.list, joint);
        let (separate, joint) = join(separate, joint).await;
        write_outcomes(separate, &mut outcomes);
        write_outcomes(joint, &mut outcomes);
        fail_stale_parts(charges.mode, &mut outcomes);
        outcomes
    }

    /// Separates the parts to which `stop_when_over` applies from the others.
    fn separate_joint_parts(
        &self,
        parts: TargetParts,
        mode: ChargeMode,
    ) -> (TargetParts, TargetParts) {
        let skips = self.reference.as_ref().is_some_and(CompatCounters::skips_after_denial);
        let is_joint = |part: &TargetPart| {
            skips && part.target.is_ratelimit_key && matches!(mode, ChargeMode::Each)
        };
        let (joint, separate): (TargetParts, TargetParts) = parts.into_iter().partition(is_joint);
        match &joint[..] {
            [part] if self.is_single_call(part.target, &part.charges) => {
                (TargetParts::new(), separate.into_iter().chain(joint).collect())
            }
            _ => (joint, separate),
        }
    }

    /// Returns `true` if one store call can decide all these charges, under any charge mode.
    fn is_single_call(&self, target: ChargeTarget, charges: &Charges) -> bool {
        !target.is_ratelimit_key
            || charges.list.len() == 1
            || !self.store_of(target).route.has_several_servers()
    }

    async fn call_parts(
        &self,
        now: Nanos,
        parts: &[TargetPart],
        deciding_step: DecidingStep,
        call_timeout: Option<Duration>,
    ) -> IndexedOutcomes {
        let calls =
            parts.iter().map(|part| self.charge_part(now, part, deciding_step, call_timeout));
        let outcomes = join_all(calls).await;
        let indexes = parts.iter().flat_map(|part| part.indexes.iter().copied());
        indexes.zip(outcomes.into_iter().flatten()).collect()
    }

    async fn charge_part(
        &self,
        now: Nanos,
        part: &TargetPart,
        deciding_step: DecidingStep,
        call_timeout: Option<Duration>,
    ) -> Outcomes {
        let (store, charges) = (self.store_of(part.target), &part.charges);
        let call_timeout = call_timeout.unwrap_or(store.call_timeout);
        match &self.reference {
            Some(reference) if part.target.is_ratelimit_key => {
                reference.charge(store, now, charges, deciding_step, call_timeout).await
            }
            _ => match store.charge(now, charges) {
                StoreReply::Ready(outcomes) => outcomes,
                StoreReply::Pending(reply) => {
                    let reply = timeout(call_timeout, reply).await;
                    reply.unwrap_or_else(|_| all_failed(charges, StoreFailure::TimedOut))
                }
            },
        }
    }
}

impl CounterStore for StoreGroup {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        let Some(first) = charges.list.first() else { return StoreReply::Ready(Outcomes::new()) };
        let target = self.target_of(first);
        let is_single = charges.list[1..].iter().all(|charge| self.target_of(charge) == target);
        let is_single = is_single && self.is_single_call(target, charges);
        match &self.reference {
            _ if !is_single => StoreReply::Pending(Box::pin(self.charge_parts(now, charges))),
            Some(reference) if target.is_ratelimit_key => {
                let store = self.store_of(target);
                let step = DecidingStep::ThisCall;
                let outcomes = reference.charge(store, now, charges, step, store.call_timeout);
                StoreReply::Pending(Box::pin(outcomes))
            }
            _ => self.store_of(target).charge(now, charges),
        }
    }

    fn node_of(&self, now: Nanos, charge: &Charge) -> u32 {
        let target = self.target_of(charge);
        let store = self.store_of(target);
        let node = match &self.reference {
            Some(reference) if target.is_ratelimit_key => reference.slot(store, charge, now).into(),
            _ => store.node_of(now, charge),
        };
        // The bit of the separate Redis for limits per second is above every slot number.
        node | u32::from(target.is_per_second) << u16::BITS
    }

    /// Sends the message to the main or the per-second Redis: keys of envoyproxy/ratelimit are
    /// never leased.
    fn exchange_lease_message<'a>(
        &'a self,
        now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        let target = ChargeTarget {
            is_per_second: message.per_second && self.per_second.is_some(),
            is_ratelimit_key: false,
        };
        self.store_of(target).exchange_lease_message(now, message)
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
        let deny_cache = self.reference.as_ref().and_then(CompatCounters::deny_cache_stats);
        StoreStats { per_second_connections: per_second, deny_cache, ..self.main.stats() }
    }
}
