//! Decides charges from this replica's memory during a store outage (`on_backend_failure: local`).
//!
//! Guarantees:
//! - Allowed hits are within this replica's local share.
//! - Allowed hits become fallback debt, unless the store may have counted them already.
//!
//! Not covered:
//! - The size of a local share: see [`super::parts`].
//! - Fallback debt: see [`super::owed`].

use std::sync::Arc;

use smallvec::SmallVec;

use super::again::denied;
use super::membership::Membership;
use super::owed::{Debt, Owed};
use super::parts::{Division, part, rank};
use crate::backend::memory::Memory;
use crate::backend::{Backend as _, Charge, Charges, Outcome, Outcomes, Reply, Rule};
use crate::kernel::decision::{Cause, Cost, Group, Verdict, combine};
use crate::kernel::rate::{Room, Step, Strategy};
use crate::kernel::units::{Hits, Nanos};

/// The local counters and the fallback debt of this replica.
#[derive(Debug)]
pub struct Local {
    pub(super) memory: Arc<Memory>,
    pub(super) membership: Arc<Membership>,
    pub(super) owed: Owed,
}

/// A charge without a reply from the store, and the failure.
pub(super) type Unanswered<'p> = (&'p Charge, Cause);

/// The outcome of a local share of zero hits.
pub(super) const NOTHING: Outcome =
    Outcome::Stepped(Step::Never(Room { remaining: Hits(0), reset_after: Nanos(0) }));

impl Local {
    /// Creates counters in `memory`. The list of replicas
    /// in `membership` determines the local shares.
    #[must_use]
    pub fn new(memory: Arc<Memory>, membership: Arc<Membership>) -> Self {
        Self { memory, membership, owed: Owed::default() }
    }

    /// Charges the local shares. Returns one outcome for each charge, in order.
    pub(super) fn charge(&self, charges: &[Unanswered<'_>], rule: Rule, now: Nanos) -> Outcomes {
        let parts: SmallVec<[Option<Strategy>; 2]> =
            charges.iter().map(|(charge, _)| self.part_of(charge)).collect();
        let (asked, spared) = asked(charges, &parts, rule);
        let answered = match self.memory.charge(now, &asked) {
            Reply::Now(outcomes) => outcomes,
            // The memory store always replies at once.
            Reply::Later(_) => Outcomes::new(),
        };
        let passed = !spared && !denied(&asked, &answered);
        let mut answered = answered.into_iter();
        let outcome = |((charge, cause), part): (&Unanswered<'_>, &Option<Strategy>)| {
            let Some(part) = part else { return without_a_part(charge.cost) };
            let outcome = answered.next().unwrap_or(NOTHING);
            let made = passed || matches!(charge.cost, Cost::Refund(_));
            let owes = made && !cause.may_be_charged();
            if owes && matches!(outcome, Outcome::Stepped(Step::Admit(_)) | Outcome::Refunded(_)) {
                self.owed.note(charge, *part);
            }
            outcome
        };
        let outcomes = charges.iter().zip(&parts).map(outcome).collect();
        self.owed.wake();
        outcomes
    }

    /// Returns this replica's local share of the charge's limit. `None` if it has no hits.
    pub(super) fn part_of(&self, charge: &Charge) -> Option<Strategy> {
        let replicas = self.membership.replicas();
        let mut division = Division { replicas, rank: None };
        if !charge.strategy.most().is_multiple_of(replicas.get()) {
            let me = self.membership.node();
            let seen = self.membership.seen();
            let members = |seen: &super::membership::Seen| {
                rank(&charge.key, me, seen.members.iter().map(|member| &*member.node))
            };
            division.rank = seen.as_deref().map(members);
        }
        part(&charge.strategy, division)
    }

    /// Returns the part of `debt` that the local counter
    /// still counts. Windows end and GCRA debts drain.
    pub(super) fn still(&self, debt: &Debt, now: Nanos) -> Hits {
        let Debt { part, hits, .. } = debt;
        let peek = Charge { strategy: *part, ..debt.of(Hits(0)) };
        let peek = Charges { list: [peek].into_iter().collect(), rule: Rule::Each };
        let Reply::Now(outcomes) = self.memory.charge(now, &peek) else { return Hits(0) };
        match outcomes.first() {
            Some(Outcome::Stepped(
                Step::Admit(room) | Step::Deny { room, .. } | Step::Never(room),
            )) => Hits(part.most().into()).less(room.remaining).min(*hits),
            _ => Hits(0),
        }
    }
}

/// Returns the charges for the local counters. If a limit without a local
/// share denies the whole check, they become peeks and the flag is `true`.
fn asked(charges: &[Unanswered<'_>], parts: &[Option<Strategy>], rule: Rule) -> (Charges, bool) {
    let votes = charges.iter().zip(parts).map(|((charge, _), part)| {
        let denies = part.is_none() && without_a_part(charge.cost).denies();
        (charge.standing.group, charge.standing.verdict(denies))
    });
    let spared = match rule {
        Rule::Each | Rule::Ask => false,
        Rule::AllOrNothing { quota_for_all, rescued } => {
            let passes = rescued.then_some((Group::Quota, Verdict::Admit));
            combine(votes.chain(passes), quota_for_all) == Verdict::Deny
        }
    };
    let list = charges.iter().zip(parts).filter_map(|((charge, _), part)| {
        let cost = match charge.cost {
            Cost::Charge(_) if spared => Cost::Charge(Hits(0)),
            cost => cost,
        };
        part.map(|strategy| Charge { strategy, cost, ..(*charge).clone() })
    });
    (Charges { list: list.collect(), rule }, spared)
}

const fn without_a_part(cost: Cost) -> Outcome {
    const NO_ROOM: Step = Step::Admit(Room { remaining: Hits(0), reset_after: Nanos(0) });
    match cost {
        Cost::Charge(Hits(0)) => Outcome::Stepped(NO_ROOM),
        Cost::Charge(_) => NOTHING,
        Cost::Refund(_) => Outcome::Refunded(NO_ROOM),
    }
}
