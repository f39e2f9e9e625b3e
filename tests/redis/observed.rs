//! What was promised of a fault and what was seen, as the tables of `docs/reliability.md` have it.
//!
//! No answer may be beyond the deadline. A caller sees more than that: a connection of its own for each question, and a
//! crowded machine, which runs nobody for a while. [`Watchers`] see when it does: all answers but a few have to be there
//! within [`ALLOWANCE`] after the deadline, the few within [`FEW`], where what the machine paused in their time is added
//! to either. So an answer that is late by more has been late in the service.

use std::time::{Duration, Instant};

use super::faults::DEADLINE;
use super::{failures, timed};
use crate::service::Service;
use crate::support::watchers::{Pauses, Watchers};
use crate::waiting::now;

/// For a connection of one's own, and for two processes that are woken.
const ALLOWANCE: Duration = Duration::from_millis(50);
/// Those that may take longer: a process that uses its core waits for it where a watcher, which uses none, does not.
const LONGER: usize = 2;
/// And how long those may take.
const FEW: Duration = Duration::from_millis(200);

/// A fault, from where it begins.
pub(super) struct Watch<'s> {
    service: &'s Service,
    what: &'s str,
    promised: &'s str,
    late_before: u64,
    watchers: Watchers,
    /// From when to when somebody waited for an answer.
    waits: Vec<(Instant, Instant)>,
    wrong: Vec<String>,
}

impl<'s> Watch<'s> {
    /// Begins now.
    pub(super) fn over(service: &'s Service, what: &'s str, promised: &'s str) -> Self {
        let late_before = failures(service, "late");
        let (watchers, waits, wrong) = (Watchers::start(), Vec::new(), Vec::new());
        Self { service, what, promised, late_before, watchers, waits, wrong }
    }

    /// Asks, and takes any answer but the `right` ones for a wrong one.
    pub(super) fn asks(&mut self, key: &str, value: &str, right: &[u16]) -> u16 {
        let began = now();
        let (status, took) = timed(self.service, key, value);
        self.waits.push((began, began + took));
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
        let Self { what, promised, waits, .. } = self;
        let slowest = waits.iter().map(|(began, ended)| *ended - *began).max();
        tell(what, promised, slowest, &[late, wrong as u64], Some(normal));
        assert!(self.wrong.is_empty(), "{what}: {:?}", self.wrong);
        let beyond = beyond(&waits, &self.watchers.stop());
        let longer = beyond.iter().filter(|beyond| ALLOWANCE < **beyond).count();
        assert!(longer <= LONGER, "{what}: beyond the deadline by {beyond:?}");
        assert!(beyond.iter().all(|beyond| *beyond <= FEW), "{what}: {beyond:?}");
    }
}

/// By how much each was beyond the deadline, less what the machine paused meanwhile; those that were.
fn beyond(waits: &[(Instant, Instant)], pauses: &Pauses) -> Vec<Duration> {
    let beyond = |&(began, ended): &(Instant, Instant)| {
        let beyond = (ended - began).saturating_sub(DEADLINE);
        beyond.saturating_sub(pauses.altogether((began, ended)))
    };
    waits.iter().map(beyond).filter(|beyond| !beyond.is_zero()).collect()
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
