//! Forced decisions: an operator makes a rule allow or deny everything for a while.
//!
//! Guarantees:
//! - Rules without a forced decision behave as configured.
//! - A forced decision ends automatically at its expiry.
//!
//! Not covered:
//! - Authorization of operators.
//! - Keeping forced decisions across reloads (see [`crate::engine`]).

use super::{Config, Rule};
use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;

/// A forced decision and its expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForcedDecision {
    /// The forced verdict.
    pub verdict: Verdict,
    /// The instant at which the rule behaves as configured again.
    pub until: Nanos,
}

/// The forced decision of all rules with one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForcedRule {
    /// The domain of the rules.
    pub domain: Box<str>,
    /// The path of the rules. Rules of one domain with the same path share a forced decision.
    pub path: Box<str>,
    /// The forced decision.
    pub decision: ForcedDecision,
}

impl Rule {
    /// Returns the forced verdict at `now`, if there is one.
    #[must_use]
    pub fn forced_verdict_at(&self, now: Nanos) -> Option<Verdict> {
        self.forced_decision.filter(|frozen| now < frozen.until).map(|frozen| frozen.verdict)
    }
}

impl Config {
    /// Returns this configuration with these forced decisions. Cost: a copy of all rules.
    #[must_use]
    pub fn with_forced_rules(&self, forced_rules: &[ForcedRule]) -> Self {
        let mut config = self.clone();
        for rule in forced_rules {
            if let Some(domain) = config.domains.get_mut(&rule.domain) {
                domain.tree.force_decision(&rule.path, rule.decision);
            }
        }
        config
    }
}
