//! Reads the time for the whole program. No other module reads a clock.
//!
//! Guarantees:
//! - [`Clock::now`] and [`Clock::steady`] never run backwards. Both start at the wall clock's time.
//! - `now` follows a forward step of the wall clock within a second.
//! - `now` ignores backward steps of the wall clock.
//! - `steady` ignores all steps of the wall clock.
//!
//! Use `now` for rate limit windows and calendar units: no window starts twice, unless the process
//! restarts. Use `steady` for durations, such as the lifetime of a permit or a share. Never compare
//! an instant of `now` with an instant of `steady`.
//!
//! On Linux both read the boot clock, which runs while the machine sleeps and is slewed like the
//! wall clock. Other systems use the monotonic clock, which may pause during sleep.
//!
//! Cost: one clock read. `now` also reads the wall clock once a second.
//!
//! Not covered:
//! - The store's clock, which determines the windows of counters in the store.
//! - A virtual machine that is paused: all its clocks stop.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
#[cfg(not(target_os = "linux"))]
use std::time::Instant;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::kernel::units::Nanos;

/// The environment variable that shifts this process's wall clock, in milliseconds. It is read
/// once, at the start. Tests use it to simulate fleets whose clocks differ.
pub const SHIFT_VARIABLE: &str = "TEST_CLOCK_SHIFT_MS";

/// The source of time.
#[derive(Debug)]
pub enum Clock {
    /// The clocks of the operating system.
    System(SystemClock),
    /// A clock that is set by hand, for tests and replays.
    Manual(ManualClock),
}

impl Clock {
    /// Creates a clock that reads the clocks of the operating system.
    #[must_use]
    pub fn system() -> Self {
        Self::System(SystemClock::start())
    }

    /// Creates a clock that stays at `now` until it is advanced.
    #[must_use]
    pub fn manual(now: Nanos) -> Self {
        Self::Manual(ManualClock { steady: AtomicU64::new(now.0), wall_offset: AtomicU64::new(0) })
    }

    /// The current wall clock time, which never runs backwards, in nanoseconds since the Unix
    /// epoch.
    #[must_use]
    pub fn now(&self) -> Nanos {
        match self {
            Self::System(system) => system.now(),
            Self::Manual(manual) => manual.steady().plus(Nanos(manual.wall_offset.load(Relaxed))),
        }
    }

    /// The wall clock time at the process start plus the time elapsed since, in nanoseconds.
    #[must_use]
    pub fn steady(&self) -> Nanos {
        match self {
            Self::System(system) => system.steady(),
            Self::Manual(manual) => manual.steady(),
        }
    }
}

/// The clocks of the operating system.
#[derive(Debug)]
pub struct SystemClock {
    started: Boot,
    /// The shift of the wall clock by [`SHIFT_VARIABLE`], in nanoseconds.
    shift: i64,
    /// The wall clock at the start, in nanoseconds since the Unix epoch.
    origin: u64,
    /// The difference between `now` and the time since the start, in nanoseconds. It only grows.
    offset: AtomicU64,
    /// The last read of the wall clock, in nanoseconds since the start.
    last_wall_read: AtomicU64,
}

impl SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads time")]
    fn start() -> Self {
        let (started, wall) = (Boot::now(), SystemTime::now());
        let shift = std::env::var(SHIFT_VARIABLE).ok().and_then(|text| text.parse::<i64>().ok());
        let shift = shift.unwrap_or(0).saturating_mul(1_000_000);
        let origin = nanos_since_epoch(wall).saturating_add_signed(shift);
        let (offset, looked) = (AtomicU64::new(origin), AtomicU64::new(0));
        Self { started, shift, origin, offset, last_wall_read: looked }
    }

    fn now(&self) -> Nanos {
        let elapsed = self.elapsed();
        if elapsed.saturating_sub(self.last_wall_read.load(Relaxed)) >= Nanos::SECOND.0 {
            self.follow_wall_clock();
        }
        Nanos(self.offset.load(Relaxed).saturating_add(elapsed))
    }

    fn steady(&self) -> Nanos {
        Nanos(self.origin.saturating_add(self.elapsed()))
    }

    fn elapsed(&self) -> u64 {
        let elapsed = self.started.elapsed();
        // Nanoseconds in a u64 last for 584 years. u128 arithmetic would slow down every check.
        elapsed.as_secs().saturating_mul(Nanos::SECOND.0) + u64::from(elapsed.subsec_nanos())
    }

    #[cold]
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads time")]
    fn follow_wall_clock(&self) {
        let wall = nanos_since_epoch(SystemTime::now()).saturating_add_signed(self.shift);
        // Read after the wall clock. If the thread pauses in between, the offset is too small and
        // `fetch_max` ignores it. An offset that is too large would be permanent.
        let elapsed = self.elapsed();
        self.last_wall_read.store(elapsed, Relaxed);
        self.offset.fetch_max(wall.saturating_sub(elapsed), Relaxed);
    }
}

/// A reading of the boot clock, which counts from machine start and includes sleep.
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

/// A reading of the monotonic clock.
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

/// A clock that is set by hand.
#[derive(Debug)]
pub struct ManualClock {
    steady: AtomicU64,
    /// The sum of all forward steps of the wall clock.
    wall_offset: AtomicU64,
}

impl ManualClock {
    /// Advances both `now` and `steady` by `by`.
    pub fn advance(&self, by: Nanos) {
        self.steady.fetch_add(by.0, Relaxed);
    }

    /// Steps `now` forward by `by`, like a step of the wall clock. `steady` does not change.
    pub fn step_wall_clock(&self, by: Nanos) {
        self.wall_offset.fetch_add(by.0, Relaxed);
    }

    fn steady(&self) -> Nanos {
        Nanos(self.steady.load(Relaxed))
    }
}

fn nanos_since_epoch(wall: SystemTime) -> u64 {
    wall.duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
