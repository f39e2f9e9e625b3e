//! The real binary over a real PostgreSQL.

mod budgets;
mod commands;
mod connections;
mod counters;
mod fleet_faults;
mod outages;
mod pooler;
mod tables;

use crate::store::redis::{check, wait_until_ready};
use crate::support::service::Service;

/// The requests per day of the test limits.
const LIMIT: u32 = 10;

/// A store timeout that is longer than the delays of a healthy server on a busy machine. `/json`
/// replies after at most 10 s.
const FLAGS: [&str; 2] = ["--store-timeout", "9s"];

/// Asserts that the store decides, and that `used` hits of the limit were used before.
fn assert_limit_enforced(service: &Service, value: &str, used: u32) {
    wait_until_ready(service);
    let answers = enough_checks(service, value);
    let allowed = answers.iter().filter(|&&status| status == 200).count();
    assert_eq!(allowed, (LIMIT - used) as usize, "{answers:?}\n{}", service.log());
    assert!(are_decided(&answers), "{answers:?}");
}

/// Sends more checks than the limit allows. Returns their statuses.
fn enough_checks(service: &Service, value: &str) -> Vec<u16> {
    (0..LIMIT + 2).map(|_| check(service, "error", value)).collect()
}

/// Returns `true` if no answer is a fallback.
fn are_decided(answers: &[u16]) -> bool {
    answers.iter().all(|status| [200, 429].contains(status))
}
