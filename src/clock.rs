//! The only reader of time.
//!
//! Guarantees: neither [`Clock::now`] nor [`Clock::steady`] runs backwards, and both begin at the wall
//! clock's time. They follow the boot clock, which the operating system slews together with the wall clock and which counts
//! while the machine sleeps; where there is none (not Linux) the monotonic one, which may not.
//! `now` is for windows and calendars: a wall clock stepped forward is adopted within a second, one stepped back is not; a
//! window that has begun stays begun until the process restarts. `steady` takes no step of the wall clock: it is for
//! how long something lasts, as a request in flight or a share, which are not over because somebody set the clock.
//! An instant of one is nothing to the other.
//! Leaves out: the store's clock, which rules shared counters; a machine that was stopped from outside together with all its
//! clocks.
//! Cost: one clock read; of `now` once a second a second one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
#[cfg(not(target_os = "linux"))]
use std::time::Instant;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
        Self::Manual(Manual { steady: AtomicU64::new(now.0), steps: AtomicU64::new(0) })
    }

    /// The present instant, nanoseconds since the Unix epoch.
    #[must_use]
    pub fn now(&self) -> Nanos {
        match self {
            Self::System(system) => system.now(),
            Self::Manual(manual) => manual.steady().plus(Nanos(manual.steps.load(Relaxed))),
        }
    }

    /// The present instant by what has passed since the start, in nanoseconds.
    #[must_use]
    pub fn steady(&self) -> Nanos {
        match self {
            Self::System(system) => system.steady(),
            Self::Manual(manual) => manual.steady(),
        }
    }
}

/// The machine's clock.
#[derive(Debug)]
pub struct System {
    started: Boot,
    /// How wrong it is made, in nanoseconds.
    shift: i64,
    /// What the wall clock showed at the start.
    origin: u64,
    /// What to add to the time since the start; only grows.
    offset: AtomicU64,
    /// When the wall clock was last looked at, in nanoseconds since the start.
    looked: AtomicU64,
}

impl System {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads time")]
    fn start() -> Self {
        let (started, wall) = (Boot::now(), SystemTime::now());
        let shift = std::env::var(SHIFT).ok().and_then(|text| text.parse::<i64>().ok());
        let shift = shift.unwrap_or(0).saturating_mul(1_000_000);
        let origin = unix(wall).saturating_add_signed(shift);
        let (offset, looked) = (AtomicU64::new(origin), AtomicU64::new(0));
        Self { started, shift, origin, offset, looked }
    }

    fn now(&self) -> Nanos {
        let elapsed = self.elapsed();
        if elapsed.saturating_sub(self.looked.load(Relaxed)) >= Nanos::SECOND.0 {
            self.follow_wall_clock();
        }
        Nanos(self.offset.load(Relaxed).saturating_add(elapsed))
    }

    fn steady(&self) -> Nanos {
        Nanos(self.origin.saturating_add(self.elapsed()))
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

/// A reading of the clock that counts since the machine was started.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct Boot(rustix::time::Timespec);

#[cfg(target_os = "linux")]
impl Boot {
    fn now() -> Self {
        Self(rustix::time::clock_gettime(rustix::time::ClockId::Boottime))
    }

    fn elapsed(&self) -> Duration {
        Duration::try_from(Self::now().0 - self.0).unwrap_or_default()
    }
}

/// A reading of the clock that counts while the process runs.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
struct Boot(Instant);

#[cfg(not(target_os = "linux"))]
impl Boot {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads time")]
    fn now() -> Self {
        Self(Instant::now())
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A clock set by hand.
#[derive(Debug)]
pub struct Manual {
    steady: AtomicU64,
    /// By how much the wall clock was set forward.
    steps: AtomicU64,
}

impl Manual {
    /// Lets so much time pass.
    pub fn advance(&self, by: Nanos) {
        self.steady.fetch_add(by.0, Relaxed);
    }

    /// Sets the wall clock forward; no time passes.
    pub fn step(&self, by: Nanos) {
        self.steps.fetch_add(by.0, Relaxed);
    }

    fn steady(&self) -> Nanos {
        Nanos(self.steady.load(Relaxed))
    }
}

fn unix(wall: SystemTime) -> u64 {
    wall.duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
