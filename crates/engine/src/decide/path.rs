//! The steps of a check: plan it, decide it without waiting if possible, otherwise call the store.
//!
//! Guarantees:
//! - A check is planned by one configuration; it is planned again only if a charge was stale.
//! - A check that needs no store call never waits.
//! - A store call without a reply at the deadline counts as failed.

use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::Engine;
use crate::active_config::ActiveConfig;
use crate::config::LimitMode;
use crate::decide::charge_decision::ChargeDecision;
use crate::decide::deny_cache::{DenyLookup, PartialDecision, StoreCallTimes};
use crate::decide::excess;
use crate::decide::limit_plan::LimitPlan;
use crate::decide::plan::{CheckPlan, PlanInstants};
use crate::decide::rule_stats;
use crate::decide::stale_charges;
use crate::kernel::decision::{Check, Cost};
use crate::kernel::units::Nanos;
use crate::lease::ChargeTerms;
use crate::store::{ChargeMode, ChargeOutcome, Charges, Outcomes, StoreFailure, StoreReply};
use crate::telemetry::trace;
use crate::{CheckError, Decision};
use sluicegate_lease::beside_leases::{self, occupying_terms};
use sluicegate_lease::charge_subset::{self, ChargeSubset};

type CheckResult = Result<Decision, CheckError>;
type PendingCheck<'a> = Pin<Box<dyn Future<Output = CheckResult> + Send + 'a>>;

/// A check with its plan, and the configuration that decides it.
pub(crate) struct PreparedCheck<'a, 'q> {
    pub(crate) config: &'a ActiveConfig,
    pub(crate) check: &'a Check<'q>,
    pub(crate) now: Nanos,
    pub(crate) plan: CheckPlan<'a>,
    pub(crate) purpose: CheckPurpose,
}

/// The purpose of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckPurpose {
    /// A caller asks for a decision. It is counted, logged and recorded.
    Decide,
    /// An operator reads a counter. Metrics, top keys, events and recordings leave it out.
    Inspect,
}

#[expect(clippy::large_enum_variant, reason = "the usual one is the large one")]
enum StartedCheck<'a> {
    Decided(CheckResult),
    Pending(PendingCheck<'a>),
}

impl Engine {
    /// Decides `check`. Only the store's own timeout limits the wait.
    ///
    /// # Errors
    /// As [`Engine::decide_within`].
    pub async fn decide(&self, check: &Check<'_>) -> CheckResult {
        self.decide_within(check, None).await
    }

    /// Returns the decision of `check`, without counting it in metrics, top keys or events. The check
    /// should have 0 hits, because its hits are charged.
    ///
    /// # Errors
    /// As [`Engine::decide_within`].
    pub async fn inspect(&self, check: &Check<'_>) -> CheckResult {
        let config = self.active.load();
        match self.start(config.as_deref(), check, None, CheckPurpose::Inspect) {
            StartedCheck::Decided(decided) => decided,
            StartedCheck::Pending(pending) => pending.await,
        }
    }

    /// Decides `check`. If the store does not reply within `timeout`, the fallback of each limit
    /// decides.
    ///
    /// # Errors
    /// [`CheckError::StoreUnavailable`] if the store did not reply and a limit has
    /// `on_store_failure: error`. Before any charge: the errors for an empty domain, no
    /// descriptors and no configuration.
    pub async fn decide_within(&self, check: &Check<'_>, timeout: Option<Nanos>) -> CheckResult {
        let config = self.active.load();
        // `start` is not async, so that this future stays small: it contains a pointer to the boxed
        // store call.
        let started = if self.recorder.is_on() {
            StartedCheck::Pending(Box::pin(self.decide_recorded(check, timeout)))
        } else {
            self.start(config.as_deref(), check, timeout, CheckPurpose::Decide)
        };
        match started {
            StartedCheck::Decided(decided) => decided,
            StartedCheck::Pending(pending) => pending.await,
        }
    }

    /// Decides `check` as [`Self::decide_within`] does, without a record.
    pub(crate) async fn decide_unrecorded(
        &self,
        check: &Check<'_>,
        timeout: Option<Nanos>,
    ) -> CheckResult {
        let config = self.active.load();
        match self.start(config.as_deref(), check, timeout, CheckPurpose::Decide) {
            StartedCheck::Decided(decided) => decided,
            StartedCheck::Pending(pending) => pending.await,
        }
    }

    fn start<'a>(
        &'a self,
        config: Option<&'a ActiveConfig>,
        check: &'a Check<'_>,
        timeout: Option<Nanos>,
        purpose: CheckPurpose,
    ) -> StartedCheck<'a> {
        let config = match validate(check).and_then(|()| config.ok_or(CheckError::NoConfig)) {
            Ok(config) => config,
            Err(refusal) => {
                self.log_error(check, &refusal);
                return StartedCheck::Decided(Err(refusal));
            }
        };
        let now = self.clock.now();
        // Filled in place: moving a plan out of a `Result` costs 6 % of a decision in memory.
        let plan = CheckPlan::default();
        let mut prepared = PreparedCheck { config, check, now, plan, purpose };
        self.prepare(&mut prepared);
        if let Some(banned) = self.find_bans(&prepared.plan, now) {
            return StartedCheck::Decided(Ok(self.write_decision(&prepared, banned.into_iter())));
        }
        let deadline = timeout.map(|timeout| prepared.now.plus(timeout));
        if excess::needs_two_steps(&prepared.plan.charges) {
            return StartedCheck::Pending(Box::pin(self.resolve_in_two_steps(prepared, deadline)));
        }
        if let Some(decided) = self.try_now(&prepared) {
            return StartedCheck::Decided(decided);
        }
        if !self.deny_cache.needs_lookup(&prepared.plan) && !self.needs_leases(&prepared.plan) {
            return StartedCheck::Pending(Box::pin(self.resolve(prepared, deadline)));
        }
        match self.deny_cache.look_up(&prepared.plan, prepared.config.revision, prepared.now) {
            DenyLookup::All(charge_decisions) => StartedCheck::Decided(Ok(
                self.write_decision(&prepared, charge_decisions.into_iter())
            )),
            DenyLookup::Partial(rest) => {
                StartedCheck::Pending(Box::pin(self.resolve_rest(prepared, *rest, deadline)))
            }
        }
    }

    /// Plans the check, and counts it.
    fn prepare(&self, prepared: &mut PreparedCheck<'_, '_>) {
        self.plan(prepared);
        if prepared.purpose == CheckPurpose::Decide {
            self.count_planned(prepared);
        }
    }

    pub(crate) fn plan(&self, prepared: &mut PreparedCheck<'_, '_>) {
        let PreparedCheck { config, check, now, ref mut plan, .. } = *prepared;
        let planning = trace::stage_span(trace::CheckStage::Plan);
        plan.fill(config, check, self.policy.planning, now);
        drop(planning);
    }

    /// Counts the descriptors and the hits of a planned check.
    pub(crate) fn count_planned(&self, prepared: &mut PreparedCheck<'_, '_>) {
        self.count_unmatched(prepared);
        if let Some(stats) = &self.stats {
            let PreparedCheck { config, check, .. } = *prepared;
            prepared.plan.stats = rule_stats::count_hits(stats, config, check, &prepared.plan);
        }
    }

    /// Decides a check without waiting, if the memory store or the lease balances can. Otherwise
    /// returns `None`.
    fn try_now(&self, prepared: &PreparedCheck<'_, '_>) -> Option<CheckResult> {
        let PreparedCheck { now, plan, .. } = prepared;
        if self.store().is_synchronous() {
            let Some(outcomes) = self.charge_now(*now, plan) else {
                return Some(self.decide_from_outcomes(
                    prepared,
                    &fail_all(&plan.charges, StoreFailure::TimedOut),
                ));
            };
            return Some(self.decide_from_outcomes(prepared, &outcomes));
        }
        let leases = self.leases.as_ref().filter(|leases| leases.has_leased_limits())?;
        let mut outcomes = Outcomes::new();
        leases.try_charge(*now, &plan.charges, plan.lease_terms(), &mut outcomes)?;
        Some(Ok(self.write_decision(prepared, outcomes.into_iter().map(ChargeDecision::Store))))
    }

    /// Makes the charges of `plan` in a store that replies at once.
    fn charge_now(&self, now: Nanos, plan: &CheckPlan<'_>) -> Option<Outcomes> {
        if let Some(terms) = occupying_terms(|| plan.lease_terms()) {
            return beside_leases::charge(self.store(), now, &plan.charges, &terms).now_or_never();
        }
        match self.store().charge(now, &plan.charges) {
            StoreReply::Ready(outcomes) => Some(outcomes),
            StoreReply::Pending(_) => None,
        }
    }

    /// Decides a check with one store call, ignoring leases and the deny cache.
    async fn resolve(
        &self,
        mut prepared: PreparedCheck<'_, '_>,
        deadline: Option<Nanos>,
    ) -> CheckResult {
        // Without leases of its own, this replica still sees those of proxies.
        let terms = || prepared.plan.lease_terms();
        let terms = self.leases.is_none().then(|| occupying_terms(terms)).flatten();
        let (now, charges) = (prepared.now, &prepared.plan.charges);
        let mut outcomes = self.charge_beside_leases(now, charges, terms, deadline).await;
        self.charge_stale(&mut prepared, &mut outcomes, deadline).await;
        self.decide_from_outcomes(&prepared, &outcomes)
    }

    /// Decides an all-or-nothing check in which some limits are charged in any case.
    async fn resolve_in_two_steps(
        &self,
        prepared: PreparedCheck<'_, '_>,
        deadline: Option<Nanos>,
    ) -> CheckResult {
        let charges = &prepared.plan.charges;
        let mut outcomes = charge_subset::placeholders(charges);
        let first = excess::first_step(charges);
        let new_outcomes = self.charge_store(prepared.now, &first.charges, deadline).await;
        first.copy_outcomes(new_outcomes, &mut outcomes);
        stale_charges::fail_stale(&mut outcomes);
        let to_send = excess::second_step(charges, &outcomes);
        self.resolve_rest(prepared, PartialDecision { outcomes, to_send }, deadline).await
    }

    /// Decides a check that needs leases or the deny cache. Sends the charges `to_send`, which have
    /// no cached denial.
    async fn resolve_rest(
        &self,
        mut prepared: PreparedCheck<'_, '_>,
        PartialDecision { to_send, mut outcomes }: PartialDecision,
        deadline: Option<Nanos>,
    ) -> CheckResult {
        if to_send.charges.list.is_empty() {
            return self.decide_from_outcomes(&prepared, &outcomes);
        }
        let (now, revision) = (prepared.now, prepared.config.revision);
        self.forget_denials(&prepared.plan);
        let new_outcomes = self.charge_rest(&prepared.plan, &to_send, now, deadline).await;
        to_send.copy_outcomes(new_outcomes, &mut outcomes);
        self.charge_stale(&mut prepared, &mut outcomes, deadline).await;
        let call = StoreCallTimes { sent_at: now, replied_at: self.clock.now(), revision };
        self.deny_cache.record_outcomes(&prepared.plan, &to_send, &outcomes, call);
        self.forget_denials(&prepared.plan);
        self.decide_from_outcomes(&prepared, &outcomes)
    }

    pub(crate) async fn charge_store(
        &self,
        now: Nanos,
        charges: &Charges,
        deadline: Option<Nanos>,
    ) -> Outcomes {
        match self.store().charge(now, charges) {
            StoreReply::Ready(outcomes) => outcomes,
            StoreReply::Pending(reply) => {
                let waiting = trace::stage_span(trace::CheckStage::Store);
                let outcomes = self.wait_until_deadline(reply, charges, deadline).await;
                drop(waiting);
                outcomes
            }
        }
    }

    /// Waits for `reply` until the caller's deadline. A missed deadline does not count as a timeout
    /// of the store.
    async fn wait_until_deadline(
        &self,
        reply: impl Future<Output = Outcomes>,
        charges: &Charges,
        deadline: Option<Nanos>,
    ) -> Outcomes {
        let Some(deadline) = deadline else { return reply.await };
        let time_left = Duration::from_nanos(deadline.since(self.clock.now()).0);
        let reply = tokio::time::timeout(time_left, reply).await;
        reply.unwrap_or_else(|_| fail_all(charges, StoreFailure::TimedOut))
    }

    /// Makes the charges in `to_send`: with leases for leased limits, with a store call for all
    /// others.
    async fn charge_rest(
        &self,
        plan: &CheckPlan<'_>,
        to_send: &ChargeSubset,
        now: Nanos,
        deadline: Option<Nanos>,
    ) -> Outcomes {
        let all: ChargeTerms<'_> = plan.lease_terms().collect();
        let (charges, terms) = (&to_send.charges, to_send.select_from(&all));
        match &self.leases {
            Some(leases) if terms.iter().any(Option::is_some) => {
                self.wait_until_deadline(leases.charge(now, charges, &terms), charges, deadline)
                    .await
            }
            _ => {
                let terms = occupying_terms(|| terms.iter().copied());
                self.charge_beside_leases(now, charges, terms, deadline).await
            }
        }
    }

    /// Makes `charges` in one store call, or with their `occupying` lease terms through the lease tables.
    async fn charge_beside_leases(
        &self,
        now: Nanos,
        charges: &Charges,
        occupying: Option<ChargeTerms<'_>>,
        deadline: Option<Nanos>,
    ) -> Outcomes {
        let Some(terms) = occupying else {
            return self.charge_store(now, charges, deadline).await;
        };
        let charge = Box::pin(beside_leases::charge(self.store(), now, charges, &terms));
        self.wait_until_deadline(charge, charges, deadline).await
    }

    /// Plans and charges again, once, if a charge was stale: the store's clock is in another
    /// calendar window than the plan.
    async fn charge_stale(
        &self,
        prepared: &mut PreparedCheck<'_, '_>,
        outcomes: &mut Outcomes,
        deadline: Option<Nanos>,
    ) {
        let Some(store_now) = stale_charges::store_now(outcomes) else { return };
        let PreparedCheck { config, check, now, ref plan, .. } = *prepared;
        let mut second_plan = CheckPlan::default();
        let at = PlanInstants { forced_at: now, windows_at: store_now };
        second_plan.fill_at(config, check, self.policy.planning, at);
        let missing =
            stale_charges::charges_to_repeat(&plan.charges, outcomes, &second_plan.charges);
        // A denied all-or-nothing call returned its hits to the lease balances, so the repeated
        // charges can use leases. With `ChargeMode::Each` only stale charges are repeated, whose
        // leases belong to another window.
        let has_balances =
            !matches!(missing.charges.mode, ChargeMode::Each) && self.needs_leases(&second_plan);
        let new_outcomes = if has_balances {
            self.charge_rest(&second_plan, &missing, now, deadline).await
        } else {
            self.charge_store(now, &missing.charges, deadline).await
        };
        missing.copy_outcomes(new_outcomes, outcomes);
        prepared.plan.charges.list = second_plan.charges.list;
        stale_charges::fail_stale(outcomes);
    }

    /// Returns `true` if the plan has a leased limit,
    /// or a refund that may belong to a leased counter.
    fn needs_leases(&self, plan: &CheckPlan<'_>) -> bool {
        let is_leased =
            |descriptor: &LimitPlan<'_>| matches!(descriptor.mode(), LimitMode::Leased(_));
        let refunds = || plan.charges.list.iter().any(|c| matches!(c.cost, Cost::Refund(_)));
        let Some(leases) = &self.leases else { return false };
        plan.limits.iter().any(is_leased) || leases.has_leased_limits() && refunds()
    }

    /// Forgets the remembered denials of counters that the check refunds.
    fn forget_denials(&self, plan: &CheckPlan<'_>) {
        if let Some(leases) = self.leases.as_ref().filter(|leases| leases.has_leased_limits()) {
            leases.forget_denials(&plan.charges);
        }
    }
}

pub(crate) fn validate(check: &Check<'_>) -> Result<(), CheckError> {
    if check.domain.is_empty() {
        return Err(CheckError::EmptyDomain);
    }
    if check.descriptors.is_empty() {
        return Err(CheckError::NoDescriptors);
    }
    Ok(())
}

fn fail_all(charges: &Charges, cause: StoreFailure) -> Outcomes {
    charges.list.iter().map(|_| ChargeOutcome::Failed(cause)).collect()
}
