//! Leased limits on the path of a question.
//!
//! Guarantees: a question whose limits are all leased, and whose hits are held, is answered in the first
//! poll, without an allocation of its own; any other takes the way of all questions, and its leased
//! charges go to [`Leases`] where the others go to the backend.
//! Leaves out: what is held and what is asked ([`super::leases`]).

use std::sync::Arc;

use super::again::Missing;
use super::decide::{Engine, check};
use super::degrade::Settled;
use super::leases::{AllTerms, Leases};
use super::plan::{Part, Plan};
use super::{Answer, Refusal};
use crate::backend::Outcomes;
use crate::config::Mode;
use crate::kernel::decision::{Cost, Question};
use crate::kernel::units::Nanos;

impl Engine {
    /// What is held of leased limits; nothing where the backend is at hand, which asks nobody anyway.
    #[must_use]
    pub const fn leases(&self) -> Option<&Arc<Leases>> {
        self.leases.as_ref()
    }

    /// The answer, where what is held of leased limits is all that it takes.
    pub(super) fn decide_from_balances(
        &self,
        question: &Question<'_>,
        now: Nanos,
        answer: &mut Answer,
    ) -> Option<Result<(), Refusal>> {
        let leases = self.leases.as_ref().filter(|leases| leases.are_asked_for())?;
        check(question).ok()?;
        let config = self.config.load();
        let config = config.as_deref()?;
        let mut plan = Plan::default();
        plan.fill(config, question, self.policy.planning, now);
        let mut outcomes = Outcomes::new();
        leases.at_once(now, &plan.charges, plan.terms(), &mut outcomes)?;
        self.count_hits(config, question, &mut plan);
        (answer.revision, answer.now) = (config.revision, now);
        self.answer(&plan, &mut outcomes.into_iter().map(Settled::Answered), answer);
        Some(Ok(()))
    }

    /// Whether `plan` has anything to do with leases. What gives hits back has under any limit: a leased one may count on
    /// the same counter.
    pub(super) fn leases_concern(&self, plan: &Plan<'_>) -> bool {
        let is_leased = |part: &Part<'_>| matches!(part.mode(), Mode::Leased(_));
        let refunds = || plan.charges.list.iter().any(|c| matches!(c.cost, Cost::Refund(_)));
        let Some(leases) = &self.leases else { return false };
        plan.parts.iter().any(is_leased) || leases.are_asked_for() && refunds()
    }

    /// Forgets denials of the leased counters that `plan` gives hits back to.
    pub(super) fn forget_denials(&self, plan: &Plan<'_>) {
        if let Some(leases) = self.leases.as_ref().filter(|leases| leases.are_asked_for()) {
            leases.forget_denials(&plan.charges);
        }
    }

    /// Charges a part of `plan`: from what is held of leased limits, and the rest at the backend.
    pub(super) async fn charge_missing(
        &self,
        plan: &Plan<'_>,
        missing: &Missing,
        now: Nanos,
        end: Option<Nanos>,
    ) -> Outcomes {
        let all: AllTerms<'_> = plan.terms().collect();
        let (charges, terms) = (&missing.charges, missing.pick(&all));
        match &self.leases {
            Some(leases) if terms.iter().any(Option::is_some) => {
                self.wait(leases.charge(now, charges, &terms), charges, end).await
            }
            _ => self.charge(now, charges, end).await,
        }
    }
}
