//! Counts the decisions that proxies made themselves, as if this replica had made them.
//!
//! Guarantees:
//! - A report of a rule that no longer exists is dropped.
//! - One report adds at most [`MAX_COUNT`] to each count.
//!
//! Not covered:
//! - The decision log and events, which have no single decision of a proxy.
//! - Statistics with the names of envoyproxy/ratelimit.

use super::Entries;
use crate::engine::Engine;
use crate::kernel::decision::{Reason, Verdict};
use crate::kernel::units::Hits;
use crate::telemetry::event::{Event as _, ProxyDecisions, RuleVerdict};

/// The largest count of a report: 2^32. A larger one is cut off.
pub const MAX_COUNT: u64 = 1 << 32;

/// The decisions of a proxy about one descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProxyUsage {
    /// The number of decisions, by [`RuleVerdict`].
    pub decisions: [u64; RuleVerdict::ALL.len()],
    /// The allowed hits.
    pub allowed_hits: Hits,
    /// The denied hits.
    pub denied_hits: Hits,
}

impl Engine {
    /// Counts the decisions of a proxy about a descriptor.
    pub fn count_proxy_usage(&self, domain: &str, entries: Entries<'_>, usage: &ProxyUsage) {
        let active = self.active.load();
        let Some(config) = active.as_deref() else { return };
        let rule = config
            .domains
            .get(domain)
            .and_then(|domain| domain.tree.lookup(entries.iter().copied()).map(|found| found.rule));
        let Some(rule) = rule else { return };
        for (verdict, count) in RuleVerdict::ALL.into_iter().zip(usage.decisions) {
            let count = count.min(MAX_COUNT);
            config.counters.add(rule.number, verdict, count);
            let (verdict, reason) = verdict_and_reason(verdict);
            ProxyDecisions { verdict, reason, count }.emit();
        }
        let bounded = |hits: Hits| hits.min(Hits(MAX_COUNT));
        let hits = (bounded(usage.allowed_hits), bounded(usage.denied_hits));
        self.count_top_key(&config.counters, rule.number, entries, hits);
    }
}

const fn verdict_and_reason(verdict: RuleVerdict) -> (Verdict, Reason) {
    match verdict {
        RuleVerdict::Allow => (Verdict::Allow, Reason::WithinLimit),
        RuleVerdict::Deny => (Verdict::Deny, Reason::OverLimit),
        RuleVerdict::ShadowDeny => (Verdict::Allow, Reason::OverLimit),
        RuleVerdict::FallbackAllow => (Verdict::Allow, Reason::StoreDownAllowed),
        RuleVerdict::FallbackDeny => (Verdict::Deny, Reason::StoreDownDenied),
    }
}
