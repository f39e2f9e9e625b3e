//! How long to wait before something is tried again.
//!
//! Guarantees: of random lengths, because replicas lose their Redis together; doubling up to a bound.
//! Leaves out: waiting.

use std::time::Duration;

/// The longest pause between two attempts: short, because one attempt costs next to nothing.
const LONGEST: Duration = Duration::from_millis(500);

/// The longest pause after the first loss.
const FIRST: Duration = Duration::from_millis(10);

/// Pauses that double, and start anew after something lasted.
#[derive(Clone, Debug)]
pub(super) struct Pauses {
    jitter: u64,
    longest: Duration,
}

impl Pauses {
    /// `jitter` is any number, another one for everybody.
    pub(super) const fn new(jitter: u64) -> Self {
        Self { jitter, longest: FIRST }
    }

    /// The next pause, from a range twice as long as that of the one before.
    pub(super) fn next(&mut self) -> Duration {
        let longest = self.longest;
        self.longest = (longest * 2).min(LONGEST);
        self.up_to(longest)
    }

    /// The next pause is short again.
    pub(super) const fn start_anew(&mut self) {
        self.longest = FIRST;
    }

    /// A random time below `longest`.
    pub(super) fn up_to(&mut self, longest: Duration) -> Duration {
        let micros = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX).max(1);
        Duration::from_micros(self.number() % micros)
    }

    /// Any number.
    ///
    /// Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014.
    pub(super) const fn number(&mut self) -> u64 {
        self.jitter = self.jitter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.jitter;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
