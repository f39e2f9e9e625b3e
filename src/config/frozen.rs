//! Rules that an operator holds at one answer for a while.
//!
//! Guarantees: what is not held is as the files say; what was held is so again when its time is over, without anybody's doing.
//! Leaves out: who may hold them, and keeping what is held over a reload ([`crate::engine`]).

use super::{Config, Rule};
use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;

/// What a rule that is held answers, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frozen {
    /// The answer.
    pub verdict: Verdict,
    /// When the rule is as its file says again.
    pub until: Nanos,
}

/// Which rules are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Their domain.
    pub domain: Box<str>,
    /// Their path: two rules that are written alike in one domain are held alike.
    pub path: Box<str>,
    /// At what.
    pub frozen: Frozen,
}

impl Rule {
    /// What it is held at, at `now`.
    #[must_use]
    pub fn frozen_at(&self, now: Nanos) -> Option<Verdict> {
        self.frozen.filter(|frozen| now < frozen.until).map(|frozen| frozen.verdict)
    }
}

impl Config {
    /// This configuration with these rules held. Cost: a copy of all rules.
    #[must_use]
    pub fn holding(&self, held: &[Held]) -> Self {
        let mut config = self.clone();
        for one in held {
            if let Some(domain) = config.domains.get_mut(&one.domain) {
                domain.tree.freeze(&one.path, one.frozen);
            }
        }
        config
    }
}
