//! How soon a place came back after what ended its request, against what is promised of that ending.
//!
//! A busy machine only adds. An ending that can be repeated is so until one try keeps the promise and what it takes to
//! look: a way that has become slower keeps it in none. Of [`ENOUGH`] tries and more, three of four are late by no more than
//! [`ALLOWANCE`]: with a way that is lost every other time they are not, for what else frees a place takes longer. None may
//! take so long that only `max_duration` can have freed it. What can be done to a proxy only once has to keep what is
//! promised at once, with [`ALLOWANCE`]. A try that is later does not count where [`Watchers`] saw the machine run nobody
//! for as long as that; what is done only once is then made again, with another proxy.
#![expect(clippy::print_stdout, reason = "the table is part of the proof")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::in_flight::gauge;
use crate::support::watchers::{Spoiled, Watchers};
use crate::waiting::{PATIENCE, now};

/// Between two looks at a page of metrics.
const PAUSE: Duration = Duration::from_millis(1);
/// What is promised are whole milliseconds, of another machine: for the part that is cut off, and for a process that is woken.
const ROUNDED: Duration = Duration::from_millis(2);
/// Processes that wait for one of two cores.
pub const ALLOWANCE: Duration = Duration::from_millis(50);
/// A machine on which even an empty look takes longer is too busy to be waited for: it is tried again until it is less so.
const SLOW_LOOK: Duration = Duration::from_millis(10);
/// Tries that count, at least. Of a way that is lost by chance every other time, one run in nine sees no more than one loss in six.
const ENOUGH: usize = 6;
const TRIES: usize = 50;
/// What a try may take longer than promised: far less than the 60 s after which a place is free whatever happens.
const CROWDED: Duration = Duration::from_secs(3);

/// One way to end a request at `S`, which says how long after it the place was free.
pub struct Ending<S> {
    pub what: &'static str,
    /// At most so long after it, in milliseconds.
    pub promised: u64,
    pub end: fn(&S) -> Duration,
}

impl<S> Ending<S> {
    const fn promised(&self) -> Duration {
        Duration::from_millis(self.promised)
    }
}

/// One time that a request was ended.
#[derive(Clone, Copy)]
struct Try {
    /// How long after it the place was free.
    took: Duration,
    /// How long meanwhile the machine ran nobody.
    paused: Duration,
}

impl Try {
    fn make<S>(scene: &S, end: fn(&S) -> Duration) -> Self {
        let (watchers, began) = (Watchers::start(), now());
        let took = end(scene);
        Self { took, paused: watchers.stop().altogether((began, now())) }
    }

    /// Later than a busy machine makes it.
    fn is_lost(&self, promised: Duration) -> bool {
        self.paused < self.took.saturating_sub(promised + ALLOWANCE)
    }
}

/// Whether one of them is in time, and three of four of those that count, which are enough, are not lost.
fn keep(tries: &[Try], promised: Duration, in_time: Duration) -> bool {
    let lost = tries.iter().filter(|it| it.is_lost(promised)).count();
    let prompt = tries.iter().filter(|it| it.took <= promised + ALLOWANCE).count();
    let one_is = tries.iter().any(|it| it.took <= in_time);
    one_is && ENOUGH <= prompt + lost && 3 * lost <= prompt
}

/// Ends a request so for a few times, and says what was seen.
pub fn ends<S>(by: &str, metrics: SocketAddr, scene: &S, ending: &Ending<S>) {
    let (promised, mut tries, mut look) = (ending.promised(), Vec::new(), Duration::MAX);
    // The look that finds it free may follow one that just did not, and is paid for twice then.
    let in_time = |look: Duration| promised + PAUSE + 2 * look.min(SLOW_LOOK) + ROUNDED;
    while tries.len() < TRIES && !keep(&tries, promised, in_time(look)) {
        tries.push(Try::make(scene, ending.end));
        look = look.min(empty_look(metrics));
    }
    let took: Vec<_> = tries.iter().map(|it| it.took).collect();
    tell(by, ending.what, promised, &took);
    let said = format!("{by}: {}: {took:?}, promised {promised:?}, a look {look:?}", ending.what);
    assert!(keep(&tries, promised, in_time(look)), "{said}");
    let slowest = took.iter().max().copied().unwrap_or_default();
    assert!(slowest <= promised + CROWDED, "{said}");
}

/// What was promised, and what it took.
fn tell(by: &str, what: &str, promised: Duration, took: &[Duration]) {
    let least = took.iter().min().copied().unwrap_or_default();
    let most = took.iter().max().copied().unwrap_or_default();
    let [want, least, most] = [promised, least, most].map(|it| it.as_millis());
    let tries = took.len();
    println!("| {what} | {by} | {want} ms | {least} to {most} ms of {tries} |");
}

/// How long it takes to look where there is nothing to wait for.
fn empty_look(metrics: SocketAddr) -> Duration {
    let began = now();
    gauge(metrics, "sluicegate_requests_in_flight");
    began.elapsed()
}

/// Does `fail`, which can be done only once and says from when it counts, and looks when nothing is in flight any more.
pub fn fails(
    by: &str,
    what: &str,
    promised: Duration,
    metrics: SocketAddr,
    fail: impl FnOnce() -> Instant,
) -> Result<(), Spoiled> {
    let watchers = Watchers::start();
    let began = now();
    let at = fail();
    let doing = at - began;
    let took = free_since(metrics, at);
    // A pause before the promised instant is over makes nothing late that happens at that instant.
    let late = watchers.stop().altogether((at + promised, at + took));
    let excess = took.saturating_sub(promised + ALLOWANCE);
    let said = format!(
        "{by}: {what}: {took:?} after the {doing:?} that it took, promised {promised:?}, watchers were {late:?} late"
    );
    if Duration::ZERO < excess && excess <= late && excess <= CROWDED {
        return Err(Spoiled(said));
    }
    println!("| {what} | {by} | {} ms | {} ms |", promised.as_millis(), took.as_millis());
    assert_eq!(excess, Duration::ZERO, "{said}");
    Ok(())
}

/// What counts from before it is done.
pub fn since_before(fail: impl FnOnce()) -> Instant {
    let before = now();
    fail();
    before
}

/// How long after `at` nothing is in flight.
pub fn free_since(metrics: SocketAddr, at: Instant) -> Duration {
    none_since(metrics, "sluicegate_requests_in_flight", at)
}

/// How long after `at` there is none of these any more.
pub fn none_since(metrics: SocketAddr, name: &str, at: Instant) -> Duration {
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

    use super::{ALLOWANCE, ENOUGH, Try, keep};

    const PROMISED: Duration = Duration::from_millis(5);
    const IN_TIME: Duration = Duration::from_millis(9);
    const LATE: Duration = Duration::from_millis(60);

    fn kept(tries: &[&[Try]]) -> bool {
        keep(&tries.concat(), PROMISED, IN_TIME)
    }

    fn of(count: usize, took: Duration, paused: Duration) -> Vec<Try> {
        vec![Try { took, paused }; count]
    }

    #[test]
    fn a_way_that_is_lost_every_other_time_never_keeps_what_is_promised() {
        let turn = [of(1, IN_TIME, ALLOWANCE), of(1, Duration::from_secs(1), ALLOWANCE)].concat();
        for turns in 0..50 {
            assert!(!kept(&[&turn.repeat(turns)]), "{turns}");
            assert!(!kept(&[&turn.repeat(turns), &turn[..1]]), "{turns} and one");
        }
    }

    #[test]
    fn three_of_four_that_count_are_enough_and_one_that_the_machine_made_late_does_not_count() {
        let excess = LATE.saturating_sub(PROMISED + ALLOWANCE);
        let prompt = |count| of(count, IN_TIME, Duration::ZERO);
        let (excused, lost) = (of(9, LATE, excess), |count| of(count, LATE, excess / 2));
        assert!(!kept(&[&prompt(ENOUGH - 1)]), "too few");
        assert!(!kept(&[&prompt(ENOUGH - 1), &excused]), "too few that count");
        assert!(kept(&[&prompt(ENOUGH), &excused]));
        assert!(kept(&[&prompt(5), &lost(1)]) && !kept(&[&prompt(5), &lost(2)]));
        assert!(kept(&[&prompt(6), &lost(2)]));
    }

    #[test]
    fn a_way_that_has_become_slower_is_in_time_in_no_try() {
        let slower = of(50, IN_TIME + Duration::from_millis(1), Duration::ZERO);
        assert!(!kept(&[&slower]));
        assert!(kept(&[&slower, &of(1, IN_TIME, Duration::ZERO)]));
    }
}
