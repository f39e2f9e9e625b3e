//! Checks during a fault, and a row of a table about them.
//!
//! Guarantees:
//! - A store that fails at once makes no call time out, so no decision waits for the timeout.
//! - Decisions wait at most for the store timeout, even if the store is silent.

use std::time::Duration;

use super::faults::DEADLINE;
use super::load::CheckTimes;
use super::{failures, timed_check};
use crate::support::service::Service;

pub(super) struct FaultWatch<'s> {
    service: &'s Service,
    what: &'s str,
    promised: &'s str,
    late_before: u64,
    times: CheckTimes,
    wrong: Vec<String>,
}

impl<'s> FaultWatch<'s> {
    pub(super) fn start(service: &'s Service, what: &'s str, promised: &'s str) -> Self {
        let late_before = failures(service, "timed_out");
        let (times, wrong) = (CheckTimes::default(), Vec::new());
        Self { service, what, promised, late_before, times, wrong }
    }

    /// Sends a check and records a status outside `expected` as wrong.
    pub(super) fn check(&mut self, key: &str, value: &str, expected: &[u16]) -> u16 {
        let (status, took) = timed_check(self.service, key, value);
        self.times.record(self.service, took);
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

    /// Prints the row of a store that fails at once. Panics if a decision was wrong, or if a store
    /// call timed out.
    pub(super) fn finish(self, normal: Duration) {
        self.print_and_check_decisions(normal);
        assert_eq!(self.late_calls(), 0, "{}: {}", self.what, self.service.log());
    }

    /// Prints the row of a store with the timeout [`DEADLINE`], which may be silent. Panics if
    /// decisions were wrong or too late.
    pub(super) fn finish_silent(self, normal: Duration) {
        self.print_and_check_decisions(normal);
        self.times.assert_within(DEADLINE, self.what);
    }

    fn print_and_check_decisions(&self, normal: Duration) {
        let counts = [self.late_calls(), self.wrong.len() as u64];
        print_row(self.what, self.promised, self.times.slowest(), &counts, Some(normal));
        assert!(self.wrong.is_empty(), "{}: {:?}", self.what, self.wrong);
    }
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
