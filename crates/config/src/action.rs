//! Actions of operators: forced decisions of rules and keys, boosts of keys, and amounts of ids.
//!
//! Guarantees:
//! - Rules and keys without an action behave as configured.
//! - An action ends by itself at its expiry.
//!
//! Not covered:
//! - Verifying that the caller is an operator.
//! - Keeping actions when the configuration is reloaded (see `engine::actions`).

use std::num::NonZeroU32;

use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;
use crate::tables::Amount;

/// A verdict that an operator forces on a rule or key, and its expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForcedDecision {
    /// The verdict of every check of the rule or key.
    pub verdict: Verdict,
    /// The expiry, after which the limits decide again.
    pub until: Nanos,
}

/// The size of a boosted limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoostSize {
    /// The limit is multiplied by this factor, from 2 to [`BoostSize::MAX_FACTOR`].
    Factor(u32),
    /// The limit has this number of requests in its period.
    Requests(NonZeroU32),
}

/// The part of the configuration to which an action applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionTarget {
    /// All limits of all domains, in shadow mode: they are counted, and deny nothing.
    Everything,
    /// All rules of the domain with this path.
    Rule(Box<str>),
    /// The counters of one descriptor, given as its keys and values.
    Key(Box<[(String, String)]>),
    /// The amount of one id in a column of a table. The domain of the action is the table.
    Amount {
        /// The id.
        id: Box<str>,
        /// The column.
        column: Box<str>,
    },
}

/// The effect of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionEffect {
    /// Every check gets this verdict, and is not counted.
    Force(Verdict),
    /// The limits of the key have another size.
    Boost(BoostSize),
    /// The id has this amount in a column of a table.
    Set(Amount),
}

/// An action that applies until its expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// The domain of the rule or key.
    pub domain: Box<str>,
    /// The rule or the key.
    pub target: ActionTarget,
    /// The effect.
    pub effect: ActionEffect,
    /// The expiry.
    pub until: Nanos,
}

impl BoostSize {
    /// The largest factor of a boost.
    pub const MAX_FACTOR: u32 = 1_000;

    /// Parses `x2` or a number of requests. Returns `None` for other texts, and for a factor or number out of range.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix('x') {
            Some(factor) => {
                let factor = factor.parse().ok()?;
                (2..=Self::MAX_FACTOR).contains(&factor).then_some(Self::Factor(factor))
            }
            None => text.parse().ok().map(Self::Requests),
        }
    }

    /// Returns the boosted number of requests of a limit of `requests`. Saturates at `u32::MAX`.
    #[must_use]
    pub const fn apply(self, requests: u32) -> u32 {
        match self {
            Self::Factor(factor) => requests.saturating_mul(factor),
            Self::Requests(requests) => requests.get(),
        }
    }
}

/// Formats the size as [`BoostSize::parse`] reads it.
impl std::fmt::Display for BoostSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Factor(factor) => write!(f, "x{factor}"),
            Self::Requests(requests) => write!(f, "{requests}"),
        }
    }
}
