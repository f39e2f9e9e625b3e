//! Reads the time for the whole program. No other module reads a clock.
//!
//! Guarantees:
//! - [`Clock::now`] and [`Clock::steady`] never run backwards. Both start at the wall clock's time.
//! - `now` follows a forward step of the wall clock within a second.
//! - `now` ignores backward steps of the wall clock.
//! - `steady` ignores all steps of the wall clock.
//!
//! Use `now` for windows of rate limits. Use `steady` for durations, such as the lifetime of a
//! permit or a share. Never compare an instant of `now` with an instant of `steady`.
//!
//! On Linux, both read the boot clock, which runs while the machine sleeps and which NTP adjusts
//! like the wall clock. Other systems use the monotonic clock, which may pause during sleep.
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

/// The variable that shifts the wall clock, in milliseconds, so that tests can simulate fleets
/// whose clocks differ. Read once, at the start.
pub const SHIFT_VARIABLE: &str = "TEST_CLOCK_SHIFT_MS";

/// The clock of the process, or a clock for tests.
#[derive(Debug)]
pub enum Clock {
    /// The operating system's clocks.
    System(SystemClock),
    /// A clock that is advanced by hand, for tests and replays.
    Manual(ManualClock),
}

impl Clock {
    /// Creates a clock that reads the clocks of the operating system.
    #[must_use]
    pub fn system() -> Self {
        Self::System(SystemClock::start())
    }

    /// Creates a clock whose `now` starts at `earliest` if the wall clock is behind it.
    #[must_use]
    pub fn system_from(earliest: Nanos) -> Self {
        let clock = SystemClock::start();
        clock.offset.fetch_max(earliest.0, Relaxed);
        Self::System(clock)
    }

    /// Creates a clock that stays at `now` until it is advanced.
    #[must_use]
    pub fn manual(now: Nanos) -> Self {
        Self::Manual(ManualClock { steady: AtomicU64::new(now.0), wall_offset: AtomicU64::new(0) })
    }

    /// Returns the wall clock time since the Unix epoch. Never runs backwards.
    #[must_use]
    pub fn now(&self) -> Nanos {
        match self {
            Self::System(system) => system.now(),
            Self::Manual(manual) => manual.steady().plus(Nanos(manual.wall_offset.load(Relaxed))),
        }
    }

    /// Reads the wall clock, which may step back.
    #[must_use]
    pub fn wall(&self) -> Nanos {
        match self {
            Self::System(system) => system.wall(),
            Self::Manual(_) => self.now(),
        }
    }

    /// Returns the wall clock time at the process start plus the time elapsed since then.
    #[must_use]
    pub fn steady(&self) -> Nanos {
        match self {
            Self::System(system) => system.steady(),
            Self::Manual(manual) => manual.steady(),
        }
    }
}

/// The operating system's clocks. All numbers are nanoseconds.
#[derive(Debug)]
pub struct SystemClock {
    started: Boot,
    /// The shift of the wall clock by [`SHIFT_VARIABLE`].
    shift: i64,
    /// The wall clock at the start, since the Unix epoch.
    origin: u64,
    /// The difference between `now` and the time since the start. It only grows.
    offset: AtomicU64,
    /// The time of the last read of the wall clock, since the start.
    last_wall_read: AtomicU64,
}

impl SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads time")]
    fn start() -> Self {
        let (started, wall) = (Boot::now(), SystemTime::now());
        let shift = std::env::var(SHIFT_VARIABLE).ok().and_then(|text| text.parse::<i64>().ok());
        let shift = shift.unwrap_or(0).saturating_mul(1_000_000);
        let origin = nanos_since_epoch(wall).saturating_add_signed(shift);
        let (offset, last_wall_read) = (AtomicU64::new(origin), AtomicU64::new(0));
        Self { started, shift, origin, offset, last_wall_read }
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

    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads time")]
    fn wall(&self) -> Nanos {
        Nanos(nanos_since_epoch(SystemTime::now()).saturating_add_signed(self.shift))
    }

    fn elapsed(&self) -> u64 {
        let elapsed = self.started.elapsed();
        // `as_nanos` returns a u128, whose arithmetic would slow down every check.
        elapsed.as_secs().saturating_mul(Nanos::SECOND.0) + u64::from(elapsed.subsec_nanos())
    }

    #[cold]
    fn follow_wall_clock(&self) {
        let wall = self.wall().0;
        // Read the elapsed time after the wall clock. If the thread pauses in between, the offset
        // is too small, which `fetch_max` ignores. An offset that is too large would be permanent.
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

/// A clock that is advanced by hand.
#[derive(Debug)]
pub struct ManualClock {
    steady: AtomicU64,
    /// The sum of all forward steps of the wall clock.
    wall_offset: AtomicU64,
}

impl ManualClock {
    /// Advances `now` and `steady`.
    pub fn advance(&self, duration: Nanos) {
        self.steady.fetch_add(duration.0, Relaxed);
    }

    /// Advances only `now`, as if the wall clock was set forward.
    pub fn step_wall_clock(&self, duration: Nanos) {
        self.wall_offset.fetch_add(duration.0, Relaxed);
    }

    fn steady(&self) -> Nanos {
        Nanos(self.steady.load(Relaxed))
    }
}

fn nanos_since_epoch(wall: SystemTime) -> u64 {
    wall.duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
