//! A rule of Sluicegate for one descriptor, as this proxy knows it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sluicegate_lease::leases::ChargeTerms;
use sluicegate_lease::store::{Charge, ChargeMode, ChargeOutcome, Charges, Placement};
use smallvec::SmallVec;

use crate::answer::{ReportedLimit, RuleAnswer};
use crate::connection::LimitsVersion;
use crate::kernel::decision::{Cost, Enforcement, RuleVerdict, Verdict};
use crate::kernel::key::{CounterKey, KeyStrategy};
use crate::kernel::lease::LeaseTerms;
use crate::kernel::rate::fixed_window::Windows;
use crate::kernel::rate::{CounterDecision, Headroom, Strategy};
use crate::kernel::units::{Hits, Nanos, Unit};
use crate::usage::DescriptorUsage;
use crate::wire::api::leased_limit::OnFailure;
use crate::wire::api::rule_reply::Handling as WireHandling;
use crate::wire::concurrency::{ConcurrencyRule, concurrency_rule};
use crate::wire::{self, api};

/// The constant size of a rule: itself, the counts of its descriptor, and its entry in a table.
const RULE_BYTES: usize = size_of::<KnownRule>() + size_of::<DescriptorUsage>() + 128;

/// A rule for one descriptor.
#[derive(Debug)]
pub(crate) struct KnownRule {
    pub(crate) version: LimitsVersion,
    /// The instant until which the rule is valid, on the steady clock.
    pub(crate) valid_until: Option<Nanos>,
    pub(crate) handling: Handling,
    pub(crate) path: Option<Arc<str>>,
    /// `true` if no descriptor with the same keys matches a rule.
    pub(crate) any_values: bool,
    pub(crate) usage: Arc<DescriptorUsage>,
    /// The concurrency limit, whatever the handling is.
    pub(crate) concurrency: Option<Box<ConcurrencyRule>>,
    /// `true` while the rule is fetched again in the background.
    pub(crate) is_refreshing: AtomicBool,
}

/// The way to decide requests of a rule.
#[derive(Debug)]
pub(crate) enum Handling {
    Unlimited,
    /// By an operator.
    Forced(RuleVerdict),
    /// From leased hits.
    Leased(Box<LeasedRule>),
    /// With a call for each request.
    Ask,
    /// With a call for each request that has all its descriptors.
    AskTogether,
}

/// The leased limits of a rule, and the charges of a request of one hit.
#[derive(Debug)]
pub(crate) struct LeasedRule {
    pub(crate) charges: Charges,
    terms: SmallVec<[LeaseTerms; 1]>,
    limits: SmallVec<[LeasedLimit; 1]>,
    shadow: bool,
}

#[derive(Clone, Copy, Debug)]
struct LeasedLimit {
    requests: u32,
    period: Duration,
    on_failure: Option<Verdict>,
}

impl KnownRule {
    /// Returns the size in bytes with a constant, and of the lease charges as far as they are in
    /// this rule.
    pub(crate) fn memory_bytes(&self) -> usize {
        let leased = match &self.handling {
            Handling::Leased(leased) => leased.memory_bytes(),
            _ => 0,
        };
        let concurrency = self.concurrency.as_ref().map_or(0, |limit| {
            size_of_val(&**limit) + limit.bucket.len() + limit.path.len() + limit.reject.body.len()
        });
        let texts =
            self.usage.descriptor.text_bytes() + self.path.as_ref().map_or(0, |path| path.len());
        RULE_BYTES + texts + leased + concurrency
    }

    /// Reads a reply that arrived at `now`. Returns `None` if the protocol
    /// does not define it.
    pub(crate) fn from_reply(
        reply: &api::RuleReply,
        usage: Arc<DescriptorUsage>,
        version: LimitsVersion,
        now: Nanos,
    ) -> Option<Self> {
        let handling = match WireHandling::try_from(reply.handling).ok()? {
            WireHandling::Unspecified => return None,
            WireHandling::Unlimited => Handling::Unlimited,
            WireHandling::Leased => {
                Handling::Leased(Box::new(LeasedRule::from_reply(reply, &usage)?))
            }
            WireHandling::Ask => Handling::Ask,
            WireHandling::AskTogether => Handling::AskTogether,
            WireHandling::ForcedAllow => Handling::Forced(RuleVerdict::Allow),
            WireHandling::ForcedDeny if reply.shadow => Handling::Forced(RuleVerdict::ShadowDeny),
            WireHandling::ForcedDeny => Handling::Forced(RuleVerdict::Deny),
        };
        let concurrency = match &reply.concurrency {
            Some(limit) => Some(Box::new(concurrency_rule(limit)?)),
            None => None,
        };
        Some(Self {
            version,
            valid_until: reply.valid_for_us.map(|micros| now.plus(wire::nanos(micros))),
            handling,
            path: Some(&*reply.rule).filter(|path| !path.is_empty()).map(Arc::from),
            any_values: reply.any_values,
            usage,
            concurrency,
            is_refreshing: AtomicBool::new(false),
        })
    }

    pub(crate) fn is_expired(&self, now: Nanos) -> bool {
        self.valid_until.is_some_and(|until| until <= now)
    }

    /// Returns the result of a rule without a rate limit. It has a path only with a concurrency limit.
    pub(crate) fn unlimited_answer(&self) -> RuleAnswer {
        let path = self.concurrency.as_ref().map(|limit| Arc::clone(&limit.path));
        RuleAnswer { path, ..RuleAnswer::UNLIMITED }
    }

    /// Returns the result of a rule that an operator forced.
    pub(crate) fn forced_answer(&self, verdict: RuleVerdict) -> RuleAnswer {
        RuleAnswer { verdict, path: self.path.clone(), retry_after: None, reported: None }
    }

    /// Returns the result without a reply, by the failure rule of the filter.
    pub(crate) fn failed_answer(&self, failure: Verdict) -> RuleAnswer {
        self.forced_answer(RuleVerdict::fallback(failure))
    }
}

impl LeasedRule {
    fn memory_bytes(&self) -> usize {
        let keys = self.charges.list.iter().map(|charge| charge.key.as_bytes().len());
        let per_limit = size_of::<Charge>() + size_of::<LeaseTerms>() + size_of::<LeasedLimit>();
        size_of::<Self>() + self.limits.len() * per_limit + keys.sum::<usize>()
    }

    fn from_reply(reply: &api::RuleReply, usage: &DescriptorUsage) -> Option<Self> {
        let mut rule = Self {
            charges: Charges { list: SmallVec::new(), mode: ChargeMode::Each },
            terms: SmallVec::new(),
            limits: SmallVec::new(),
            shadow: reply.shadow,
        };
        for limit in &reply.leased {
            let strategy = wire::strategy(limit.strategy.as_ref()?)?;
            let key = counter_key(&usage.descriptor.domain, &reply.counter, &limit.name, &strategy);
            rule.charges.list.push(charge(key, strategy));
            rule.terms.push(wire::terms(limit)?);
            rule.limits.push(LeasedLimit {
                requests: limit.requests,
                period: Duration::from_nanos(limit.period_ns),
                on_failure: match limit.on_failure() {
                    OnFailure::Unspecified => None,
                    OnFailure::Allow => Some(Verdict::Allow),
                    OnFailure::Deny => Some(Verdict::Deny),
                },
            });
        }
        (!rule.limits.is_empty()).then_some(rule)
    }

    pub(crate) fn terms(&self) -> impl Iterator<Item = Option<&LeaseTerms>> {
        self.terms.iter().map(Some)
    }

    pub(crate) fn charge_terms(&self) -> ChargeTerms<'_> {
        self.terms().collect()
    }

    /// Returns the result of a request from the outcomes of its charges.
    pub(crate) fn answer(
        &self,
        path: Option<&Arc<str>>,
        outcomes: &[ChargeOutcome],
        failure: Verdict,
    ) -> RuleAnswer {
        let mut answer = RuleAnswer { path: path.cloned(), ..RuleAnswer::UNLIMITED };
        for (limit, outcome) in self.limits.iter().zip(outcomes) {
            limit.add_outcome(&mut answer, *outcome, failure);
        }
        if self.shadow && !answer.verdict.is_allowed() {
            answer.verdict = RuleVerdict::ShadowDeny;
            answer.retry_after = None;
        }
        answer
    }
}

impl LeasedLimit {
    fn add_outcome(&self, answer: &mut RuleAnswer, outcome: ChargeOutcome, failure: Verdict) {
        let (verdict, retry_after, headroom) = match outcome {
            ChargeOutcome::Decided(decision)
            | ChargeOutcome::Counted(decision, _)
            | ChargeOutcome::Refunded(decision) => match decision {
                CounterDecision::Allow(room) => (RuleVerdict::Allow, None, Some(room)),
                CounterDecision::Deny { retry_after, headroom } => {
                    (RuleVerdict::Deny, Some(retry_after), Some(headroom))
                }
                CounterDecision::ExceedsLimit(room) => (RuleVerdict::Deny, None, Some(room)),
                CounterDecision::OutsideWindows => (self.fallback(failure), None, None),
            },
            ChargeOutcome::StoreFull(verdict) => (verdict.into(), None, None),
            ChargeOutcome::Stale(_) | ChargeOutcome::Failed(_) => {
                (self.fallback(failure), None, None)
            }
        };
        answer.verdict = answer.verdict.and(verdict);
        answer.retry_after = answer.retry_after.max(retry_after.map(duration));
        let reported = headroom.map(|room| self.report(room));
        let fewer = |new: &ReportedLimit| {
            answer.reported.as_ref().is_none_or(|known| new.remaining < known.remaining)
        };
        if let Some(new) = reported.filter(fewer) {
            answer.reported = Some(new);
        }
    }

    fn fallback(&self, failure: Verdict) -> RuleVerdict {
        RuleVerdict::fallback(self.on_failure.unwrap_or(failure))
    }

    const fn report(&self, room: Headroom) -> ReportedLimit {
        ReportedLimit {
            requests: self.requests,
            period: self.period,
            remaining: room.remaining.0,
            reset_after: duration(room.reset_after),
        }
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
fn counter_key(
    domain: &str,
    entries: &[api::LeaseEntry],
    limit_name: &str,
    strategy: &Strategy,
) -> CounterKey {
    let entries = entries.iter().map(|entry| (&*entry.key, &*entry.value));
    let kind = key_strategy(strategy);
    let mut key = CounterKey::EMPTY;
    match limit_name {
        "" => key.write_unique(domain, entries, kind),
        name => key.write_of_list(domain, entries, kind, name),
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
