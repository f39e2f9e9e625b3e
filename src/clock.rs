//! The only reader of time.
//!
//! Guarantees: [`Clock::now`] never runs backwards. The system clock follows the monotonic clock,
//! which the operating system slews together with the wall clock; a wall clock stepped forward, or
//! a resume from suspend, is adopted within a second, one stepped back is not: a window that has
//! begun stays begun until the process restarts.
//! Leaves out: the store's clock, which rules shared counters.
//! Cost: one clock read; once a second a second one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::kernel::units::Nanos;

/// The variable that makes this process' clock wrong, by milliseconds; for tests of fleets whose clocks do
/// not agree. Read once.
pub const SHIFT: &str = "TEST_CLOCK_SHIFT_MS";

/// Where the time comes from.
#[derive(Debug)]
pub enum Clock {
    /// The machine's.
    System(System),
    /// Set by hand, for tests and replays.
    Manual(Manual),
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self::System(System::start())
    }

    /// A clock that stands at `now` until it is told otherwise.
    #[must_use]
    pub fn manual(now: Nanos) -> Self {
        Self::Manual(Manual(AtomicU64::new(now.0)))
    }

    /// The present instant.
    #[must_use]
    pub fn now(&self) -> Nanos {
        match self {
            Self::System(system) => system.now(),
            Self::Manual(manual) => Nanos(manual.0.load(Relaxed)),
        }
    }
}

/// The machine's clock.
#[derive(Debug)]
pub struct System {
    started: Instant,
    /// How wrong it is made, in nanoseconds.
    shift: i64,
    /// What to add to the monotonic time; only grows.
    offset: AtomicU64,
    /// When the wall clock was last looked at, in monotonic nanoseconds.
    looked: AtomicU64,
}

impl System {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads time")]
    fn start() -> Self {
        let (started, wall) = (Instant::now(), SystemTime::now());
        let shift = std::env::var(SHIFT).ok().and_then(|text| text.parse::<i64>().ok());
        let shift = shift.unwrap_or(0).saturating_mul(1_000_000);
        let offset = AtomicU64::new(unix(wall).saturating_add_signed(shift));
        Self { started, shift, offset, looked: AtomicU64::new(0) }
    }

    fn now(&self) -> Nanos {
        let elapsed = self.elapsed();
        if elapsed.saturating_sub(self.looked.load(Relaxed)) >= Nanos::SECOND.0 {
            self.follow_wall_clock();
        }
        Nanos(self.offset.load(Relaxed).saturating_add(elapsed))
    }

    fn elapsed(&self) -> u64 {
        let elapsed = self.started.elapsed();
        // In u64: 584 years fit, and a product of u128 on every question would be a waste.
        elapsed.as_secs().saturating_mul(Nanos::SECOND.0) + u64::from(elapsed.subsec_nanos())
    }

    #[cold]
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads time")]
    fn follow_wall_clock(&self) {
        let wall = unix(SystemTime::now()).saturating_add_signed(self.shift);
        // Read after the wall clock: a thread that is paused in between finds too small an offset,
        // which changes nothing; too large a one would stay for ever.
        let elapsed = self.elapsed();
        self.looked.store(elapsed, Relaxed);
        self.offset.fetch_max(wall.saturating_sub(elapsed), Relaxed);
    }
}

/// A clock set by hand.
#[derive(Debug)]
pub struct Manual(AtomicU64);

impl Manual {
    /// Moves the clock forward.
    pub fn advance(&self, by: Nanos) {
        self.0.fetch_add(by.0, Relaxed);
    }
}

fn unix(wall: SystemTime) -> u64 {
    wall.duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
