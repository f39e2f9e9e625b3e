//! Waiting with a bound, for tests that drive processes.
//!
//! A test waits for what it needs, never for a time: `until` asks again and again and fails in words at its deadline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long anything may take before a test gives up on it: far above what a loaded machine needs.
pub const PATIENCE: Duration = Duration::from_secs(20);

const PAUSE: Duration = Duration::from_millis(5);

/// Asks until there is an answer.
///
/// # Errors
/// The last reason given, once `PATIENCE` is over.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let began = now();
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(why) if PATIENCE < began.elapsed() => {
                return Err(format!("{what}: not within {PATIENCE:?}: {why}"));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// What comes of it.
///
/// # Panics
/// Where nothing does within `PATIENCE`.
pub async fn soon<T>(what: &str, it: impl Future<Output = T>) -> T {
    let came = tokio::time::timeout(PATIENCE, it).await;
    came.unwrap_or_else(|_| panic!("{what}: not within {PATIENCE:?}"))
}

/// Says that it is over when it goes, also where a test fails: who works beside it until then would go on for ever.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The monotonic clock of the tests, which time a process from outside.
#[expect(clippy::disallowed_methods, reason = "the rule is about the service's own clock")]
pub fn now() -> Instant {
    Instant::now()
}

/// Whole seconds since 1970, which is what the windows of the seven units are counted in.
#[expect(clippy::disallowed_methods, reason = "the rule is about the service's own clock")]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns at once, except in the last minute of a UTC day, when it waits for the next one.
///
/// Weeks, months and years of the base language all turn where a day does: past this call a test has
/// a minute in which no window of a day or longer ends.
pub fn for_a_day_with_a_minute_left() {
    const DAY: u64 = 86_400;
    let into_day = unix_seconds() % DAY;
    if DAY - 60 <= into_day {
        std::thread::sleep(Duration::from_secs(DAY - into_day));
    }
}
