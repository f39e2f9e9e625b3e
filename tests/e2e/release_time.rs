//! Compares the time until a permit is free with the documented time for this way to end a request.
//! Only the modules `timing` judge times, on a machine without other load.
//!
//! Guarantees:
//! - A way to end a request is repeated until an attempt takes at most the documented time plus
//!   polling.
//! - A release that is always slower fails the test, because machine load can only add time.
//! - Three of four counted attempts are late by at most [`ALLOWANCE`].
//! - Losing every other release fails the rule of three in four.
//! - No attempt is late enough to suggest that `max_duration` freed the permit.
//! - A failure of the proxy is tested once and must be within [`ALLOWANCE`].
//! - A late attempt does not count if [`Watchers`] recorded equally long pauses.
//! - An uncounted failure of the proxy is repeated with a new proxy.
#![expect(clippy::print_stdout, reason = "the table is part of the proof")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::in_flight::gauge;
use crate::support::scheduling_delays::{Disturbed, Watchers};
use crate::support::waiting::{PATIENCE, now};

/// Poll interval of the metrics page.
const PAUSE: Duration = Duration::from_millis(1);
/// Tolerance: documented times are truncated to milliseconds and come from another machine, and a
/// process must wake up.
const ROUNDING: Duration = Duration::from_millis(2);
/// Tolerated delay of processes that compete for two cores.
pub const ALLOWANCE: Duration = Duration::from_millis(50);
/// Longest read of the metrics page that counts as polling. If a read is slower, the attempt is
/// repeated.
const SLOW_LOOK: Duration = Duration::from_millis(10);
/// Minimum number of counted attempts. If half of the releases are lost at random, at most one of
/// six is lost in one run of nine.
const MIN_ATTEMPTS: usize = 6;
const MAX_ATTEMPTS: usize = 50;
/// Maximum delay beyond the documented time, far below the `max_duration` of 60 s.
const MAX_DELAY: Duration = Duration::from_secs(3);

/// One way to end a request. `end` returns the time until the permit was free.
pub struct Ending<S> {
    pub what: &'static str,
    /// Documented time until the permit is free, in ms.
    pub promised: u64,
    pub end: fn(&S) -> Duration,
}

impl<S> Ending<S> {
    const fn promised(&self) -> Duration {
        Duration::from_millis(self.promised)
    }
}

#[derive(Clone, Copy)]
struct Attempt {
    /// Time until the permit was free.
    took: Duration,
    /// Total pause of the machine in this time, as recorded by [`Watchers`].
    paused: Duration,
}

impl Attempt {
    fn make<S>(scene: &S, end: fn(&S) -> Duration) -> Self {
        let (watchers, began) = (Watchers::start(), now());
        let took = end(scene);
        Self { took, paused: watchers.stop().longest_total((began, now())) }
    }

    /// True if the delay is so long that the release was lost, and the pauses of the machine do not
    /// explain it.
    fn is_lost(&self, promised: Duration) -> bool {
        self.paused < self.took.saturating_sub(promised + ALLOWANCE)
    }
}

/// True if one attempt took at most `in_time`, and three of four counted attempts are late by at
/// most [`ALLOWANCE`].
fn is_acceptable(attempts: &[Attempt], promised: Duration, in_time: Duration) -> bool {
    let lost = attempts.iter().filter(|it| it.is_lost(promised)).count();
    let prompt = attempts.iter().filter(|it| it.took <= promised + ALLOWANCE).count();
    let one_in_time = attempts.iter().any(|it| it.took <= in_time);
    one_in_time && MIN_ATTEMPTS <= prompt + lost && 3 * lost <= prompt
}

/// Repeats a way to end a request, prints the measured times and asserts them.
pub fn check_ending<S>(integration: &str, metrics: SocketAddr, scene: &S, ending: &Ending<S>) {
    let (promised, mut attempts, mut look) = (ending.promised(), Vec::new(), Duration::MAX);
    // The permit may become free just after a read of the metrics page, so two reads are added.
    let in_time = |look: Duration| promised + PAUSE + 2 * look.min(SLOW_LOOK) + ROUNDING;
    while attempts.len() < MAX_ATTEMPTS && !is_acceptable(&attempts, promised, in_time(look)) {
        attempts.push(Attempt::make(scene, ending.end));
        look = look.min(time_metrics_read(metrics));
    }
    let took: Vec<_> = attempts.iter().map(|it| it.took).collect();
    print_row(integration, ending.what, promised, &took);
    let details =
        format!("{integration}: {}: {took:?}, promised {promised:?}, a look {look:?}", ending.what);
    assert!(is_acceptable(&attempts, promised, in_time(look)), "{details}");
    let slowest = took.iter().max().copied().unwrap_or_default();
    assert!(slowest <= promised + MAX_DELAY, "{details}");
}

fn print_row(by: &str, what: &str, promised: Duration, took: &[Duration]) {
    let least = took.iter().min().copied().unwrap_or_default();
    let most = took.iter().max().copied().unwrap_or_default();
    let [want, least, most] = [promised, least, most].map(|it| it.as_millis());
    let attempts = took.len();
    println!("| {what} | {by} | {want} ms | {least} to {most} ms of {attempts} |");
}

/// Returns the duration of one read of the metrics page.
fn time_metrics_read(metrics: SocketAddr) -> Duration {
    let began = now();
    gauge(metrics, "sluicegate_requests_in_flight");
    began.elapsed()
}

/// Runs `fail` once, waits until nothing is in flight, and asserts the time. `fail` returns the
/// start of the measurement.
pub fn check_failure(
    by: &str,
    what: &str,
    promised: Duration,
    metrics: SocketAddr,
    fail: impl FnOnce() -> Instant,
) -> Result<(), Disturbed> {
    let watchers = Watchers::start();
    let began = now();
    let at = fail();
    let doing = at - began;
    let took = time_until_idle(metrics, at);
    // An earlier pause cannot delay a release that is due at the documented time.
    let late = watchers.stop().longest_total((at + promised, at + took));
    let excess = took.saturating_sub(promised + ALLOWANCE);
    let details = format!(
        "{by}: {what}: {took:?} after the {doing:?} that it took, promised {promised:?}, watchers were {late:?} late"
    );
    if Duration::ZERO < excess && excess <= late && excess <= MAX_DELAY {
        return Err(Disturbed(details));
    }
    println!("| {what} | {by} | {} ms | {} ms |", promised.as_millis(), took.as_millis());
    assert_eq!(excess, Duration::ZERO, "{details}");
    Ok(())
}

/// Runs `fail` and returns the instant before it.
pub fn instant_before(fail: impl FnOnce()) -> Instant {
    let before = now();
    fail();
    before
}

pub fn time_until_idle(metrics: SocketAddr, at: Instant) -> Duration {
    time_until_zero(metrics, "sluicegate_requests_in_flight", at)
}

pub fn time_until_zero(metrics: SocketAddr, name: &str, at: Instant) -> Duration {
    loop {
        let found = gauge(metrics, name);
        let took = at.elapsed();
        if found == 0 {
            return took;
        }
        assert!(took < PATIENCE, "{name}: {found} after {took:?}");
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{ALLOWANCE, Attempt, MIN_ATTEMPTS, is_acceptable};

    const PROMISED: Duration = Duration::from_millis(5);
    const IN_TIME: Duration = Duration::from_millis(9);
    const LATE: Duration = Duration::from_millis(60);

    fn accepts(attempts: &[&[Attempt]]) -> bool {
        is_acceptable(&attempts.concat(), PROMISED, IN_TIME)
    }

    fn repeated(count: usize, took: Duration, paused: Duration) -> Vec<Attempt> {
        vec![Attempt { took, paused }; count]
    }

    #[test]
    fn losing_every_other_release_never_passes() {
        let turn =
            [repeated(1, IN_TIME, ALLOWANCE), repeated(1, Duration::from_secs(1), ALLOWANCE)]
                .concat();
        for turns in 0..50 {
            assert!(!accepts(&[&turn.repeat(turns)]), "{turns}");
            assert!(!accepts(&[&turn.repeat(turns), &turn[..1]]), "{turns} and one");
        }
    }

    #[test]
    fn three_of_four_counted_attempts_must_be_within_the_allowance() {
        let excess = LATE.saturating_sub(PROMISED + ALLOWANCE);
        let prompt = |count| repeated(count, IN_TIME, Duration::ZERO);
        let (excused, lost) =
            (repeated(9, LATE, excess), |count| repeated(count, LATE, excess / 2));
        assert!(!accepts(&[&prompt(MIN_ATTEMPTS - 1)]), "too few");
        assert!(!accepts(&[&prompt(MIN_ATTEMPTS - 1), &excused]), "too few that count");
        assert!(accepts(&[&prompt(MIN_ATTEMPTS), &excused]));
        assert!(accepts(&[&prompt(5), &lost(1)]) && !accepts(&[&prompt(5), &lost(2)]));
        assert!(accepts(&[&prompt(6), &lost(2)]));
    }

    #[test]
    fn one_attempt_must_take_the_documented_time() {
        let slower = repeated(50, IN_TIME + Duration::from_millis(1), Duration::ZERO);
        assert!(!accepts(&[&slower]));
        assert!(accepts(&[&slower, &repeated(1, IN_TIME, Duration::ZERO)]));
    }
}
