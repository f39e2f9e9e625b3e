//! The effect of a check for more hits than its limit has left.
//!
//! Usage, such as the tokens of an LLM, is known only after the request: the hits were used even if
//! they exceed the limit. [`OnExcess::Charge`] charges them, and they delay later checks.
//!
//! Guarantees, with [`OnExcess::Charge`]:
//! - A denied check is charged in full, up to the bound of its strategy.
//! - A check of 0 hits is denied while a check of 1 hit is, and charges nothing.
//!
//! | strategy | bound of the excess | effect |
//! |---|---|---|
//! | GCRA | a debt of 1,000 bursts, less if that is at least 2^53 hit·ticks | drains at the rate |
//! | fixed window | a count below 2^53 | ends with the window |
//! | sliding window | a count of 2^32 − 1 in each window | fades in the next window |
//! | sliding log | the newest hits up to the limit | these expire last |

use serde::{Deserialize, Serialize};

use crate::units::Hits;

/// The effect of a check for more hits than remain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnExcess {
    /// Denied; the strategy defines the charge. Fixed windows count denied hits, the others do not.
    #[default]
    ByStrategy,
    /// Denied, and charged in full.
    Charge,
}

impl OnExcess {
    /// Returns `true` if denied hits are charged with every strategy.
    #[must_use]
    pub const fn is_charge(self) -> bool {
        matches!(self, Self::Charge)
    }

    /// Returns the hits that must remain to allow a check of `hits`.
    #[must_use]
    pub const fn needed(self, hits: Hits) -> Hits {
        match self {
            Self::Charge if hits.0 == 0 => Hits(1),
            Self::ByStrategy | Self::Charge => hits,
        }
    }
}
