//! Catches panics in hooks, which would otherwise end Envoy.
//!
//! Guarantees:
//! - A hook that panics returns the result of its fallback.
//! - The first panic is logged with its position; all are counted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::log::{self, LogLevel};

/// Panics that no counter of Envoy has counted yet.
static UNCOUNTED_PANICS: AtomicU64 = AtomicU64::new(0);

/// Runs the hook `name`. If it panics, returns the result of `on_panic`, or `last_resort` if that
/// panics, too.
pub(crate) fn run<T>(
    name: &'static str,
    last_resort: T,
    on_panic: impl FnOnce() -> T,
    hook: impl FnOnce() -> T,
) -> T {
    let outcome = catch(|| {
        plant(name);
        hook()
    });
    outcome.or_else(|| catch(on_panic)).unwrap_or(last_resort)
}

/// Returns the number of panics since the last call.
pub(crate) fn take_uncounted_panics() -> u64 {
    match UNCOUNTED_PANICS.load(Ordering::Relaxed) {
        0 => 0,
        _ => UNCOUNTED_PANICS.swap(0, Ordering::Relaxed),
    }
}

/// Logs the first panic of the process instead of printing all of them.
pub(crate) fn log_first_panic() {
    static FIRST: Once = Once::new();
    std::panic::set_hook(Box::new(|panic| {
        FIRST.call_once(|| {
            let message = format!(
                "sluicegate: {panic}; the filter decides by its setting `failure`, and counts \
                 later panics in the counter `panics`; please report this"
            );
            log::write(LogLevel::Critical, &message);
        });
    }));
}

fn catch<T>(body: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => Some(value),
        Err(payload) => {
            UNCOUNTED_PANICS.fetch_add(1, Ordering::Relaxed);
            // Dropping the payload could panic again.
            std::mem::forget(payload);
            None
        }
    }
}

/// Panics if the test planted a panic at this point.
#[cfg(feature = "plant_panics")]
pub(crate) fn plant(point: &str) {
    let planted = std::env::var_os("SLUICEGATE_PLANT_PANIC");
    assert!(planted.is_none_or(|planted| planted != point), "planted in {point}");
}

/// Does nothing: this build plants no panics.
#[cfg(not(feature = "plant_panics"))]
pub(crate) const fn plant(_point: &str) {}

#[cfg(test)]
mod tests {
    use super::run;

    #[test]
    fn a_panic_returns_the_fallback_and_then_the_last_resort() {
        assert_eq!(run("hook", 0, || 1, || 2), 2);
        assert_eq!(run("hook", 0, || 1, || panic!("a")), 1);
        assert_eq!(run("hook", 0, || panic!("b"), || panic!("a")), 0);
    }
}
