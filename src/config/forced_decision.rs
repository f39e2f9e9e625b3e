//! Forced decisions: an operator makes a rule allow or deny everything for a while.
//!
//! Not covered:
//! - Verifying that the caller is an operator.
//! - Keeping forced decisions when the configuration is reloaded (see [`crate::engine`]).

use super::{Config, Rule};
use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;

/// A verdict that an operator forces on a rule until an expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForcedDecision {
    /// The verdict of every check of the rule.
    pub verdict: Verdict,
    /// The expiry. Afterwards, the rule behaves as configured.
    pub until: Nanos,
}

/// The forced decision for all rules with one path in one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForcedRule {
    /// The domain of the rules.
    pub domain: Box<str>,
    /// The path of the rules, as in [`Rule::path`].
    pub path: Box<str>,
    /// The verdict and the expiry.
    pub decision: ForcedDecision,
}

impl Rule {
    /// Returns the forced verdict, or `None` if there is none or it has expired at `now`.
    #[must_use]
    pub fn forced_verdict_at(&self, now: Nanos) -> Option<Verdict> {
        self.forced_decision.filter(|forced| now < forced.until).map(|forced| forced.verdict)
    }
}

impl Config {
    /// Returns a copy of this configuration with the given forced decisions. Copies all rules.
    #[must_use]
    pub fn with_forced_rules(&self, forced_rules: &[ForcedRule]) -> Self {
        let mut config = self.clone();
        for forced in forced_rules {
            if let Some(domain) = config.domains.get_mut(&forced.domain) {
                domain.tree.force_decision(&forced.path, forced.decision);
            }
        }
        config
    }
}
