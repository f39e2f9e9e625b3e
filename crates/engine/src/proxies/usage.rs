//! Counts the decisions that proxies made from leased hits.
//!
//! Guarantees:
//! - A reported decision counts in the same metrics as a decision of this replica.
//!
//! Not covered:
//! - Statistics with the names of envoyproxy/ratelimit, events and the decision log.
//! - Descriptors without a rule in the current configuration: they are left out.

use crate::Engine;
use crate::kernel::decision::{Reason, RuleVerdict, Verdict};
use crate::kernel::units::Hits;
use crate::telemetry::event::{Event as _, ProxyDecisions};

/// The decisions of a proxy about one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct ProxyUsage<'a> {
    /// The domain.
    pub domain: &'a str,
    /// The entries of the descriptor.
    pub entries: &'a [(&'a str, &'a str)],
    /// The number of requests by [`RuleVerdict`], each below 2^53.
    pub requests: [u64; RuleVerdict::ALL.len()],
    /// The hits of allowed requests, below 2^53.
    pub allowed_hits: Hits,
    /// The hits of denied requests, below 2^53.
    pub denied_hits: Hits,
}

impl Engine {
    /// Counts decisions of a proxy as if this replica had made them.
    pub fn count_proxy_usage(&self, usage: &ProxyUsage<'_>) {
        let active = self.active.load();
        let Some(config) = active.as_deref() else { return };
        let domain = config.domains.get(usage.domain);
        let found = domain.and_then(|domain| domain.tree.lookup(usage.entries.iter().copied()));
        let Some(rule) = found.map(|found| found.rule) else { return };
        for (verdict, count) in RuleVerdict::ALL.into_iter().zip(usage.requests) {
            config.counters.count_many(rule.number, verdict, count);
            self.count_proxy_decisions(verdict, count);
        }
        let hits = [(usage.allowed_hits, Verdict::Allow), (usage.denied_hits, Verdict::Deny)];
        for hits in hits {
            self.count_proxy_hits(&config.counters, rule.number, usage.entries, hits);
        }
    }

    fn count_proxy_decisions(&self, rule_verdict: RuleVerdict, count: u64) {
        let (verdict, reason) = match rule_verdict {
            RuleVerdict::Allow => (Verdict::Allow, Reason::WithinLimit),
            RuleVerdict::Deny => (Verdict::Deny, Reason::OverLimit),
            RuleVerdict::ShadowDeny => (Verdict::Allow, Reason::OverLimit),
            RuleVerdict::FallbackAllow => (Verdict::Allow, Reason::StoreDownAllowed),
            RuleVerdict::FallbackDeny => (Verdict::Deny, Reason::StoreDownDenied),
        };
        let is_shadowed = rule_verdict == RuleVerdict::ShadowDeny && self.is_shadow();
        ProxyDecisions { count, verdict, is_shadowed, reason }.emit();
    }
}
