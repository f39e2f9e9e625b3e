//! Counts the decisions that proxies made from leased hits.
//!
//! Guarantees:
//! - A reported decision counts in the same metrics as a decision of this replica.
//!
//! Not covered:
//! - Statistics with the names of envoyproxy/ratelimit, events and the decision log.
//! - Descriptors without a rule in the current configuration: they are left out.

use crate::Engine;
use crate::kernel::decision::{Reason, Verdict};
use crate::kernel::units::Hits;
use crate::telemetry::event::{Event as _, ProxyDecisions, RuleVerdict};

/// A kind of decision of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyDecisionKind {
    /// Allowed.
    Allow,
    /// Denied.
    Deny,
    /// Denied, but allowed by shadow mode.
    ShadowDeny,
    /// Allowed by the failure rule.
    FallbackAllow,
    /// Denied by the failure rule.
    FallbackDeny,
}

/// The decisions of a proxy about one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct ProxyUsage<'a> {
    /// The domain.
    pub domain: &'a str,
    /// The entries of the descriptor.
    pub entries: &'a [(&'a str, &'a str)],
    /// The number of requests of each kind, each below 2^53.
    pub requests: [(ProxyDecisionKind, u64); 5],
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
        for (kind, count) in usage.requests {
            config.counters.count_many(rule.number, rule_verdict(kind), count);
            self.count_proxy_decisions(kind, count);
        }
        let hits = [(usage.allowed_hits, Verdict::Allow), (usage.denied_hits, Verdict::Deny)];
        for hits in hits {
            self.count_proxy_hits(&config.counters, rule.number, usage.entries, hits);
        }
    }

    fn count_proxy_decisions(&self, kind: ProxyDecisionKind, count: u64) {
        let (verdict, reason) = match kind {
            ProxyDecisionKind::Allow => (Verdict::Allow, Reason::WithinLimit),
            ProxyDecisionKind::Deny => (Verdict::Deny, Reason::OverLimit),
            ProxyDecisionKind::ShadowDeny => (Verdict::Allow, Reason::OverLimit),
            ProxyDecisionKind::FallbackAllow => (Verdict::Allow, Reason::StoreDownAllowed),
            ProxyDecisionKind::FallbackDeny => (Verdict::Deny, Reason::StoreDownDenied),
        };
        let is_shadowed = kind == ProxyDecisionKind::ShadowDeny && self.is_shadow();
        ProxyDecisions { count, verdict, is_shadowed, reason }.emit();
    }
}

const fn rule_verdict(kind: ProxyDecisionKind) -> RuleVerdict {
    match kind {
        ProxyDecisionKind::Allow => RuleVerdict::Allow,
        ProxyDecisionKind::Deny => RuleVerdict::Deny,
        ProxyDecisionKind::ShadowDeny => RuleVerdict::ShadowDeny,
        ProxyDecisionKind::FallbackAllow => RuleVerdict::FallbackAllow,
        ProxyDecisionKind::FallbackDeny => RuleVerdict::FallbackDeny,
    }
}
