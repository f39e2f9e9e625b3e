//! The slowdowns at which the algorithm `gradient` changes the limit, from the tolerance.
//!
//! | value | formula for tolerance t | t = 1.3, the default |
//! |---|---|---|
//! | multiple of the capacity that is the limit | t | 1.3 |
//! | slowdown up to which there is no queue | 1 + (t - 1) / 2 | 1.15 |
//! | slowdown above which there is an overload | t · 1.55 / 1.3 | 1.55 |

use super::super::fixed_point::Fraction;
use super::super::tuning::{AdaptiveTuning, Hundredths};

/// The default tolerance: a short queue keeps the backend busy.
const DEFAULT: Hundredths = Hundredths(130);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Thresholds {
    /// The limit as a multiple of the measured capacity.
    pub(super) target: Fraction,
    /// The slowdown (RTT / min RTT), in millionths, up to which there is no queue.
    pub(super) no_queue: u64,
    /// The slowdown above which there is an overload, in millionths.
    pub(super) overload: u64,
}

impl Thresholds {
    pub(super) fn new(tuning: AdaptiveTuning) -> Self {
        let tolerance = tuning.tolerance.unwrap_or(DEFAULT).max(Hundredths(100));
        let percent = u64::from(tolerance.0);
        Self {
            target: tolerance.to_fraction(),
            no_queue: percent.saturating_add(100).saturating_mul(5_000),
            overload: Fraction { numerator: percent, denominator: DEFAULT.0.into() }.of(1_550_000),
        }
    }
}
