//! Computes the wait before the next connection to the xDS server.
//!
//! Guarantees:
//! - Every wait is within [`BackoffBounds`], and at least 10 ms.
//! - Each wait is twice the last wait. After an accepted response, the next wait is the shortest.

use std::time::Duration;

/// The bounds of the wait before the next connection to the xDS server.
#[derive(Clone, Copy, Debug)]
pub struct BackoffBounds {
    /// The shortest wait.
    pub min: Duration,
    /// The longest wait.
    pub max: Duration,
    /// `true` to choose each wait at random, from the shortest wait to the wait without jitter.
    pub jitter: bool,
    /// The seed of the random numbers. Should differ between processes.
    pub seed: u64,
}

/// The lower bound of `min`. Prevents a busy loop if the xDS server refuses connections.
const MIN_WAIT: Duration = Duration::from_millis(10);

/// The state of the exponential backoff between connections to the xDS server.
#[derive(Debug)]
pub struct Backoff {
    bounds: BackoffBounds,
    next: Duration,
    random: fastrand::Rng,
}

impl Backoff {
    /// Creates a backoff that starts with the shortest wait.
    #[must_use]
    pub fn new(bounds: BackoffBounds) -> Self {
        Self { bounds, next: bounds.min, random: fastrand::Rng::with_seed(bounds.seed) }
    }

    /// Makes the next wait the shortest wait.
    pub const fn reset(&mut self) {
        self.next = self.bounds.min;
    }

    /// Returns the wait before the next connection, and doubles the following wait.
    pub fn next_wait(&mut self) -> Duration {
        let BackoffBounds { min, max, jitter, .. } = self.bounds;
        let min = min.max(MIN_WAIT);
        let wait = self.next.min(max).max(min);
        self.next = wait.saturating_mul(2);
        if !jitter {
            return wait;
        }
        let span = u64::try_from(wait.saturating_sub(min).as_nanos()).unwrap_or(u64::MAX);
        min + Duration::from_nanos(self.random.u64(..=span))
    }
}
