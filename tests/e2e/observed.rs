//! How soon a place came back after what ended its request, against what is promised of that ending.
//!
//! A busy machine only adds: where an ending can be repeated, it is until one of [`TRIES`] keeps the promise and what it
//! takes to look, and none may take so long that something else than the promised way must have freed it. A way that has
//! become slower keeps it in no try. What can be done to a proxy only once has to keep it at once, with [`ALLOWANCE`],
//! unless [`Watchers`] saw the machine run nobody for as long as the place was late, and just then: that try is made again,
//! with another proxy.
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
/// For tries of which there is one: processes that wait for one of two cores.
pub const ALLOWANCE: Duration = Duration::from_millis(50);
/// A machine on which even an empty look takes longer is too busy to be waited for: it is tried again until it is less so.
const SLOW_LOOK: Duration = Duration::from_millis(10);
const FEWEST: usize = 3;
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

/// Ends a request so for a few times, and says what was seen.
pub fn ends<S>(by: &str, metrics: SocketAddr, scene: &S, ending: &Ending<S>) {
    let (promised, mut tries, mut look) = (ending.promised(), Vec::new(), Duration::MAX);
    // The look that finds it free may follow one that just did not, and is paid for twice then.
    let most = |look: Duration| promised + PAUSE + 2 * look.min(SLOW_LOOK) + ROUNDED;
    let keeps = |tries: &[Duration], look| tries.iter().any(|took| *took <= most(look));
    while tries.len() < FEWEST || tries.len() < TRIES && !keeps(&tries, look) {
        tries.push((ending.end)(scene));
        look = look.min(empty_look(metrics));
    }
    tell(by, ending.what, promised, &tries);
    let Ending { what, .. } = ending;
    assert!(keeps(&tries, look), "{by}: {what}: {tries:?}, promised {promised:?}, a look {look:?}");
    let slowest = tries.iter().max().copied().unwrap_or_default();
    assert!(slowest <= promised + CROWDED, "{by}: {what}: {tries:?}, promised {promised:?}");
}

/// What was promised, and what it took.
fn tell(by: &str, what: &str, promised: Duration, tries: &[Duration]) {
    let least = tries.iter().min().copied().unwrap_or_default();
    let most = tries.iter().max().copied().unwrap_or_default();
    let [want, least, most] = [promised, least, most].map(|it| it.as_millis());
    let tries = tries.len();
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
