//! Continuous checks during a fault, and a summary of their results.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{LARGE_LIMIT, UNLIMITED, check_domain};
use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::{Ends, now};

/// The time that a check may take beyond its wait for the store, on an idle machine.
const ALLOWANCE: Duration = Duration::from_millis(200);

/// The number of checks that may be late although all control checks were fast. It is less than the
/// five calls that wait for a silent store.
const MAX_LATE: usize = 3;

/// The times of checks and of control checks, which need no store. A busy machine delays both, so
/// the control checks are the yardstick.
#[derive(Debug, Default)]
pub(super) struct CheckTimes {
    checks: Vec<Duration>,
    controls: Vec<Duration>,
}

impl CheckTimes {
    /// Records the time of a check, then sends a control check.
    pub(super) fn record(&mut self, service: &Service, took: Duration) {
        self.checks.push(took);
        let began = now();
        let control = check_domain(service, "d", &[(UNLIMITED, "v")]).status;
        assert_eq!(control, 200, "a check without a limit");
        self.controls.push(began.elapsed());
    }

    pub(super) fn slowest(&self) -> Option<Duration> {
        self.checks.iter().max().copied()
    }

    /// The number of control checks that the machine delayed.
    pub(super) fn late_controls(&self) -> usize {
        count_late(&self.controls, Duration::ZERO)
    }

    /// Asserts that the checks wait for the store for at most `deadline`: beyond it, not more of
    /// them are late than control checks are.
    pub(super) fn assert_within(&self, deadline: Duration, what: &str) {
        let (late, late_controls) = (count_late(&self.checks, deadline), self.late_controls());
        assert!(
            late <= 2 * late_controls + MAX_LATE,
            "{what}: {late} of {} checks and {late_controls} control checks were late; slowest: {:?}",
            self.checks.len(),
            self.slowest()
        );
    }
}

fn count_late(times: &[Duration], promised: Duration) -> usize {
    times.iter().filter(|took| promised + ALLOWANCE < **took).count()
}

#[derive(Debug, Default)]
pub(super) struct LoadResult {
    pub(super) statuses: BTreeMap<u16, usize>,
    pub(super) times: CheckTimes,
}

impl LoadResult {
    pub(super) fn count_of(&self, status: u16) -> usize {
        self.statuses.get(&status).copied().unwrap_or_default()
    }

    fn record(&mut self, service: &Service, status: u16, took: Duration) {
        *self.statuses.entry(status).or_default() += 1;
        self.times.record(service, took);
    }
}

pub(super) fn counted_hits(service: &Service, domain: &str) -> u64 {
    let path = format!("/counter?domain={domain}&descriptor=many=load");
    let said = http1::get(service.admin, &path, &[]).unwrap();
    let said: serde_json::Value = serde_json::from_slice(&said.body).unwrap();
    LARGE_LIMIT - said["remaining"].as_u64().unwrap_or_else(|| panic!("{said}"))
}

/// Runs one caller per domain, with key `many`, until `meanwhile` returns.
pub(super) fn under_load<T>(
    service: &Service,
    domains: &[&str],
    meanwhile: impl FnOnce() -> T,
) -> (Vec<LoadResult>, T) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let check = |domain: &str| {
            let mut asked = LoadResult::default();
            while !done.load(Relaxed) {
                let began = now();
                let status = check_domain(service, domain, &[("many", "load")]).status;
                asked.record(service, status, began.elapsed());
            }
            asked
        };
        let askers: Vec<_> =
            domains.iter().map(|&domain| scope.spawn(move || check(domain))).collect();
        let ends = Ends(&done);
        let happened = meanwhile();
        drop(ends);
        (askers.into_iter().map(|asker| asker.join().unwrap()).collect(), happened)
    })
}
