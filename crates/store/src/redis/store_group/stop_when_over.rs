//! The setting `compat.store.stop_when_over` over several slots or stores: peeks at all counters,
//! then charges them, as envoyproxy/ratelimit does.
//!
//! Guarantees:
//! - If the peek finds limits over, only these are charged.
//! - Each step ends within half of `store.timeout`.
//!
//! Not covered:
//! - Atomicity: concurrent checks may each pass the peek. A limit that is over only at the charge
//!   denies, and the others stay charged.

use super::{StoreGroup, TargetParts};
use crate::kernel::decision::{Cost, Verdict, combine};
use crate::kernel::units::{Hits, Nanos};
use crate::redis::outcome::IndexedOutcomes;
use crate::redis::reference::{CompatCounters, DecidingStep};
use crate::{Charge, ChargeMode, ChargeOutcome};

impl StoreGroup {
    /// Peeks at the counters of `parts`, then charges them. `list` has all charges of the check.
    pub(super) async fn peek_then_charge(
        &self,
        now: Nanos,
        list: &[Charge],
        mut parts: TargetParts,
    ) -> IndexedOutcomes {
        let step_timeout = Some(self.main.call_timeout / 2);
        parts.iter_mut().for_each(|part| part.charges.mode = ChargeMode::Preview);
        let peeks = self.call_parts(now, &parts, DecidingStep::ThisCall, step_timeout).await;
        let to_charge = self.charges_after(list, &peeks);
        let to_charge = to_charge.iter().map(|(index, charge)| (*index, charge));
        let parts = self.split_by_target(to_charge, ChargeMode::Each);
        let charged = self.call_parts(now, &parts, DecidingStep::EarlierCall, step_timeout).await;
        peeks.into_iter().chain(charged).collect()
    }

    /// Returns the charges to make after the peeks, each with its index in the check. The peek
    /// already made the refunds.
    fn charges_after(&self, list: &[Charge], peeks: &IndexedOutcomes) -> Vec<(usize, Charge)> {
        let votes = peeks.iter().map(|&(index, peek)| {
            let standing = list[index].standing;
            (standing.group, standing.enforced_verdict(peek.is_denial()))
        });
        let quota_for_all = self.reference.as_ref().is_some_and(CompatCounters::quota_for_all);
        let is_denied = combine(votes, quota_for_all) == Verdict::Deny;
        let to_charge = |&(index, peek): &(usize, ChargeOutcome)| {
            let cost = match list[index].cost {
                Cost::Charge(_) if is_denied && !peek.is_denial() => Cost::Charge(Hits(0)),
                cost => cost,
            };
            let is_made =
                matches!(cost, Cost::Charge(_)) && !matches!(peek, ChargeOutcome::Failed(_));
            is_made.then(|| (index, Charge { cost, ..list[index].clone() }))
        };
        peeks.iter().filter_map(to_charge).collect()
    }
}
