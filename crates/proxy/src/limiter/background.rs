//! Decides requests with calls to Sluicegate, until their deadline.
//!
//! Guarantees:
//! - Without a connection, a known rule is used until it expires.
//! - A charge that fails because the limits changed is made once more, under the new rule.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::join_all;
use sluicegate_lease::leases::ChargeTerms;
use sluicegate_lease::store::{ChargeOutcome, Outcomes};
use tokio::time::{Instant, sleep, timeout_at};

use super::Limiter;
use super::rules::RuleState;
use crate::answer::{Answer, ReportedLimit, RuleAnswer};
use crate::call::CallFailure;
use crate::concurrency::AcquiredPermits;
use crate::found_rule::FoundRule;
use crate::kernel::decision::{RuleVerdict, StoreFailure};
use crate::kernel::proxy_rule::ProxyHandling;
use crate::permits::Admission;
use crate::request::OwnedDescriptor;
use crate::rule::KnownRule;
use crate::settings::WaitSettings;
use crate::wire;
use crate::wire::api::{
    CheckDecision, CheckDescriptor, CheckMessage, check_result, lease_message, proxy_message,
};

/// A call that has only a little time left is not begun.
const MIN_CALL_TIME: Duration = Duration::from_micros(100);

impl Limiter {
    /// Runs a task on the limiter's thread, after a delay. The task must not block.
    pub fn run_after(&self, delay: Duration, task: impl FnOnce() + Send + 'static) {
        self.0.runtime.spawn(async move {
            sleep(delay).await;
            task();
        });
    }

    /// Acquires the permits of a request, and decides its rules.
    pub(super) async fn admit(&self, rules: &[FoundRule], wait: WaitSettings) -> Admission {
        let acquired = match self.0.concurrency.acquire(rules, wait).await {
            Ok(acquired) => acquired,
            Err(rejected) => return (*rejected).into(),
        };
        let deadline = wait.end();
        let renewed = self.renewed(rules, deadline).await;
        let (answer, undecided) = self.try_decide_all(renewed.as_deref().unwrap_or(rules), wait);
        let answer = if undecided.is_empty() {
            answer
        } else {
            self.decide_rest(answer, undecided, wait, deadline).await
        };
        admission(answer, acquired, wait)
    }

    /// Finds rules again that changed while the request waited in a queue. Returns `None` if none
    /// changed, or if the new ones do not arrive in time.
    async fn renewed(&self, rules: &[FoundRule], deadline: Instant) -> Option<Vec<FoundRule>> {
        let now = self.0.clock.steady();
        let is_current = |rule: &FoundRule| self.0.rules.state(rule, now) == RuleState::Current;
        if rules.iter().all(is_current) {
            return None;
        }
        let renewed = rules.iter().map(|rule| self.renew(rule));
        timeout_at(deadline, join_all(renewed))
            .await
            .ok()?
            .into_iter()
            .collect::<Result<_, _>>()
            .ok()
    }

    async fn renew(&self, rule: &FoundRule) -> Result<FoundRule, CallFailure> {
        Ok(rule.with_rule(self.rule(rule.descriptor().clone()).await?))
    }

    /// Finds the rules of a request, and decides them.
    pub(super) async fn decide(
        &self,
        descriptors: Vec<OwnedDescriptor>,
        wait: WaitSettings,
    ) -> Admission {
        let deadline = wait.end();
        let rules = descriptors.iter().map(async |descriptor| {
            let rule = self.rule(descriptor.clone()).await?;
            Ok(FoundRule::new(rule, descriptor))
        });
        let Ok(rules) = timeout_at(deadline, join_all(rules)).await else {
            return Answer::failed(wait.failure).into();
        };
        let Ok(rules) = rules.into_iter().collect::<Result<Vec<_>, CallFailure>>() else {
            return Answer::failed(wait.failure).into();
        };
        if rules.iter().any(|rule| matches!(rule.reply.handling, ProxyHandling::AskTogether)) {
            return self.admit_together(&rules, wait).await;
        }
        if rules.iter().any(|rule| rule.reply.concurrency.is_some()) {
            return self.admit(&rules, wait).await;
        }
        self.decide_rest(Answer::unlimited(), rules, wait, deadline).await.into()
    }

    /// Acquires the permits of a request, and lets Sluicegate decide all its descriptors.
    async fn admit_together(&self, rules: &[FoundRule], wait: WaitSettings) -> Admission {
        let acquired = match self.0.concurrency.acquire(rules, wait).await {
            Ok(acquired) => acquired,
            Err(rejected) => return (*rejected).into(),
        };
        let descriptors = rules.iter().map(|rule| rule.usage.descriptor.clone());
        let descriptors: Vec<_> = descriptors.collect();
        let decided = self.check_remotely(&descriptors, wait, wait.end()).await;
        let mut answer = Answer::unlimited();
        answer.add(decided.unwrap_or_else(|_| RuleAnswer::failed(wait.failure)));
        admission(answer, acquired, wait)
    }

    /// Charges the rules that are not decided yet, all at once.
    pub(super) async fn decide_rest(
        &self,
        mut answer: Answer,
        rules: Vec<FoundRule>,
        wait: WaitSettings,
        deadline: Instant,
    ) -> Answer {
        let parts = rules.iter().map(|rule| self.decide_rule(rule, wait, deadline));
        for part in join_all(parts).await {
            answer.add(part);
        }
        answer
    }

    /// Fetches a rule again in the background, once at a time.
    pub(super) fn refresh(&self, rule: &FoundRule) {
        if rule.is_refreshing.swap(true, Relaxed) {
            return;
        }
        let (limiter, rule) = (self.clone(), rule.clone());
        tokio::spawn(async move {
            let fetched = limiter.fetch(rule.descriptor().clone()).await;
            if fetched.is_err() {
                rule.is_refreshing.store(false, Relaxed);
            }
        });
    }

    async fn fetch(&self, descriptor: OwnedDescriptor) -> Result<Arc<KnownRule>, CallFailure> {
        let rule = self.0.rules.fetch(descriptor).await?;
        if rule.reply.is_for_any_values {
            self.0.rules.insert(self.hash_keys(&rule.usage.descriptor), Arc::clone(&rule));
        }
        Ok(rule)
    }

    fn hash_keys(&self, descriptor: &OwnedDescriptor) -> crate::request::DescriptorHash {
        let entries = descriptor.entries.iter().map(|(key, value)| (&**key, (&**value).into()));
        self.0.hasher.hash_keys(&descriptor.domain, &entries.collect())
    }

    /// Returns a rule that may be used: a known one, or one from Sluicegate.
    async fn rule(&self, descriptor: OwnedDescriptor) -> Result<Arc<KnownRule>, CallFailure> {
        let known = self.0.rules.find(descriptor.hash);
        let now = self.0.clock.steady();
        if let Some(rule) = &known
            && self.0.rules.state(rule, now) == RuleState::Current
        {
            return Ok(Arc::clone(rule));
        }
        match (self.fetch(descriptor).await, known) {
            (Err(_), Some(rule)) if !rule.is_expired(now) => Ok(rule),
            (fetched, _) => fetched,
        }
    }

    async fn decide_rule(
        &self,
        rule: &FoundRule,
        wait: WaitSettings,
        deadline: Instant,
    ) -> RuleAnswer {
        match rule.reply.handling {
            ProxyHandling::Unlimited => rule.unlimited_answer(),
            ProxyHandling::Forced(verdict) => self.count(rule, rule.forced_answer(verdict)),
            ProxyHandling::Leased(_) => self.charge(rule, wait, deadline).await,
            ProxyHandling::Ask | ProxyHandling::AskTogether => {
                let descriptor = std::slice::from_ref(&rule.usage.descriptor);
                let decided = self.check_remotely(descriptor, wait, deadline).await;
                let failed = |_| self.count(rule, rule.failed_answer(wait.failure));
                // The reply names only a rule that denies.
                let named = |answer: RuleAnswer| RuleAnswer {
                    path: answer.path.or_else(|| rule.reply.path.clone()),
                    ..answer
                };
                decided.map_or_else(failed, named)
            }
        }
    }

    async fn charge(&self, rule: &FoundRule, wait: WaitSettings, deadline: Instant) -> RuleAnswer {
        let outcomes = self.charge_until(rule, deadline).await;
        if outcomes.iter().any(is_uncharged)
            && let Ok(Ok(new)) = timeout_at(deadline, self.newer(rule)).await
            && new.charges.is_some()
        {
            let outcomes = self.charge_until(&new, deadline).await;
            return self.count(&new, new.leased_answer(&outcomes, wait.failure));
        }
        self.count(rule, rule.leased_answer(&outcomes, wait.failure))
    }

    /// Returns the rule in force, if it is newer than `rule`.
    async fn newer(&self, rule: &FoundRule) -> Result<FoundRule, CallFailure> {
        let new = self.renew(rule).await?;
        if new.version == rule.version { Err(CallFailure::NotConnected) } else { Ok(new) }
    }

    async fn charge_until(&self, rule: &KnownRule, deadline: Instant) -> Outcomes {
        let Some(charges) = &rule.charges else { return Outcomes::new() };
        let (now, terms) = (self.0.clock.now(), rule.terms().collect::<ChargeTerms<'_>>());
        let call = timeout_at(deadline, self.0.leases.charge(now, charges, &terms));
        let failed = |_| ChargeOutcome::Failed(StoreFailure::TimedOut);
        call.await.unwrap_or_else(|_| charges.list.iter().map(failed).collect())
    }

    /// Lets Sluicegate decide descriptors. Sluicegate counts the decision.
    async fn check_remotely(
        &self,
        descriptors: &[OwnedDescriptor],
        wait: WaitSettings,
        deadline: Instant,
    ) -> Result<RuleAnswer, CallFailure> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left < MIN_CALL_TIME {
            return Err(CallFailure::TimedOut);
        }
        let descriptor = |descriptor: &OwnedDescriptor| CheckDescriptor {
            entries: descriptor.entry_messages(),
            hits: 1,
        };
        let message = CheckMessage {
            domain: descriptors.first().map_or_else(String::new, |first| first.domain.to_string()),
            descriptors: descriptors.iter().map(descriptor).collect(),
            timeout_us: u64::try_from(wait.deadline.as_micros()).ok(),
        };
        let reply = self.0.connection.call(proxy_message::Message::Check(message), left).await?;
        let lease_message::Message::Check(reply) = reply else {
            return Err(CallFailure::InvalidReply);
        };
        match reply.result {
            Some(check_result::Result::Decision(decision)) => Ok(rule_answer(&decision)),
            Some(check_result::Result::Failure(_)) | None => Err(CallFailure::InvalidReply),
        }
    }
}

/// Applies the failure rule if a permit is missing. A denied request releases its permits.
fn admission(mut answer: Answer, acquired: AcquiredPermits, wait: WaitSettings) -> Admission {
    if acquired.is_incomplete {
        answer.add(RuleAnswer::failed(wait.failure));
    }
    let permits = acquired.permits;
    if answer.verdict.is_allowed() {
        Admission { answer, permits: permits.started() }
    } else {
        answer.into()
    }
}

/// Returns `true` if the charge was certainly not made, so that it may be made under a newer rule.
fn is_uncharged(outcome: &ChargeOutcome) -> bool {
    match outcome {
        ChargeOutcome::Failed(cause) => matches!(
            cause,
            StoreFailure::Overloaded | StoreFailure::BreakerOpen | StoreFailure::Unsent
        ),
        ChargeOutcome::Stale(_) => true,
        _ => false,
    }
}

fn rule_answer(decision: &CheckDecision) -> RuleAnswer {
    let reported = decision.reported.as_ref().map(|limit| ReportedLimit {
        requests: limit.requests,
        period: Duration::from_nanos(limit.period_ns),
        remaining: limit.remaining,
        reset_after: wire::duration(limit.reset_after_us),
    });
    RuleAnswer {
        verdict: if decision.allowed { RuleVerdict::Allow } else { RuleVerdict::Deny },
        path: Some(&*decision.denied_by).filter(|path| !path.is_empty()).map(Arc::from),
        retry_after: decision.retry_after_us.map(wire::duration),
        ban_status: decision.ban_status.and_then(error_status),
        reported,
    }
}

/// Returns a status from 400 to 599. Envoy cannot send any other as a denial.
fn error_status(status: u32) -> Option<u16> {
    u16::try_from(status).ok().filter(|status| (400..600).contains(status))
}
