//! How long to wait before calling again.
//!
//! Guarantees: no wait is shorter than the shortest nor longer than the longest; waits double and begin anew
//! after a stream that brought something.

use std::time::Duration;

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The shortest wait.
    pub least: Duration,
    /// The longest.
    pub most: Duration,
    /// Whether each is drawn anew between the shortest and what is due.
    pub jitter: bool,
    /// Any number, another one in every process: where the drawing begins.
    pub seed: u64,
}

/// No wait is shorter, whatever the bounds say: a server that refuses at once would be called as fast as it can.
const LEAST: Duration = Duration::from_millis(10);

/// Waits.
#[derive(Debug)]
pub struct Backoff {
    bounds: Bounds,
    due: Duration,
    drawn: u64,
}

impl Backoff {
    /// The first wait is the shortest.
    #[must_use]
    pub const fn new(bounds: Bounds) -> Self {
        Self { bounds, due: bounds.least, drawn: bounds.seed }
    }

    /// Begins anew.
    pub const fn reset(&mut self) {
        self.due = self.bounds.least;
    }

    /// How long to wait now.
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
