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
    random: fastrand::Rng,
    max_pause: Duration,
}

impl Backoff {
    /// Creates the state before the first failure. `jitter` is the seed, different in each
    /// instance.
    pub(crate) fn new(jitter: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(jitter), max_pause: FIRST_PAUSE }
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
        Duration::from_micros(self.random.u64(..micros))
    }

    pub(crate) fn random(&mut self) -> u64 {
        self.random.u64(..)
    }
}
