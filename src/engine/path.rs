//! The path of a check: prepare it, answer it without waiting if possible, else call the store.
//!
//! Guarantees:
//! - A check is planned once, by one configuration, for one instant.
//! - A check that needs no store call never waits.
//! - A store call that has no reply at the deadline counts as failed.
//!
//! Not covered:
//! - Limits, keys and modes (see [`super::plan`]).
//! - The verdict and its headers (see [`super::decision`]).

use std::pin::Pin;
use std::time::Duration;

use super::again::{self, Missing};
use super::decide::Engine;
use super::degrade::Settled;
use super::leases::AllTerms;
use super::ledgers::{Call, Rest, Spent};
use super::plan::{Instants, Part, Plan};
use super::{Answer, Refusal, tally};
use crate::backend::{Cause, Charge, Charges, Outcome, Outcomes, Reply, Rule};
use crate::config::{Config, Mode};
use crate::kernel::decision::{Cost, Question};
use crate::kernel::units::Nanos;
use crate::telemetry::trace;

type Decided = Result<Answer, Refusal>;
type Pending<'a> = Pin<Box<dyn Future<Output = Decided> + Send + 'a>>;

struct Prepared<'a, 'q> {
    config: &'a Config,
    check: &'a Question<'q>,
    now: Nanos,
    plan: Plan<'a>,
}

enum Started<'a> {
    Decided(Decided),
    Pending(Pending<'a>),
}

impl Engine {
    /// Decides `check` without a deadline of the caller.
    ///
    /// # Errors
    /// As [`Engine::decide_within`].
    pub async fn decide(&self, check: &Question<'_>) -> Decided {
        self.decide_within(check, None).await
    }

    /// Decides `check`. After `timeout`, the fallback of each limit replaces a missing store reply.
    ///
    /// # Errors
    /// The [`Refusal`]s of an empty domain, an empty list and an absent configuration, in this
    /// order; no counter has changed then. [`Refusal::BackendDown`] if the store did not reply and
    /// the fallback of a limit is `error`.
    pub async fn decide_within(&self, check: &Question<'_>, timeout: Option<Nanos>) -> Decided {
        let config = self.config.load();
        // A plain function, so that this future has only a pointer to the state of a store call.
        match self.start(config.as_deref(), check, timeout) {
            Started::Decided(decided) => decided,
            Started::Pending(pending) => pending.await,
        }
    }

    fn start<'a>(
        &'a self,
        config: Option<&'a Config>,
        check: &'a Question<'_>,
        timeout: Option<Nanos>,
    ) -> Started<'a> {
        let mut prepared = match self.prepare(config, check) {
            Ok(prepared) => prepared,
            Err(refusal) => return Started::Decided(Err(refusal)),
        };
        if let Some(decided) = self.try_now(&prepared) {
            return Started::Decided(decided);
        }
        let deadline = timeout.map(|timeout| prepared.now.plus(timeout));
        if !self.ledgers.concern(&prepared.plan) && !self.leases_concern(&prepared.plan) {
            return Started::Pending(Box::pin(self.resolve(prepared, deadline)));
        }
        match self.ledgers.spend(&prepared.plan, prepared.config.revision, prepared.now) {
            Spent::All(settled) => {
                Started::Decided(Ok(self.decision(&mut prepared, settled.into_iter())))
            }
            Spent::Rest(rest) => {
                Started::Pending(Box::pin(self.resolve_rest(prepared, *rest, deadline)))
            }
        }
    }

    fn prepare<'a, 'q>(
        &self,
        config: Option<&'a Config>,
        check: &'a Question<'q>,
    ) -> Result<Prepared<'a, 'q>, Refusal> {
        validate(check)?;
        let config = config.ok_or(Refusal::NoConfig)?;
        let now = self.clock.now();
        let mut prepared = Prepared { config, check, now, plan: Plan::default() };
        let planning = trace::part(trace::Part::Plan);
        prepared.plan.fill(config, check, self.policy.planning, now);
        drop(planning);
        if let Some(stats) = &self.stats {
            prepared.plan.tally = tally::of(stats, config, check, &prepared.plan);
        }
        Ok(prepared)
    }

    /// Decides a check that the memory store or lease balances answer.
    fn try_now(&self, prepared: &Prepared<'_, '_>) -> Option<Decided> {
        let Prepared { now, plan, .. } = prepared;
        if self.backend().is_at_hand() {
            let Reply::Now(outcomes) = self.backend().charge(*now, &plan.charges) else {
                return Some(self.finish(prepared, &failed(&plan.charges, Cause::Late)));
            };
            return Some(self.finish(prepared, &outcomes));
        }
        let leases = self.leases.as_ref().filter(|leases| leases.are_asked_for())?;
        let mut outcomes = Outcomes::new();
        leases.at_once(*now, &plan.charges, plan.terms(), &mut outcomes)?;
        Some(Ok(self.decision(prepared, outcomes.into_iter().map(Settled::Answered))))
    }

    /// Decides a check of strict limits with one store call.
    async fn resolve(&self, mut prepared: Prepared<'_, '_>, deadline: Option<Nanos>) -> Decided {
        let mut outcomes = self.charge(prepared.now, &prepared.plan.charges, deadline).await;
        self.charge_stale(&mut prepared, &mut outcomes, deadline).await;
        self.finish(&prepared, &outcomes)
    }

    /// Decides a check that has leased limits or remembered denials.
    async fn resolve_rest(
        &self,
        mut prepared: Prepared<'_, '_>,
        Rest { missing, mut outcomes }: Rest,
        deadline: Option<Nanos>,
    ) -> Decided {
        if missing.charges.list.is_empty() {
            return self.finish(&prepared, &outcomes);
        }
        let (now, revision) = (prepared.now, prepared.config.revision);
        self.forget_denials(&prepared.plan);
        let answered = self.charge_missing(&prepared.plan, &missing, now, deadline).await;
        missing.put(answered, &mut outcomes);
        self.charge_stale(&mut prepared, &mut outcomes, deadline).await;
        let call = Call { sent: now, answered: self.clock.now(), revision };
        let held_for = |charge: &Charge| self.backend().held_for(charge);
        self.ledgers.settle(&prepared.plan, &missing, &outcomes, call, held_for);
        self.forget_denials(&prepared.plan);
        self.finish(&prepared, &outcomes)
    }

    async fn charge(&self, now: Nanos, charges: &Charges, deadline: Option<Nanos>) -> Outcomes {
        match self.backend().charge(now, charges) {
            Reply::Now(outcomes) => outcomes,
            Reply::Later(reply) => {
                let waiting = trace::part(trace::Part::Backend);
                let outcomes = self.wait(reply, charges, deadline).await;
                drop(waiting);
                outcomes
            }
        }
    }

    /// Waits for `reply` until the caller's deadline. A missed deadline
    /// drops the reply, so it does not count as a timeout of the store.
    async fn wait(
        &self,
        reply: impl Future<Output = Outcomes>,
        charges: &Charges,
        deadline: Option<Nanos>,
    ) -> Outcomes {
        let Some(deadline) = deadline else { return reply.await };
        let left = Duration::from_nanos(deadline.since(self.clock.now()).0);
        let answered = tokio::time::timeout(left, reply).await;
        answered.unwrap_or_else(|_| failed(charges, Cause::Late))
    }

    /// Charges the rest of a check: leased limits with leases, all others directly.
    async fn charge_missing(
        &self,
        plan: &Plan<'_>,
        missing: &Missing,
        now: Nanos,
        deadline: Option<Nanos>,
    ) -> Outcomes {
        let all: AllTerms<'_> = plan.terms().collect();
        let (charges, terms) = (&missing.charges, missing.pick(&all));
        match &self.leases {
            Some(leases) if terms.iter().any(Option::is_some) => {
                self.wait(leases.charge(now, charges, &terms), charges, deadline).await
            }
            _ => self.charge(now, charges, deadline).await,
        }
    }

    /// Charges again, once, if the store's clock is in another calendar window than the plan.
    async fn charge_stale(
        &self,
        prepared: &mut Prepared<'_, '_>,
        outcomes: &mut Outcomes,
        deadline: Option<Nanos>,
    ) {
        let Some(store_now) = again::store_now(outcomes) else { return };
        let Prepared { config, check, now, ref plan } = *prepared;
        let mut later = Plan::default();
        let at = Instants { held: now, windows: store_now };
        later.fill_at(config, check, self.policy.planning, at);
        let missing = again::missing(&plan.charges, outcomes, &later.charges);
        // An all-or-nothing charge also uses lease balances, which the denied
        // first call returned. With `Rule::Each` only stale charges remain.
        // They have no lease to use, because it belongs to another window.
        let has_balances =
            !matches!(missing.charges.rule, Rule::Each) && self.leases_concern(&later);
        let answered = if has_balances {
            self.charge_missing(&later, &missing, now, deadline).await
        } else {
            self.charge(now, &missing.charges, deadline).await
        };
        missing.put(answered, outcomes);
        prepared.plan.charges.list = later.charges.list;
        again::fail_stale(outcomes);
    }

    fn finish(&self, prepared: &Prepared<'_, '_>, outcomes: &[Outcome]) -> Decided {
        self.conclude(&prepared.plan, outcomes, (prepared.config.revision, prepared.now))
    }

    fn decision(
        &self,
        prepared: &Prepared<'_, '_>,
        settled: impl Iterator<Item = Settled>,
    ) -> Answer {
        self.write(&prepared.plan, settled, (prepared.config.revision, prepared.now))
    }

    /// Returns `true` if the plan has a leased limit,
    /// or a refund that may belong to a leased counter.
    fn leases_concern(&self, plan: &Plan<'_>) -> bool {
        let is_leased = |part: &Part<'_>| matches!(part.mode(), Mode::Leased(_));
        let refunds = || plan.charges.list.iter().any(|c| matches!(c.cost, Cost::Refund(_)));
        let Some(leases) = &self.leases else { return false };
        plan.parts.iter().any(is_leased) || leases.are_asked_for() && refunds()
    }

    /// Forgets the remembered denials of counters that the check refunds.
    fn forget_denials(&self, plan: &Plan<'_>) {
        if let Some(leases) = self.leases.as_ref().filter(|leases| leases.are_asked_for()) {
            leases.forget_denials(&plan.charges);
        }
    }
}

/// Rejects a check without a domain or descriptors.
pub(super) fn validate(check: &Question<'_>) -> Result<(), Refusal> {
    if check.domain.is_empty() {
        return Err(Refusal::EmptyDomain);
    }
    if check.descriptors.is_empty() {
        return Err(Refusal::NoDescriptors);
    }
    Ok(())
}

fn failed(charges: &Charges, cause: Cause) -> Outcomes {
    charges.list.iter().map(|_| Outcome::Failed(cause)).collect()
}
