//! What was promised of a fault and what was seen, as the tables of `docs/reliability.md` have it.

use std::time::Duration;

use super::faults::{DEADLINE, MARGIN};
use super::{failures, timed};
use crate::service::Service;

/// A fault, from where it begins.
pub(super) struct Watch<'s> {
    service: &'s Service,
    what: &'s str,
    promised: &'s str,
    late_before: u64,
    slowest: Duration,
    wrong: Vec<String>,
}

impl<'s> Watch<'s> {
    /// Begins now.
    pub(super) fn over(service: &'s Service, what: &'s str, promised: &'s str) -> Self {
        let late_before = failures(service, "late");
        Self { service, what, promised, late_before, slowest: Duration::ZERO, wrong: Vec::new() }
    }

    /// Asks, and takes any answer but the `right` ones for a wrong one.
    pub(super) fn asks(&mut self, key: &str, value: &str, right: &[u16]) -> u16 {
        let (status, took) = timed(self.service, key, value);
        self.slowest = self.slowest.max(took);
        if !right.contains(&status) {
            self.wrong.push(format!("{key} was answered {status}"));
        }
        status
    }

    /// Asks so many times for a key that passes where nothing counts.
    pub(super) fn asks_times(&mut self, times: u32, value: &str) {
        for _ in 0..times {
            self.asks("allow", value, &[200]);
        }
    }

    /// How many answers of the store were too late since it began.
    pub(super) fn late(&self) -> u64 {
        failures(self.service, "late") - self.late_before
    }

    /// Prints what it came to, where all was as before after `normal`; no answer may be wrong or beyond the deadline.
    pub(super) fn ends(self, normal: Duration) {
        let (late, wrong) = (self.late(), self.wrong.len());
        let Self { what, promised, slowest, .. } = self;
        tell(what, promised, Some(slowest), &[late, wrong as u64], Some(normal));
        assert!(self.wrong.is_empty(), "{what}: {:?}", self.wrong);
        assert!(slowest < DEADLINE + MARGIN, "{what}: {slowest:?}");
    }
}

/// Prints `| what happened | promised | slowest answer | late answers | wrong answers | normal after |`, or with other counts
/// between.
#[expect(clippy::print_stdout, reason = "what was seen is what a test of a fault is for")]
pub(super) fn tell(
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
