//! Acquires the permits of a check and uses its budgets before its rate limits are decided.
//!
//! Guarantees:
//! - All checks acquire permits in the same order, so they cannot deadlock.
//! - A check gets all of its permits or none.
//! - If a permit expires while the check waits for another one, the check starts again while time
//!   is left.
//! - A check that a concurrency limit rejects changes no counter.
//! - A check that a rate limit or a budget denies keeps no permit and no hold.
//! - Dropping the future or [`RequestPermits`] releases everything.
//! - After a wait, a check takes its next limit from the current configuration.
//!
//! Not covered:
//! - The end of a request: each protocol in `edge` reports it.
//! - Checks of [`Engine::decide`]: they acquire no permits, because their end is not reported.

use std::sync::Arc;

use smallvec::SmallVec;
use tracing::Level;

use super::bucket_name::{bucket_of, limit_from_table, limit_of_bucket};
use super::permit_collector::PermitCollector;
use super::request_permits::RequestPermits;
use super::terms;
use super::wait_deadlines::{WaitDeadlines, time_left};
use crate::active_config::ActiveConfig;
use crate::budgets::{BudgetAnswer, BudgetUse, HeldBudgets};
use crate::concurrency::{
    BucketLoad, ConcurrencyLimits, PermitGuard, PermitRequest, SharedLimit, StrictLimit,
    rules_at_process,
};
use crate::config::Config;
use crate::config::concurrency::{ConcurrencyLimit, ConcurrencyMode};
use crate::decide::path::validate;
use crate::kernel::concurrency::Requester;
use crate::kernel::concurrency::limiter::LimiterConfig;
use crate::kernel::decision::{Check, Cost, Reason, Verdict};
use crate::kernel::key::CounterKey;
use crate::kernel::units::{Hits, Nanos, Revision};
use crate::telemetry::event::{ConcurrencyLimitExceeded, Event as _};
use crate::{CheckError, Decision, Engine, Rejection};

/// The result of a check that needs permits.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the usual one is the large one")]
pub enum AdmissionOutcome {
    /// The rate limits decided the check. The permits are empty after a denial, or if no
    /// concurrency limit covers the check.
    Decided(Decision, RequestPermits),
    /// A concurrency limit or a budget rejected the check. No counter of a rate limit changed.
    Rejected(Rejection),
}

/// The result of one attempt to acquire all permits of a check.
enum AcquirePass {
    /// All permits, and the path of the first limit that would have rejected the check without
    /// shadow mode.
    Acquired(RequestPermits, Option<Arc<str>>),
    /// A permit expired during a later wait, and the others were released. The check starts again
    /// and may wait until this instant.
    Restart(Nanos),
}

/// The time after which a permit expires unless it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitLifetime {
    /// Never, because the end of the request is always reported.
    UntilReleased,
    /// After `max_duration`, because the end of the request may never be reported.
    MaxDuration,
}

/// The permits and budgets that a request needs before its rate limits are decided.
#[derive(Clone, Copy, Debug)]
pub struct RequestStart<'s, 'q> {
    /// The descriptors that need permits.
    pub covered: &'s Check<'q>,
    /// The budgets of the request.
    pub budgets: BudgetUse<'s, 'q>,
}

type RequiredLimits<'c> = SmallVec<[(CounterKey, &'c ConcurrencyLimit); 2]>;

impl Engine {
    /// Acquires the permits of the check, then decides its rate limits.
    ///
    /// The timeout covers all waits in queues and for the store together. Zero disables queueing.
    /// Safe to cancel.
    ///
    /// # Errors
    /// As [`Engine::decide_within`]. The check has no permits then.
    pub async fn admit(
        &self,
        question: &Check<'_>,
        patience: Option<Nanos>,
    ) -> Result<AdmissionOutcome, CheckError> {
        let start = RequestStart { covered: question, budgets: BudgetUse::Charge };
        self.admit_request(start, question, patience, PermitLifetime::UntilReleased).await
    }

    /// Like [`Engine::admit`], for a caller that may never report the end of the request. Each
    /// permit expires after the `max_duration` of its limit unless it is renewed.
    ///
    /// # Errors
    /// As [`Engine::admit`].
    pub async fn admit_with_deadline(
        &self,
        question: &Check<'_>,
        patience: Option<Nanos>,
    ) -> Result<AdmissionOutcome, CheckError> {
        let start = RequestStart { covered: question, budgets: BudgetUse::Charge };
        self.admit_request(start, question, patience, PermitLifetime::MaxDuration).await
    }

    /// Acquires permits and uses budgets as `start` says, then decides the rate limits.
    ///
    /// # Errors
    /// As [`Engine::admit`]. [`CheckError::BadId`] if a reserve's id is in flight or has ended.
    pub async fn admit_request<'q>(
        &self,
        start: RequestStart<'_, 'q>,
        question: &Check<'q>,
        patience: Option<Nanos>,
        keep: PermitLifetime,
    ) -> Result<AdmissionOutcome, CheckError> {
        validate(question)?;
        if let Some(denied) = self.deny_banned(question) {
            return Ok(denied);
        }
        let mut wait = WaitDeadlines::starting_at(self.clock().steady(), patience);
        let end = wait.queue_deadline;
        let (config, permits, shadow_rejected_by) = loop {
            let config = self.active.load_full().ok_or(CheckError::NoConfig)?;
            match self.acquire_all(&config, (start.covered, question), wait, keep).await {
                Ok(AcquirePass::Acquired(permits, path)) => break (config, permits, path),
                Ok(AcquirePass::Restart(last)) => wait.queue_deadline = Some(last),
                Err(rejection) => return Ok(AdmissionOutcome::Rejected(rejection)),
            }
        };
        // A recording has the reserve also if no budget is configured yet.
        let mut decision = if config.has_budgets || self.recorder.is_on() {
            // Boxed, to keep the future of checks without budgets small.
            let used = (question, start.budgets);
            let admit = self.use_and_decide(&config, used, end);
            match Box::pin(self.admit_recorded(admit, used)).await? {
                AdmissionOutcome::Decided(decision, _) => decision,
                rejected @ AdmissionOutcome::Rejected(_) => return Ok(rejected),
            }
        } else {
            self.decide_within(question, self.time_left(end)).await?
        };
        decision.shadow_denied_by = shadow_rejected_by.or(decision.shadow_denied_by);
        let is_denied = decision.verdict == Verdict::Deny;
        let permits = if is_denied { RequestPermits::default() } else { permits.started() };
        Ok(AdmissionOutcome::Decided(decision, permits))
    }

    fn time_left(&self, end: Option<Nanos>) -> Option<Nanos> {
        end.map(|end| end.since(self.clock().steady()))
    }

    /// Uses the budgets of a check, then decides its rate limits until `end`. Returns no permits.
    async fn use_and_decide<'q>(
        &self,
        config: &ActiveConfig,
        (question, budgets): (&Check<'q>, BudgetUse<'_, 'q>),
        end: Option<Nanos>,
    ) -> Result<AdmissionOutcome, CheckError> {
        let used = self.use_budgets(config, (question, budgets), self.time_left(end)).await?;
        let held = match used {
            BudgetAnswer::Allowed(holds) => holds,
            BudgetAnswer::Rejected(rejected) => return Ok(AdmissionOutcome::Rejected(rejected)),
        };
        let decision = self.decide_unrecorded(question, self.time_left(end)).await?;
        if decision.verdict == Verdict::Allow {
            held.into_iter().for_each(HeldBudgets::keep);
        }
        Ok(AdmissionOutcome::Decided(decision, RequestPermits::default()))
    }

    async fn acquire_all(
        &self,
        config: &Arc<ActiveConfig>,
        (covered, question): (&Check<'_>, &Check<'_>),
        wait: WaitDeadlines,
        keep: PermitLifetime,
    ) -> Result<AcquirePass, Rejection> {
        let limits = required_limits(config, covered, self.clock().now());
        let mut collector = PermitCollector::default();
        for (bucket, planned) in &limits {
            let newer = self.newer_than(config);
            let current = newer.as_deref().unwrap_or(config);
            let ceiling = match &newer {
                None => Some(*planned),
                Some(newer) => limit_of_bucket(newer, bucket.as_bytes(), self.clock().now()),
            };
            // The current configuration has no concurrency limit for this bucket.
            let Some(ceiling) = ceiling else { continue };
            let by = self.requester(current, ceiling, question);
            let held = self.acquire_one((bucket, by), (current, ceiling), wait, keep).await;
            let held =
                held.map_err(|reason| self.reject(question, (current, ceiling), bucket, reason))?;
            collector.add_verdict(planned, held.is_some());
            if held.is_none() {
                collector.add_shadow_rejection(ceiling);
            }
            if !collector.add(held, self.is_shadow_limit(ceiling)) {
                return self.restart_until(&limits, wait).map(AcquirePass::Restart).ok_or_else(
                    || self.reject(question, (current, ceiling), bucket, Reason::QueueTimeout),
                );
            }
        }
        collector.verdicts.iter().for_each(|&(rule, verdict)| config.counters.count(rule, verdict));
        let rejected_by = collector.shadow_rejected_by.take();
        Ok(AcquirePass::Acquired(collector.into_permits(), rejected_by))
    }

    /// Returns the instant until which a check that lost a permit may wait again. `None` if the
    /// caller's timeout, or the sum of the check's queue timeouts, has passed.
    fn restart_until(
        &self,
        limits: &[(CounterKey, &ConcurrencyLimit)],
        wait: WaitDeadlines,
    ) -> Option<Nanos> {
        let deadline = wait.started_at.plus(total_queue_timeout(limits));
        let last = wait.queue_deadline.map_or(deadline, |end| end.min(deadline));
        (self.clock().steady() < last).then_some(last)
    }

    /// Publishes a rejection, and returns the response.
    fn reject(
        &self,
        check: &Check<'_>,
        (config, limit): (&ActiveConfig, &ConcurrencyLimit),
        bucket: &CounterKey,
        reason: Reason,
    ) -> Rejection {
        let (bucket, reject, path) = (bucket.as_bytes(), limit.reject.clone(), limit.path.clone());
        let rejection = Rejection { reject, reason, path, load: self.reported_load(bucket) };
        self.publish_rejection(check, (config, limit), bucket, &rejection);
        rejection
    }

    /// Returns the load of a bucket that rejects a check. `None` unless it is logged or sent.
    fn reported_load(&self, bucket: &[u8]) -> Option<BucketLoad> {
        let is_reported = tracing::enabled!(Level::DEBUG) || self.sends_rejections();
        is_reported.then(|| self.concurrency_limits.load(bucket)).flatten()
    }

    /// Returns the current configuration if it differs from `config`. If it does not, writes no
    /// shared memory.
    fn newer_than(&self, config: &Arc<ActiveConfig>) -> Option<Arc<ActiveConfig>> {
        let newest = self.active.load();
        Option::as_ref(&newest).filter(|newest| !Arc::ptr_eq(newest, config)).cloned()
    }

    /// Returns the longest total time that the check may wait in queues, including repeated
    /// attempts.
    #[must_use]
    pub fn longest_queue_wait(&self, check: &Check<'_>) -> Nanos {
        let Some(config) = self.config() else { return Nanos(0) };
        total_queue_timeout(&required_limits(&config, check, self.clock().now()))
    }

    /// Returns the path of the concurrency limit that covers a bucket.
    #[must_use]
    pub fn concurrency_limit_path(&self, bucket: &[u8]) -> Option<Box<str>> {
        let config = self.config()?;
        limit_of_bucket(&config, bucket, self.clock().now()).map(|limit| limit.path.clone())
    }

    /// Applies the concurrency limits of `config` to existing buckets and their waiting requests.
    pub(crate) fn reload_concurrency_limits(&self, config: &Config) {
        if let Some(fleet) = self.concurrency_limits.fleet_reporter() {
            let all =
                || config.domains.values().flat_map(|domain| domain.tree.concurrency_limits());
            fleet.expect_strict(all().any(|ceiling| ceiling.mode == Some(ConcurrencyMode::Strict)));
            fleet.expect_shared(all().filter_map(terms::shared_limit));
        }
        let now = self.clock().now();
        self.concurrency_limits.reload_all(bucket_revision(config), |name| {
            let ceiling = limit_of_bucket(config, name, now)?;
            Some((self.local_rules(ceiling), self.shared_limit(ceiling)))
        });
    }

    /// Returns the concurrency limits of this replica.
    #[must_use]
    pub const fn concurrency_limits(&self) -> &ConcurrencyLimits {
        &self.concurrency_limits
    }

    /// Returns a watch on the number of expired shares. `None` without a fleet.
    #[must_use]
    pub fn watch_fences(&self) -> Option<tokio::sync::watch::Receiver<u64>> {
        Some(self.concurrency_limits.fleet_reporter()?.totals().watch_fences())
    }

    fn shared_limit(&self, limit: &ConcurrencyLimit) -> Option<SharedLimit> {
        self.concurrency_limits.fleet_reporter().and_then(|_| terms::shared_limit(limit))
    }

    fn strict_limit(&self, limit: &ConcurrencyLimit) -> Option<StrictLimit> {
        let fleet = self.concurrency_limits.fleet_reporter()?;
        terms::strict_limit(fleet, limit)
    }

    /// Returns the limiter parameters of a limit at this replica.
    fn local_rules(&self, limit: &ConcurrencyLimit) -> LimiterConfig {
        let (shared, strict) = (self.shared_limit(limit), self.strict_limit(limit));
        rules_at_process(&limit.rules, shared.as_ref(), strict.as_ref())
    }

    /// Returns `true` if a rejection by this limit is only reported, not enforced.
    fn is_shadow_limit(&self, limit: &ConcurrencyLimit) -> bool {
        limit.shadow || self.is_shadow()
    }

    /// Acquires one permit. In shadow mode, the check neither queues nor waits for an unknown
    /// share. With a strict limit it waits for the store, which alone knows the permits of the
    /// fleet.
    async fn acquire_one(
        &self,
        (bucket, by): (&CounterKey, Requester),
        (config, limit): (&ActiveConfig, &ConcurrencyLimit),
        wait: WaitDeadlines,
        keep: PermitLifetime,
    ) -> Result<Option<PermitGuard>, Reason> {
        let shadow = self.is_shadow_limit(limit);
        let (shared, rules, strict_limit) =
            (self.shared_limit(limit), self.local_rules(limit), self.strict_limit(limit));
        let now = self.clock().steady();
        let queue_timeout = if shadow { Nanos(0) } else { time_left(now, wait.queue_deadline) };
        let store_timeout = if shadow && strict_limit.is_none() {
            Nanos(0)
        } else {
            time_left(now, wait.store_deadline)
        };
        let (bucket, rules) = (bucket.as_bytes(), &rules);
        let keep = (keep == PermitLifetime::MaxDuration).then_some(limit.max_duration);
        let ask = PermitRequest {
            bucket,
            limit_path: &limit.path,
            revision: bucket_revision(config),
            rules,
            permit_lifetime: keep,
            queue_timeout,
            store_timeout,
            by,
            shared,
        };
        let acquired = match strict_limit {
            // Boxed, to keep the future of the other modes small.
            Some(strictly) => {
                Box::pin(self.concurrency_limits.acquire_strict(ask, strictly, self.store())).await
            }
            None => self.concurrency_limits.acquire(ask).await,
        };
        match acquired {
            Ok(held) => Ok(Some(held)),
            Err(denied) if shadow => {
                let (limit, reason) = (&*limit.path, denied.reason());
                let (class, is_enforced) = (None, false);
                ConcurrencyLimitExceeded { limit, class, reason, is_enforced, count: 1 }.emit();
                Ok(None)
            }
            Err(denied) => Err(denied.reason()),
        }
    }
}

/// Returns a number that grows with each configuration and each version of its tables.
fn bucket_revision(config: &Config) -> Revision {
    Revision(config.revision.0 << 32 | u64::from(config.tables.version()))
}

fn total_queue_timeout(limits: &[(CounterKey, &ConcurrencyLimit)]) -> Nanos {
    let waits = limits.iter().filter_map(|(_, ceiling)| ceiling.rules.queue);
    waits.fold(Nanos(0), |sum, waiting| sum.plus(waiting.timeout))
}

/// Returns the concurrency limits that cover the check, each once, sorted by bucket name. Peeks and
/// refunds need no permit.
fn required_limits<'c>(config: &'c Config, check: &Check<'_>, now: Nanos) -> RequiredLimits<'c> {
    let Some(domain) = config.domains.get(check.domain) else { return RequiredLimits::new() };
    let mut asked = RequiredLimits::new();
    for descriptor in &check.descriptors {
        if matches!(descriptor.cost, Cost::Charge(Hits(0)) | Cost::Refund(_)) {
            continue;
        }
        let entries = || descriptor.entries.iter().copied();
        if let Some(found) = domain.tree.lookup_concurrency_limit(entries()) {
            let limit = limit_from_table(config, found.limit, &descriptor.entries, now);
            asked.extend(limit.map(|limit| (bucket_of(&domain.name, entries(), &found), limit)));
        }
    }
    asked.sort_by(|(a, _), (b, _)| a.as_bytes().cmp(b.as_bytes()));
    asked.dedup_by(|(a, _), (b, _)| a == b);
    asked
}
