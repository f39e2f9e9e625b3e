//! Forced decisions: an operator makes a rule allow or deny everything for a while.
//!
//! Guarantees:
//! - Rules without a forced decision behave as configured.
//! - A forced decision ends by itself at its expiry.
//!
//! Not covered:
//! - Verifying that the caller is an operator.
//! - Keeping forced decisions when the configuration is reloaded (see [`crate::engine`]).

use super::{Config, Rule};
use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;

/// A verdict that an operator forces on a rule, and its expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForcedDecision {
    /// The verdict of every check of the rule.
    pub verdict: Verdict,
    /// The expiry, after which the rule behaves as configured again.
    pub until: Nanos,
}

/// The forced decision for all rules with one path in one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForcedRule {
    /// The domain of the rules.
    pub domain: Box<str>,
    /// The path of the rules. Rules of one domain with the same path have the same forced decision.
    pub path: Box<str>,
    /// The verdict and the expiry.
    pub decision: ForcedDecision,
}

impl Rule {
    /// Returns the verdict that an operator forces at `now`, or `None` if there is none.
    #[must_use]
    pub fn forced_verdict_at(&self, now: Nanos) -> Option<Verdict> {
        self.forced_decision.filter(|forced| now < forced.until).map(|forced| forced.verdict)
    }
}

impl Config {
    /// Returns a copy of this configuration with `forced_rules` as its forced decisions. Cost: a
    /// copy of all rules.
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
