//! Continuous checks during a fault, and a summary of their results.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{LARGE_LIMIT, check_domain};
use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::{Ends, now};

#[derive(Debug, Default)]
pub(super) struct LoadResult {
    pub(super) statuses: BTreeMap<u16, usize>,
    pub(super) slowest: Duration,
}

impl LoadResult {
    pub(super) fn count_of(&self, status: u16) -> usize {
        self.statuses.get(&status).copied().unwrap_or_default()
    }

    fn record(&mut self, status: u16, took: Duration) {
        *self.statuses.entry(status).or_default() += 1;
        self.slowest = self.slowest.max(took);
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
                asked.record(status, began.elapsed());
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
