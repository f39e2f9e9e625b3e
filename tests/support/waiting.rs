//! Bounded waits for tests that control processes.
//!
//! Guarantees:
//! - A test waits for a condition, never for a fixed time.
//! - A timed-out wait reports the last observed state.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Timeout of every wait, far above the needs of a loaded machine. A test that passes never waits
/// for it, so no verdict depends on it.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// The smallest number of attempts of [`until`], even if each of them takes longer than
/// [`PATIENCE`].
const MIN_ATTEMPTS: u32 = 3;

const PAUSE: Duration = Duration::from_millis(5);

/// Polls until the closure succeeds.
///
/// # Errors
/// The last error after [`PATIENCE`] and [`MIN_ATTEMPTS`].
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let (began, mut attempts) = (now(), 0);
    loop {
        attempts += 1;
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(why) if MIN_ATTEMPTS <= attempts && PATIENCE < began.elapsed() => {
                return Err(format!("{what}: not within {PATIENCE:?}: {why}"));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Awaits the future for at most [`PATIENCE`].
pub async fn soon<T>(what: &str, it: impl Future<Output = T>) -> T {
    let came = tokio::time::timeout(PATIENCE, it).await;
    came.unwrap_or_else(|_| panic!("{what}: not within {PATIENCE:?}"))
}

/// Sets the flag on drop. A failed test then also stops its background threads.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[expect(clippy::disallowed_methods, reason = "the rule is about the service's own clock")]
pub fn now() -> Instant {
    Instant::now()
}

/// Seconds since 1970 UTC, the time scale of calendar windows.
#[expect(clippy::disallowed_methods, reason = "the rule is about the service's own clock")]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Waits for the next UTC day if the current day ends within a minute.
///
/// All calendar windows of a day or longer end at midnight UTC. The caller has at least a minute
/// without a window change.
pub fn for_a_day_with_a_minute_left() {
    const DAY: u64 = 86_400;
    let into_day = unix_seconds() % DAY;
    if DAY - 60 <= into_day {
        std::thread::sleep(Duration::from_secs(DAY - into_day));
    }
}
