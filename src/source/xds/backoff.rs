//! Computes the wait before the next connection.
//!
//! Guarantees:
//! - Every wait is within the bounds.
//! - Waits double, and start again at the minimum after an accepted response.

use std::time::Duration;

/// The bounds of the wait.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The shortest wait.
    pub least: Duration,
    /// The longest wait.
    pub most: Duration,
    /// Draws each wait at random between the shortest wait and the current one.
    pub jitter: bool,
    /// The seed of the random numbers. Should differ between processes.
    pub seed: u64,
}

/// The shortest wait for any bounds. Prevents a busy loop if the server refuses at once.
const LEAST: Duration = Duration::from_millis(10);

/// The state of the exponential backoff.
#[derive(Debug)]
pub struct Backoff {
    bounds: Bounds,
    due: Duration,
    drawn: u64,
}

impl Backoff {
    /// Starts with the shortest wait.
    #[must_use]
    pub const fn new(bounds: Bounds) -> Self {
        Self { bounds, due: bounds.least, drawn: bounds.seed }
    }

    /// Returns to the shortest wait.
    pub const fn reset(&mut self) {
        self.due = self.bounds.least;
    }

    /// Returns the next wait.
    pub fn wait(&mut self) -> Duration {
        let Bounds { least, most, jitter, .. } = self.bounds;
        let least = least.max(LEAST);
        let due = self.due.min(most).max(least);
        self.due = due.saturating_mul(2);
        if !jitter {
            return due;
        }
        let span = u64::try_from(due.saturating_sub(least).as_nanos()).unwrap_or(u64::MAX);
        least + Duration::from_nanos(self.draw() % span.saturating_add(1).max(1))
    }

    /// Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014.
    const fn draw(&mut self) -> u64 {
        self.drawn = self.drawn.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.drawn;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
