//! A rule of Sluicegate for one descriptor, as this proxy knows it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use sluicegate_lease::store::{Charge, ChargeMode, ChargeOutcome, Charges, Placement};

use crate::answer::{ReportedLimit, RuleAnswer};
use crate::kernel::decision::{Cost, Enforcement, RuleVerdict, Verdict};
use crate::kernel::key::{CounterKey, KeyStrategy};
use crate::kernel::lease::LeaseTerms;
use crate::kernel::proxy_rule::{
    CustomerWeight, ProxyHandling, ProxyLimit, ProxyRequesters, ProxyRule, TableRow,
};
use crate::kernel::rate::fixed_window::Windows;
use crate::kernel::rate::{CounterDecision, Headroom, Strategy};
use crate::kernel::units::{Hits, Nanos, Unit};
use crate::limits_version::LimitsVersion;
use crate::usage::DescriptorUsage;

/// The constant size of a rule: itself, the counts of its descriptor, and its entry in a table.
const RULE_BYTES: usize = size_of::<KnownRule>() + size_of::<DescriptorUsage>() + 128;

/// A rule for one descriptor.
#[derive(Debug)]
pub(crate) struct KnownRule {
    /// The rule as Sluicegate sent it, without the entries of its counter.
    pub(crate) reply: ProxyRule,
    pub(crate) version: LimitsVersion,
    /// The arrival of the reply on the steady clock.
    received_at: Nanos,
    /// The charges of a request of one hit, if the rule is leased.
    pub(crate) charges: Option<Box<Charges>>,
    pub(crate) usage: Arc<DescriptorUsage>,
    /// The hashes of the rows of tables that have the numbers of the limits.
    rows: Box<[u64]>,
    /// The instant at which one of the rows changed, on the steady clock. 0 if none has.
    changed_at: AtomicU64,
    /// `true` while the rule is fetched again in the background.
    pub(crate) is_refreshing: AtomicBool,
}

impl KnownRule {
    /// Creates the rule of a reply that arrived `now`, in the session of `version`.
    pub(crate) fn new(
        mut reply: ProxyRule,
        usage: Arc<DescriptorUsage>,
        version: LimitsVersion,
        now: Nanos,
    ) -> Self {
        let (counter, domain) = (std::mem::take(&mut reply.counter), &usage.descriptor.domain);
        let charge = |limit| charge(counter_key(domain, &counter, limit), limit.strategy);
        let charges = match &reply.handling {
            ProxyHandling::Leased(limits) => {
                let list = limits.iter().map(charge).collect();
                Some(Box::new(Charges { list, mode: ChargeMode::Each }))
            }
            _ => None,
        };
        let version = version.with_number(reply.limits);
        let rows = std::mem::take(&mut reply.rows).iter().map(TableRow::hash_value).collect();
        let (changed_at, is_refreshing) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { reply, version, received_at: now, charges, usage, rows, changed_at, is_refreshing }
    }

    /// Returns `true` if the numbers of the limits are in one of these rows.
    pub(crate) fn reads_any(&self, rows: &HashSet<u64>) -> bool {
        self.rows.iter().any(|row| rows.contains(row))
    }

    /// Records that a row changed, unless the rule reads no table.
    pub(crate) fn mark_changed(&self, now: Nanos) {
        if !self.rows.is_empty() {
            self.changed_at.store(now.0.max(1), Relaxed);
        }
    }

    /// Returns the instant at which a row changed.
    pub(crate) fn changed_at(&self) -> Option<Nanos> {
        let at = self.changed_at.load(Relaxed);
        (at != 0).then_some(Nanos(at))
    }

    /// Returns the size in bytes with a constant, and of the lease charges as far as they are in
    /// this rule.
    pub(crate) fn memory_bytes(&self) -> usize {
        let charge = |charge: &Charge| size_of::<Charge>() + charge.key.as_bytes().len();
        let charges = self.charges.as_ref().map_or(0, |charges| {
            size_of::<Charges>() + charges.list.iter().map(charge).sum::<usize>()
        });
        let text = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        let limit = |limit: &ProxyLimit| size_of::<ProxyLimit>() + text(&limit.name);
        let limits = self.limits().iter().map(limit).sum::<usize>();
        let concurrency = self.reply.concurrency.as_ref().map_or(0, |limit| {
            let texts = limit.bucket.len() + limit.path.len() + limit.reject.body.len();
            size_of_val(&**limit) + texts + limit.requesters.as_deref().map_or(0, requesters_bytes)
        });
        let texts = self.usage.descriptor.text_bytes() + text(&self.reply.path);
        let weights = self
            .reply
            .weights
            .iter()
            .map(|weight| size_of::<CustomerWeight>() + weight.key.len() + weight.column.len());
        let tables = size_of_val(&*self.rows) + weights.sum::<usize>();
        RULE_BYTES + tables + texts + charges + limits + concurrency
    }

    pub(crate) fn is_expired(&self, now: Nanos) -> bool {
        self.reply.valid_for.is_some_and(|time| self.received_at.plus(time) <= now)
    }

    /// Returns the lease terms of each charge.
    pub(crate) fn terms(&self) -> impl Iterator<Item = Option<&LeaseTerms>> {
        self.limits().iter().map(|limit| Some(&limit.terms))
    }

    /// Returns the result of a rule without a rate limit. It has a path only with a concurrency limit.
    pub(crate) fn unlimited_answer(&self) -> RuleAnswer {
        let path = self.reply.concurrency.as_ref().map(|limit| Arc::clone(&limit.path));
        RuleAnswer { path, ..RuleAnswer::UNLIMITED }
    }

    /// Returns the result of a rule that an operator forced.
    pub(crate) fn forced_answer(&self, verdict: Verdict) -> RuleAnswer {
        self.answer(self.after_shadow_mode(verdict.into()))
    }

    /// Returns the result without a reply, by the failure rule of the filter.
    pub(crate) fn failed_answer(&self, failure: Verdict) -> RuleAnswer {
        self.answer(RuleVerdict::fallback(failure))
    }

    /// Returns the result of a leased rule from the outcomes of its charges. `failure` applies if a
    /// charge failed and its limit has no `on_failure`.
    pub(crate) fn leased_answer(&self, outcomes: &[ChargeOutcome], failure: Verdict) -> RuleAnswer {
        let mut answer = self.answer(RuleVerdict::Allow);
        for (limit, outcome) in self.limits().iter().zip(outcomes) {
            add_outcome(&mut answer, limit, *outcome, failure);
        }
        answer.verdict = self.after_shadow_mode(answer.verdict);
        answer
    }

    fn limits(&self) -> &[ProxyLimit] {
        match &self.reply.handling {
            ProxyHandling::Leased(limits) => limits,
            _ => &[],
        }
    }

    fn answer(&self, verdict: RuleVerdict) -> RuleAnswer {
        RuleAnswer { verdict, path: self.reply.path.clone(), ..RuleAnswer::UNLIMITED }
    }

    const fn after_shadow_mode(&self, verdict: RuleVerdict) -> RuleVerdict {
        let is_denied = !verdict.is_allowed();
        if is_denied && self.reply.is_shadow { RuleVerdict::ShadowDeny } else { verdict }
    }
}

fn requesters_bytes(rule: &ProxyRequesters) -> usize {
    let keys = [&rule.keys.class, &rule.keys.customer, &rule.weight_column];
    let names = rule.keys.class_names.iter().map(|name| size_of::<Box<str>>() + name.len());
    let texts = keys.into_iter().flatten().map(|text| text.len()).chain(names);
    size_of::<ProxyRequesters>() + texts.sum::<usize>()
}

/// Adds the outcome of the charge of one limit.
fn add_outcome(
    answer: &mut RuleAnswer,
    limit: &ProxyLimit,
    outcome: ChargeOutcome,
    failure: Verdict,
) {
    let fallback = RuleVerdict::fallback(limit.on_failure.unwrap_or(failure));
    let (verdict, retry_after, headroom) = match outcome {
        ChargeOutcome::Decided(decision)
        | ChargeOutcome::Counted(decision, _)
        | ChargeOutcome::Refunded(decision) => match decision {
            CounterDecision::Allow(room) => (RuleVerdict::Allow, None, Some(room)),
            CounterDecision::Deny { retry_after, headroom } => {
                (RuleVerdict::Deny, Some(retry_after), Some(headroom))
            }
            CounterDecision::ExceedsLimit(room) => (RuleVerdict::Deny, None, Some(room)),
            CounterDecision::OutsideWindows => (fallback, None, None),
        },
        ChargeOutcome::StoreFull(verdict) => (verdict.into(), None, None),
        ChargeOutcome::Stale(_) | ChargeOutcome::Failed(_) => (fallback, None, None),
    };
    answer.verdict = answer.verdict.and(verdict);
    answer.retry_after = answer.retry_after.max(retry_after.map(duration));
    let reported = headroom.map(|room| reported_limit(limit, room));
    answer.reported = ReportedLimit::fewest(answer.reported, reported);
}

const fn reported_limit(limit: &ProxyLimit, room: Headroom) -> ReportedLimit {
    ReportedLimit {
        requests: limit.requests,
        period: duration(limit.period),
        remaining: room.remaining.0,
        reset_after: duration(room.reset_after),
    }
}

const fn duration(time: Nanos) -> Duration {
    Duration::from_nanos(time.0)
}

/// Returns the charge of one hit. Placement and node are Sluicegate's concern.
fn charge(key: CounterKey, strategy: Strategy) -> Charge {
    Charge {
        key,
        placement: Placement::default(),
        strategy,
        cost: Cost::Charge(Hits(1)),
        standing: Enforcement::default(),
        per_second: false,
    }
}

/// Returns the key under which this proxy keeps the lease of a counter.
fn counter_key(domain: &str, entries: &[(Box<str>, Box<str>)], limit: &ProxyLimit) -> CounterKey {
    let entries = entries.iter().map(|(key, value)| (&**key, &**value));
    let kind = key_strategy(&limit.strategy);
    let mut key = CounterKey::EMPTY;
    match &limit.name {
        None => key.write_unique(domain, entries, kind),
        Some(name) => key.write_of_list(domain, entries, kind, name),
    }
    key
}

fn key_strategy(strategy: &Strategy) -> KeyStrategy {
    match strategy {
        Strategy::Gcra(_) => KeyStrategy::Gcra,
        Strategy::SlidingLog(_) => KeyStrategy::SlidingLog,
        Strategy::SlidingWindow(window) => {
            let ticks = window.refill_rate().ticks.get();
            KeyStrategy::SlidingWindow(Nanos(ticks.saturating_mul(window.tick().size().0)))
        }
        Strategy::FixedWindow(window) => match window.windows() {
            Windows::Every(period) => KeyStrategy::FixedWindow(*period),
            // All calendar windows of a limit have one key; the unit does not matter.
            Windows::Calendar { .. } => KeyStrategy::Calendar(Unit::Day),
        },
    }
}

#[cfg(test)]
mod tests;
