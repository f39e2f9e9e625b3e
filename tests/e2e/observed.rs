//! How soon a place came back after what ended its request, against what is promised of that ending.
//!
//! A busy machine only adds: where an ending can be repeated, the fastest of a few tries has to keep the promise and
//! [`ALLOWANCE`], and none may take so long that something else than the promised way must have freed it. What can be
//! done to a proxy only once has to keep it at once, unless [`Watchers`] saw the machine run nobody for as long as the
//! place was late, and just then: that try is made again, with another proxy.
#![expect(clippy::print_stdout, reason = "the table is part of the proof")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::in_flight::shows;
use super::watchers::{Spoiled, Watchers};
use crate::waiting::now;

/// For a page of metrics, looked at every 5 ms, and for processes that wait for one of two cores.
pub const ALLOWANCE: Duration = Duration::from_millis(50);
/// What a try may take longer than promised: far less than the 60 s after which a place is free whatever happens.
const CROWDED: Duration = Duration::from_secs(3);

/// One way to end a request at `S`, which says how long after it the place was free.
pub struct Ending<S> {
    pub what: &'static str,
    /// At most so long after it, in milliseconds.
    pub promised: u64,
    pub end: fn(&S) -> Duration,
}

/// Ends a request so for a few times, and says what was seen.
pub fn ends<S>(by: &str, scene: &S, ending: &Ending<S>) {
    let tries: Vec<Duration> = (0..3).map(|_| (ending.end)(scene)).collect();
    keeps(by, ending.what, Duration::from_millis(ending.promised), &tries);
}

/// What was promised, and what it took.
fn keeps(by: &str, what: &str, promised: Duration, tries: &[Duration]) {
    let fastest = tries.iter().min().copied().unwrap_or_default();
    let slowest = tries.iter().max().copied().unwrap_or_default();
    let [want, least, most] = [promised, fastest, slowest].map(|it| it.as_millis());
    println!("| {what} | {by} | {want} ms | {least} to {most} ms |");
    assert!(fastest <= promised + ALLOWANCE, "{by}: {what}: {tries:?}, promised {promised:?}");
    assert!(slowest <= promised + CROWDED, "{by}: {what}: {tries:?}, promised {promised:?}");
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
    shows(metrics, "sluicegate_requests_in_flight", 0);
    at.elapsed()
}
