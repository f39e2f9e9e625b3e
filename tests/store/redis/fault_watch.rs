//! Measures decisions during a fault and prints a row of a table.
//!
//! Guarantees:
//! - All decisions but [`MAX_SLOW`] arrive within [`ALLOWANCE`] after the store timeout.
//! - The other decisions arrive within [`SLOW_ALLOWANCE`] after the store timeout.
//! - Pauses of the machine, measured by [`Watchers`], are subtracted.

use std::time::{Duration, Instant};

use super::faults::DEADLINE;
use super::{failures, timed_check};
use crate::support::scheduling_delays::{Pauses, Watchers};
use crate::support::service::Service;
use crate::support::waiting::now;

/// The time that a decision may take beyond the store timeout: its check opens a connection, and
/// two processes wake up.
const ALLOWANCE: Duration = Duration::from_millis(50);

/// The number of decisions that may be slower: a busy process waits longer for its core than the
/// idle threads that measure pauses.
const MAX_SLOW: usize = 2;

const SLOW_ALLOWANCE: Duration = Duration::from_millis(200);

pub(super) struct FaultWatch<'s> {
    service: &'s Service,
    what: &'s str,
    promised: &'s str,
    late_before: u64,
    watchers: Watchers,
    /// The start and end of each check.
    waits: Vec<(Instant, Instant)>,
    wrong: Vec<String>,
}

impl<'s> FaultWatch<'s> {
    pub(super) fn start(service: &'s Service, what: &'s str, promised: &'s str) -> Self {
        let late_before = failures(service, "timed_out");
        let (watchers, waits, wrong) = (Watchers::start(), Vec::new(), Vec::new());
        Self { service, what, promised, late_before, watchers, waits, wrong }
    }

    /// Sends a check and records a status outside `expected` as wrong.
    pub(super) fn check(&mut self, key: &str, value: &str, expected: &[u16]) -> u16 {
        let began = now();
        let (status, took) = timed_check(self.service, key, value);
        self.waits.push((began, began + took));
        if !expected.contains(&status) {
            self.wrong.push(format!("{key} was answered {status}"));
        }
        status
    }

    /// Sends checks that the fallback `allow` decides.
    pub(super) fn check_times(&mut self, times: u32, value: &str) {
        for _ in 0..times {
            self.check("allow", value, &[200]);
        }
    }

    pub(super) fn late_calls(&self) -> u64 {
        failures(self.service, "timed_out") - self.late_before
    }

    /// Prints the row. Panics if a decision was wrong or too late.
    pub(super) fn finish(self, normal: Duration) {
        let (late, wrong) = (self.late_calls(), self.wrong.len());
        let Self { what, promised, waits, .. } = self;
        let slowest = waits.iter().map(|(began, ended)| *ended - *began).max();
        print_row(what, promised, slowest, &[late, wrong as u64], Some(normal));
        assert!(self.wrong.is_empty(), "{what}: {:?}", self.wrong);
        let overruns = overruns(&waits, &self.watchers.stop());
        let longer = overruns.iter().filter(|overruns| ALLOWANCE < **overruns).count();
        assert!(longer <= MAX_SLOW, "{what}: beyond the deadline by {overruns:?}");
        assert!(
            overruns.iter().all(|overruns| *overruns <= SLOW_ALLOWANCE),
            "{what}: {overruns:?}"
        );
    }
}

/// Returns the time of each check beyond the store timeout, minus the pauses of the machine.
fn overruns(waits: &[(Instant, Instant)], pauses: &Pauses) -> Vec<Duration> {
    let overruns = |&(began, ended): &(Instant, Instant)| {
        let overruns = (ended - began).saturating_sub(DEADLINE);
        overruns.saturating_sub(pauses.longest_total((began, ended)))
    };
    waits.iter().map(overruns).filter(|overruns| !overruns.is_zero()).collect()
}

/// Prints one row: fault, guarantee, slowest decision, counts and recovery time.
#[expect(clippy::print_stdout, reason = "what was seen is what a test of a fault is for")]
pub(super) fn print_row(
    what: &str,
    promised: &str,
    slowest: Option<Duration>,
    counts: &[u64],
    normal: Option<Duration>,
) {
    let time = |time: Option<Duration>| time.map_or(String::new(), |time| format!("{time:.0?}"));
    let counts: Vec<_> = counts.iter().map(u64::to_string).collect();
    let (slowest, normal) = (time(slowest), time(normal));
    println!("| {what} | {promised} | {slowest} | {} | {normal} |", counts.join(" | "));
}
