//! Random, growing pauses between connection attempts (exponential backoff with jitter).
//!
//! Guarantees:
//! - Pauses are random, so that replicas that lose the store together do not reconnect together.
//! - The longest pause doubles after each failure, up to half a second.

use std::time::Duration;

/// The longest pause between two attempts; short, because an attempt costs little.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// The longest pause after the first failure.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    jitter: u64,
    max_pause: Duration,
}

impl Backoff {
    /// Creates the state before the first failure. `jitter` is the seed, different in each
    /// instance.
    pub(crate) const fn new(jitter: u64) -> Self {
        Self { jitter, max_pause: FIRST_PAUSE }
    }

    /// Returns the next pause: random, below a bound that doubles with every call.
    pub(crate) fn next_pause(&mut self) -> Duration {
        let longest = self.max_pause;
        self.max_pause = (longest * 2).min(MAX_PAUSE);
        self.random_below(longest)
    }

    pub(crate) const fn reset(&mut self) {
        self.max_pause = FIRST_PAUSE;
    }

    pub(crate) fn random_below(&mut self, longest: Duration) -> Duration {
        let micros = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX).max(1);
        Duration::from_micros(self.random() % micros)
    }

    /// Returns a pseudorandom number (`SplitMix64`; Steele, Lea, Flood: Fast splittable
    /// pseudorandom number generators, 2014).
    pub(crate) const fn random(&mut self) -> u64 {
        self.jitter = self.jitter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.jitter;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
