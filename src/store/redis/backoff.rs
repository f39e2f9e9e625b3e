//! The pauses between retries.
//!
//! Guarantees:
//! - Pauses are random, because all replicas lose their Redis at the same time.
//! - They double up to a limit.
//!
//! Not covered:
//! - Sleeping.

use std::time::Duration;

/// The longest pause between two attempts. It is short, because an attempt is cheap.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// The longest pause after the first failure.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Pauses that double, and restart after a success that lasted.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    jitter: u64,
    max_pause: Duration,
}

impl Backoff {
    /// `jitter` is the seed; use a different one for each instance.
    pub(super) const fn new(jitter: u64) -> Self {
        Self { jitter, max_pause: FIRST_PAUSE }
    }

    /// The next pause. Its range is twice the previous one.
    pub(super) fn next_pause(&mut self) -> Duration {
        let longest = self.max_pause;
        self.max_pause = (longest * 2).min(MAX_PAUSE);
        self.random_below(longest)
    }

    pub(super) const fn reset(&mut self) {
        self.max_pause = FIRST_PAUSE;
    }

    /// A random duration below `longest`.
    pub(super) fn random_below(&mut self, longest: Duration) -> Duration {
        let micros = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX).max(1);
        Duration::from_micros(self.random() % micros)
    }

    /// A pseudorandom number (`SplitMix64`).
    ///
    /// Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014.
    pub(super) const fn random(&mut self) -> u64 {
        self.jitter = self.jitter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.jitter;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
