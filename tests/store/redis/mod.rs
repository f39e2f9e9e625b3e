//! The real binary over a real Redis: exact limits across processes, and guarantees during store
//! outages.

mod addresses;
pub mod bans;
mod batch;
mod behind_proxy;
mod caller_timeout;
mod cluster;
mod counted;
mod deny_cache;
mod drain;
pub mod exact_limit;
mod fallback;
mod fallback_debt;
mod fault_watch;
pub mod faults;
mod fenced;
pub mod forced_decisions;
mod forwarding;
mod inspect;
mod lease_calls;
mod leased_limits;
mod limit_lists;
mod live_counts;
mod load;
mod log_lines;
mod membership;
pub mod network;
mod on_excess;
pub mod overshoot;
mod reference;
mod refunds;
mod sentinel;
mod several_slots;
mod several_stores;
pub mod shared_concurrency;
pub mod strict_concurrency;
mod tables;
mod tls;
mod wrong_clocks;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::{now, until};

/// More requests per day than any test sends.
const LARGE_LIMIT: u64 = 1_000_000;

/// The store timeout of a test that silences no store. A killed store fails at once, so a long
/// timeout delays no check. `POST /json` itself ends after 10 s.
const LONG_DEADLINE: [&str; 2] = ["--store-timeout", "9s"];

/// A key without a limit. Its checks need no store.
const UNLIMITED: &str = "unlimited";

/// The keys of the test limits, one for each value of `on_store_failure`.
const RULES: [&str; 4] = ["error", "allow", "deny", "local"];

pub fn limits(requests: u32) -> TempDir {
    limits_of(requests, &["d"])
}

fn limits_of(requests: u32, domains: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for domain in domains {
        let file = dir.path().join(format!("{domain}.yaml"));
        std::fs::write(file, limits_yaml(requests, domain)).unwrap();
    }
    dir
}

fn limits_yaml(requests: u32, domain: &str) -> String {
    // With `all_or_nothing`, all counters of a domain are on one node of a Cluster.
    let mut text = format!("domain: {domain}\ncharge: all_or_nothing\ndescriptors:\n");
    for rule in RULES {
        let _ = writeln!(
            text,
            "- key: {rule}\n  rate_limit: {{unit: day, requests_per_unit: {requests}, \
             on_store_failure: {rule}}}"
        );
    }
    let _ = writeln!(
        text,
        "- key: many\n  rate_limit: {{unit: day, requests_per_unit: {LARGE_LIMIT}}}"
    );
    text
}

/// Moves the limit files into a subfolder. The service watches the folder of its limits and the
/// parent of this folder, so the growing trace log must not be there.
fn move_to_subfolder(limits: &TempDir) -> PathBuf {
    let apart = limits.path().join("apart");
    std::fs::create_dir(&apart).unwrap();
    std::fs::rename(limits.path().join("d.yaml"), apart.join("d.yaml")).unwrap();
    apart
}

/// Starts a service over the store at `url`, with [`LONG_DEADLINE`] unless `flags` has another.
pub fn serve(limits: &Path, url: &str, flags: &[&str]) -> Service {
    let has_deadline = flags.contains(&LONG_DEADLINE[0]);
    let deadline: &[&str] = if has_deadline { &[] } else { &LONG_DEADLINE };
    let all = [&["--store-url", url][..], deadline, flags].concat();
    let all: Vec<_> = all.into_iter().map(str::to_owned).collect();
    Service::start(limits, &all).unwrap()
}

/// Returns 200 for allowed, 429 for denied and 400 for an error.
pub fn check(service: &Service, key: &str, value: &str) -> u16 {
    check_all(service, &[(key, value)]).status
}

pub fn check_all(service: &Service, entries: &[(&str, &str)]) -> http1::Reply {
    check_domain(service, "d", entries)
}

fn check_domain(service: &Service, domain: &str, entries: &[(&str, &str)]) -> http1::Reply {
    let descriptors: Vec<_> = entries
        .iter()
        .map(|(key, value)| format!(r#"{{"entries":[{{"key":"{key}","value":"{value}"}}]}}"#))
        .collect();
    let descriptors = descriptors.join(",");
    let body = format!(r#"{{"domain":"{domain}","descriptors":[{descriptors}]}}"#);
    http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap()
}

fn timed_check(service: &Service, key: &str, value: &str) -> (u16, Duration) {
    let began = now();
    (check(service, key, value), began.elapsed())
}

pub fn ready(service: &Service) -> http1::Reply {
    http1::get(service.http, "/readyz", &[]).unwrap()
}

pub fn wait_until_ready(service: &Service) {
    let is_ready = || match http1::get(service.http, "/readyz", &[]).map(|reply| reply.text()) {
        Ok(text) if text == "ready\n" => Ok(()),
        reply => Err(format!("{reply:?}\n{}", service.log())),
    };
    until("the store answers", is_ready).unwrap();
}

pub fn metric(service: &Service, series: &str) -> u64 {
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {series} in\n{page}")).parse().unwrap()
}

pub fn failures(service: &Service, cause: &str) -> u64 {
    metric(service, &format!("sluicegate_store_failures_total{{cause=\"{cause}\"}}"))
}

pub fn failures_of_any_kind(service: &Service) -> u64 {
    sluicegate::store::StoreFailure::ALL.iter().map(|cause| failures(service, cause.as_str())).sum()
}
