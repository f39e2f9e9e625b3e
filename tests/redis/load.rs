//! Questions without pause while something happens, and how they were answered.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::{MANY, ask_of};
use crate::http1;
use crate::service::Service;
use crate::waiting::{Ends, now};

/// How the questions of one asker were answered.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// How many with each status.
    pub(super) statuses: BTreeMap<u16, usize>,
    /// The longest that one waited.
    pub(super) slowest: Duration,
}

impl Asked {
    /// How many were answered so.
    pub(super) fn with(&self, status: u16) -> usize {
        self.statuses.get(&status).copied().unwrap_or_default()
    }

    fn count(&mut self, status: u16, took: Duration) {
        *self.statuses.entry(status).or_default() += 1;
        self.slowest = self.slowest.max(took);
    }
}

/// Hits of that key that the store has counted.
pub(super) fn counted(service: &Service, domain: &str) -> u64 {
    let path = format!("/counter?domain={domain}&descriptor=many=load");
    let said = http1::get(service.admin, &path, &[]).unwrap();
    let said: serde_json::Value = serde_json::from_slice(&said.body).unwrap();
    MANY - said["remaining"].as_u64().unwrap_or_else(|| panic!("{said}"))
}

/// Asks for key `many` of each domain, one asker each, for as long as `meanwhile` takes.
pub(super) fn under_load<T>(
    service: &Service,
    domains: &[&str],
    meanwhile: impl FnOnce() -> T,
) -> (Vec<Asked>, T) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ask = |domain: &str| {
            let mut asked = Asked::default();
            while !done.load(Relaxed) {
                let began = now();
                let status = ask_of(service, domain, &[("many", "load")]).status;
                asked.count(status, began.elapsed());
            }
            asked
        };
        let askers: Vec<_> =
            domains.iter().map(|&domain| scope.spawn(move || ask(domain))).collect();
        let ends = Ends(&done);
        let happened = meanwhile();
        drop(ends);
        (askers.into_iter().map(|asker| asker.join().unwrap()).collect(), happened)
    })
}
