//! The decision path: one instant, one configuration, one answer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use super::admit::Admission;
use super::admit::fleet::Fleet;
use super::again::{self, Missing};
use super::ceilings::MAX_BUCKETS;
use super::degrade::{self, Settled};
use super::freezer::Freezer;
use super::ids::{BOUNDS, Ids};
use super::leases::Leases;
use super::ledgers::{Call, Ledgers, Spent};
use super::local::Local;
use super::peers::Peers;
use super::plan::{Instants, Part, Plan, Planning, standing};
use super::{Answer, Membership, Refusal, Status, decisions, retry, tally};
use crate::backend::inside::Inside;
use crate::backend::{self, Backend, Cause, Charge, Charges, Outcome, Outcomes, Reply};
use crate::clock::Clock;
use crate::config::Config;
use crate::kernel::concurrency::register;
use crate::kernel::decision::{Finding, Group, Question, Reason, Verdict, binding, combine};
use crate::kernel::rate::{Room, Step};
use crate::kernel::units::{Nanos, Revision};
use crate::telemetry::event::Decided;
use crate::telemetry::stats::{Stat, Stats};
use crate::telemetry::trace;

/// Answers questions.
#[derive(Debug)]
pub struct Engine {
    pub(super) clock: Arc<Clock>,
    pub(super) config: ArcSwapOption<Config>,
    backend: Arc<dyn Backend>,
    pub(super) policy: Policy,
    /// What is known without asking the backend.
    ledgers: Ledgers,
    /// What is held of leased limits, where the backend is one that replicas share.
    pub(super) leases: Option<Arc<Leases>>,
    /// What counts when the backend does not.
    local: Option<Local>,
    /// Who is in flight.
    pub(super) ceilings: Admission,
    /// What proxies' ids hold.
    pub(super) ids: Ids,
    /// What each rule did, under the reference's names.
    stats: Option<Arc<Stats>>,
    /// The way to other replicas.
    pub(super) peers: Option<Peers>,
    /// What operators hold.
    pub(super) freezer: Freezer,
}

/// A question under way: what it lives under, and until when it waits.
#[derive(Clone, Copy)]
struct Asking<'a, 'q> {
    config: &'a Config,
    question: &'a Question<'q>,
    now: Nanos,
    end: Option<Nanos>,
}

/// What the settings say about every answer.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// How questions become charges.
    pub planning: Planning,
    /// Denials of whole questions are reported and not enforced.
    pub shadow: bool,
    /// Part of a limit, 0 to 1, beyond which a descriptor is counted as near it.
    pub near_limit_ratio: f32,
}

impl Default for Policy {
    fn default() -> Self {
        Self { planning: Planning::default(), shadow: false, near_limit_ratio: 0.8 }
    }
}

impl Engine {
    /// An engine without limits; it refuses every question until [`Engine::publish`].
    #[must_use]
    pub fn new(clock: Clock, backend: Arc<dyn Backend>, policy: Policy) -> Self {
        let (config, ledgers) = (ArcSwapOption::empty(), Ledgers::new());
        let clock = Arc::new(clock);
        let ceilings = Admission::new(Arc::clone(&clock), MAX_BUCKETS, 0);
        let shared = || Leases::new(Arc::clone(&clock), Arc::clone(&backend));
        let leases = (!backend.is_at_hand()).then(shared);
        let (local, ids, stats, peers) = (None, Ids::new(BOUNDS), None, None);
        let freezer = Freezer::default();
        Self {
            clock,
            config,
            backend,
            policy,
            ledgers,
            leases,
            local,
            ceilings,
            ids,
            stats,
            peers,
            freezer,
        }
    }

    /// The same engine over a backend that can fail: `on_backend_failure: local` is counted in
    /// `local`. Without this it is an error like `error`.
    #[must_use]
    pub fn with_local(self, local: Local) -> Self {
        Self { local: Some(local), ..self }
    }

    /// The same, remembering so many releases that come before their acquire.
    #[must_use]
    pub fn with_early_releases(self, bounds: register::Bounds) -> Self {
        Self { ids: Ids::new(bounds), ..self }
    }

    /// The same engine with at most `most` buckets of ceilings. `jitter` is any number, another one
    /// for each replica.
    #[must_use]
    pub fn with_buckets(self, most: usize, jitter: u64) -> Self {
        let ceilings = Admission::new(Arc::clone(&self.clock), most, jitter);
        Self { ceilings, ..self }
    }

    /// The same engine, which tells `stats` what each rule does.
    #[must_use]
    pub fn with_stats(self, stats: Arc<Stats>) -> Self {
        Self { stats: Some(stats), ..self }
    }

    /// What each rule did, where that is counted.
    #[must_use]
    pub const fn stats(&self) -> Option<&Arc<Stats>> {
        self.stats.as_ref()
    }

    /// The same engine in a fleet that shares ceilings.
    #[must_use]
    pub fn with_fleet(self, fleet: Arc<Fleet>) -> Self {
        Self { ceilings: self.ceilings.with_fleet(fleet), ..self }
    }

    /// Speaks for the shared ceilings, for ever.
    pub async fn speak_on(&self) {
        self.ceilings.speak_on(self.backend()).await;
    }

    /// Says of them what is due now, and hears the answers.
    pub async fn speak_once(&self) {
        self.ceilings.speak_once(self.backend()).await;
    }

    /// The fleet, where the backend is one that replicas share.
    #[must_use]
    pub fn membership(&self) -> Option<&Membership> {
        self.local.as_ref().map(|local| &*local.membership)
    }

    pub(super) const fn local(&self) -> Option<&Local> {
        self.local.as_ref()
    }

    pub(super) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// Why the backend does not answer just now, if it does not.
    #[must_use]
    pub fn trouble(&self) -> Option<Cause> {
        self.backend.trouble()
    }

    /// What the backend has counted of itself so far.
    #[must_use]
    pub fn inside(&self) -> Inside {
        self.backend.inside()
    }

    /// Puts `config` in force for every question that comes from now on, and its ceilings for those
    /// who wait already.
    pub fn publish(&self, config: Arc<Config>) {
        self.freezer.load(config, self.clock.now(), |config| self.put_in_force(config));
    }

    pub(super) fn put_in_force(&self, config: Arc<Config>) {
        let before = self.config.swap(Some(config));
        let Some(now) = self.config() else { return };
        if let Some(leases) = &self.leases {
            leases.follow(before.as_deref(), &now);
        }
        // After it is in force: a bucket that a question by the old one makes meanwhile is reloaded as well.
        self.reload_ceilings(&now);
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> Option<Arc<Config>> {
        self.config.load_full()
    }

    /// The clock that rules this engine's answers.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Answers `question`, whenever the backend does.
    ///
    /// # Errors
    /// The [`Refusal`]s of an empty domain, an empty list and an absent configuration, in this
    /// order; no counter has moved then. [`Refusal::BackendDown`] where the backend did not answer.
    pub const fn decide<'a, 'q>(&'a self, question: &'a Question<'q>) -> Deciding<'a, 'q> {
        self.decide_within(question, None)
    }

    /// Answers `question` within `patience`, if the caller has an end to it: what the backend has
    /// not answered by then it has not answered.
    ///
    /// # Errors
    /// As [`Engine::decide`].
    pub const fn decide_within<'a, 'q>(
        &'a self,
        question: &'a Question<'q>,
        patience: Option<Nanos>,
    ) -> Deciding<'a, 'q> {
        Deciding { engine: self, question, patience, later: None }
    }

    /// Answers `question`, asked at `now`, where nothing need be waited for: `answer`, which is
    /// [`Answer::to_nothing`], becomes the answer.
    ///
    /// # Errors
    /// As [`Engine::decide`].
    // In place: an answer is large, and to move it from function to function costs more than to make it.
    pub fn decide_at_hand(
        &self,
        question: &Question<'_>,
        now: Nanos,
        answer: &mut Answer,
    ) -> Option<Result<(), Refusal>> {
        if self.backend.is_at_hand() {
            return Some(self.decide_at_once(question, now, answer));
        }
        self.decide_from_balances(question, now, answer)
    }

    fn decide_at_once(
        &self,
        question: &Question<'_>,
        now: Nanos,
        answer: &mut Answer,
    ) -> Result<(), Refusal> {
        check(question)?;
        let config = self.config.load();
        let config = config.as_deref().ok_or(Refusal::NoConfig)?;
        let mut plan = Plan::default();
        let planning = trace::part(trace::Part::Plan);
        plan.fill(config, question, self.policy.planning, now);
        drop(planning);
        self.count_hits(config, question, &mut plan);
        (answer.revision, answer.now) = (config.revision, now);
        match &self.backend.charge(now, &plan.charges) {
            Reply::Now(outcomes) => self.finish(&plan, outcomes, answer),
            Reply::Later(_) => self.finish(&plan, &failed(&plan.charges, Cause::Late), answer),
        }
    }

    async fn decide_later(
        &self,
        question: &Question<'_>,
        now: Nanos,
        patience: Option<Nanos>,
    ) -> Result<Answer, Refusal> {
        check(question)?;
        // Whole, because it outlives waits: `load` lends from a few places per thread.
        let config = self.config.load_full().ok_or(Refusal::NoConfig)?;
        let mut plan = Plan::default();
        let planning = trace::part(trace::Part::Plan);
        plan.fill(&config, question, self.policy.planning, now);
        drop(planning);
        self.count_hits(&config, question, &mut plan);
        let end = patience.map(|patience| now.plus(patience));
        let asking = Asking { config: &config, question, now, end };
        if self.ledgers.concern(&plan) || self.leases_concern(&plan) {
            // Boxed: a question of strict limits does not carry about what this takes.
            return Box::pin(self.decide_with_ledgers(plan, asking)).await;
        }
        let mut outcomes = self.charge(now, &plan.charges, end).await;
        self.ask_stale_again(&mut plan, &mut outcomes, asking).await;
        self.finished(&plan, &outcomes, config.revision, now)
    }

    /// Counts what is about to be asked, and finds where it is counted what comes of it.
    pub(super) fn count_hits<'c>(
        &self,
        config: &'c Config,
        question: &Question<'_>,
        plan: &mut Plan<'c>,
    ) {
        if let Some(stats) = &self.stats {
            plan.tally = tally::of(stats, config, question, plan);
        }
    }

    /// Answers what is known, asks the rest, and learns from it.
    async fn decide_with_ledgers<'c>(
        &self,
        mut plan: Plan<'c>,
        asking: Asking<'c, '_>,
    ) -> Result<Answer, Refusal> {
        let Asking { config: &Config { revision, .. }, now, end, .. } = asking;
        let mut rest = match self.ledgers.spend(&plan, revision, now) {
            Spent::All(settled) => {
                let mut answer = Answer::to_nothing(revision, now);
                self.answer(&plan, &mut settled.into_iter(), &mut answer);
                return Ok(answer);
            }
            Spent::Rest(rest) => rest,
        };
        if !rest.missing.charges.list.is_empty() {
            self.forget_denials(&plan);
            let answered = self.charge_missing(&plan, &rest.missing, now, end).await;
            rest.missing.put(answered, &mut rest.outcomes);
            self.ask_stale_again(&mut plan, &mut rest.outcomes, asking).await;
            let call = Call { sent: now, answered: self.clock.now(), revision };
            let held_for = |charge: &Charge| self.backend.held_for(charge);
            self.ledgers.settle(&plan, &rest.missing, &rest.outcomes, call, held_for);
            self.forget_denials(&plan);
        }
        self.finished(&plan, &rest.outcomes, revision, now)
    }

    /// Asks the backend, until `end` if there is one.
    pub(super) async fn charge(
        &self,
        now: Nanos,
        charges: &Charges,
        end: Option<Nanos>,
    ) -> Outcomes {
        match self.backend.charge(now, charges) {
            Reply::Now(outcomes) => outcomes,
            Reply::Later(reply) => {
                let waiting = trace::part(trace::Part::Backend);
                let outcomes = self.wait(reply, charges, end).await;
                drop(waiting);
                outcomes
            }
        }
    }

    fn finished(
        &self,
        plan: &Plan<'_>,
        outcomes: &[Outcome],
        revision: Revision,
        now: Nanos,
    ) -> Result<Answer, Refusal> {
        let mut answer = Answer::to_nothing(revision, now);
        self.finish(plan, outcomes, &mut answer).map(|()| answer)
    }

    /// From outcomes to the answer, and what is told of it.
    fn finish(
        &self,
        plan: &Plan<'_>,
        outcomes: &[Outcome],
        answer: &mut Answer,
    ) -> Result<(), Refusal> {
        if degrade::is_needed(outcomes) {
            let (quota_for_all, local) = (self.policy.planning.quota_for_all, self.local.as_ref());
            let settled = degrade::settle(plan, outcomes, local, answer.now, quota_for_all)?;
            self.answer(plan, &mut settled.into_iter(), answer);
        } else {
            let mut settled = outcomes.iter().copied().map(Settled::Answered);
            self.answer(plan, &mut settled, answer);
        }
        Ok(())
    }

    /// The reply, or failures when it has not come by `end`. A caller in a hurry is no fault of the
    /// backend's, which is why the backend is not told.
    pub(super) async fn wait(
        &self,
        reply: impl Future<Output = Outcomes>,
        charges: &Charges,
        end: Option<Nanos>,
    ) -> Outcomes {
        let Some(end) = end else { return reply.await };
        let left = Duration::from_nanos(end.since(self.clock.now()).0);
        let answered = tokio::time::timeout(left, reply).await;
        answered.unwrap_or_else(|_| failed(charges, Cause::Late))
    }

    /// Asks once more for what was planned around another time than the store's.
    async fn ask_stale_again<'c>(
        &self,
        plan: &mut Plan<'c>,
        outcomes: &mut Outcomes,
        asking: Asking<'c, '_>,
    ) {
        let Some(store_now) = again::store_now(outcomes) else { return };
        let mut later = Plan::default();
        let at = Instants { held: asking.now, windows: store_now };
        later.fill_at(asking.config, asking.question, self.policy.planning, at);
        let missing = again::missing(&plan.charges, outcomes, &later.charges);
        // At this process's instant: the store goes by its own clock, but for the keys that name a
        // window of this one.
        let answered = self.charge_again(&later, &missing, asking).await;
        missing.put(answered, outcomes);
        plan.charges.list = later.charges.list;
        again::fail_stale(outcomes);
    }

    /// What is charged as one is so with what is held, of which all was put back. What is stale by itself is not: its lease
    /// would be of another window than the next question asks for.
    async fn charge_again(
        &self,
        later: &Plan<'_>,
        missing: &Missing,
        Asking { now, end, .. }: Asking<'_, '_>,
    ) -> Outcomes {
        if matches!(missing.charges.rule, backend::Rule::Each) || !self.leases_concern(later) {
            return self.charge(now, &missing.charges, end).await;
        }
        // Boxed: a question of strict limits does not carry about what this takes.
        Box::pin(self.charge_missing(later, missing, now, end)).await
    }

    /// The answer to what was planned and came of it; counted.
    pub(super) fn answer(
        &self,
        plan: &Plan<'_>,
        settled: &mut dyn Iterator<Item = Settled>,
        answer: &mut Answer,
    ) {
        let quota_for_all = self.policy.planning.quota_for_all;
        let statuses = &mut answer.statuses;
        let mut charged = plan.charges.list.iter().zip(settled);
        let (mut tally, mut near) = (plan.tally.iter(), 0);
        for part in &plan.parts {
            let mut most = 0;
            let next = || {
                let (charge, settled) = charged.next()?;
                if let Some(counted) = tally.next() {
                    counted.count(charge.cost, &settled, self.policy.near_limit_ratio);
                }
                most = charge.strategy.most();
                Some((charge, settled))
            };
            statuses.push(Status::UNLIMITED);
            let Some(status) = statuses.last_mut() else { continue };
            tell(status, part, next);
            near += u64::from(self.is_near(&status.finding, most));
        }
        let findings = || statuses.iter().map(|status| &status.finding);
        let decided = combine(findings().map(|f| (f.standing.group, f.verdict)), quota_for_all);
        let denied = decided == Verdict::Deny;
        answer.shadowed = self.policy.shadow && denied;
        if denied && !answer.shadowed {
            answer.verdict = Verdict::Deny;
            answer.retry_after = retry::wait(plan, statuses, self.local.as_ref(), quota_for_all);
        }
        answer.binding = binding(findings(), quota_for_all);
        let (verdict, shadowed) = (answer.verdict, answer.shadowed);
        Decided { verdict, shadowed, reasons: findings().map(|f| f.reason), near }.emit();
        if let (true, Some(stats)) = (shadowed, &self.stats) {
            stats.add(Stat::GlobalShadowMode, 1);
        }
        decisions::log(plan, answer, &self.clock);
    }

    /// Whether a limit admitted, of which a counter at rest admits `most` at once, and is nearly used up.
    fn is_near(&self, finding: &Finding, most: u32) -> bool {
        let used = u64::from(most).saturating_sub(finding.room.remaining.0);
        finding.reason == Reason::WithinLimit
            && near_from(most, self.policy.near_limit_ratio) < used
    }
}

/// A question on its way to its answer; ready at once where the backend is at hand.
// By hand: an `async fn` moves its answer, which is large, twice more than this.
#[allow(missing_debug_implementations)]
#[must_use = "a question is decided by awaiting this"]
pub struct Deciding<'a, 'q> {
    engine: &'a Engine,
    question: &'a Question<'q>,
    patience: Option<Nanos>,
    /// What is waited for.
    later: Option<Later<'a>>,
}

type Later<'a> = Pin<Box<dyn Future<Output = Result<Answer, Refusal>> + Send + 'a>>;

impl Future for Deciding<'_, '_> {
    type Output = Result<Answer, Refusal>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { engine, question, patience, later } = self.get_mut();
        if let Some(later) = later {
            return later.as_mut().poll(cx);
        }
        let now = engine.clock.now();
        let mut answer = Answer::to_nothing(Revision::default(), now);
        if let Some(decided) = engine.decide_at_hand(question, now, &mut answer) {
            return Poll::Ready(decided.map(|()| answer));
        }
        later.insert(Box::pin(engine.decide_later(question, now, *patience))).as_mut().poll(cx)
    }
}

/// What no configuration can answer.
pub(super) fn check(question: &Question<'_>) -> Result<(), Refusal> {
    if question.domain.is_empty() {
        return Err(Refusal::EmptyDomain);
    }
    if question.descriptors.is_empty() {
        return Err(Refusal::NoDescriptors);
    }
    Ok(())
}

/// Every charge unanswered.
fn failed(charges: &Charges, cause: Cause) -> Outcomes {
    charges.list.iter().map(|_| Outcome::Failed(cause)).collect()
}

/// Hits up to which a limit is not nearly used up, computed in the reference's 32-bit floats.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "as the reference rounds: down; a ratio is 0 to 1"
)]
pub(super) fn near_from(limit: u32, ratio: f32) -> u64 {
    (limit as f32 * ratio) as u64
}

/// Writes the status of one descriptor; `next` is its charge and what became of that.
fn tell<'p>(
    status: &mut Status,
    part: &Part<'_>,
    next: impl FnOnce() -> Option<(&'p Charge, Settled)>,
) {
    let Status { finding, metadata } = status;
    match part {
        Part::Nothing => {}
        Part::Unlimited(_) => *finding = Finding::settled(Reason::Unlimited, Group::Aside),
        Part::Replaced => finding.reason = Reason::Replaced,
        Part::Frozen(rule, _, verdict) => {
            metadata.clone_from(&rule.metadata);
            (finding.limit, finding.standing) = (part.shown(), standing(rule));
            finding.rule(*verdict, Reason::Frozen);
        }
        Part::Charged(..) | Part::Override(..) => {
            *metadata = part.rule().and_then(|rule| rule.metadata.clone());
            let Some((charge, settled)) = next() else { return };
            (finding.limit, finding.standing) = (part.shown(), charge.standing);
            settle(finding, settled);
        }
    }
}

/// Writes what was settled of a charge, under the limit and the standing that `finding` has.
fn settle(finding: &mut Finding, settled: Settled) {
    match settled {
        Settled::Answered(outcome) => learn(finding, outcome),
        Settled::Ruled(verdict, reason) => finding.rule(verdict, reason),
        Settled::NotAsked => {
            *finding = Finding::settled(Reason::NotAsked, finding.standing.group);
        }
        Settled::Local(outcome) => {
            learn(finding, outcome);
            finding.reason = Reason::BackendDownLocal;
        }
    }
}

/// Writes what a counter's outcome means.
#[inline]
fn learn(finding: &mut Finding, outcome: Outcome) {
    match outcome {
        Outcome::Stepped(step) | Outcome::Counted(step, _) => finding.learn(step),
        Outcome::Refunded(step) => {
            finding.learn(Step::Admit(room(step)));
            finding.reason = Reason::Refunded;
        }
        Outcome::Full(verdict) => finding.rule(verdict, Reason::StoreFull),
        // Both are settled before (`degrade::settle`); what got here all the same is denied.
        Outcome::Stale(_) | Outcome::Failed(_) => {
            finding.rule(Verdict::Deny, Reason::BackendDownDenied);
        }
    }
}

const fn room(step: Step) -> Room {
    match step {
        Step::Admit(room) | Step::Never(room) | Step::Deny { room, .. } => room,
        Step::Stale => Room { remaining: crate::kernel::units::Hits(0), reset_after: Nanos(0) },
    }
}
