//! The counted hits of a limit on the admin page `/counter`, in memory and in Redis.

use serde_json::{Value, json};

use super::{check, serve, wait_until_ready};
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::for_a_day_with_a_minute_left;

/// The fields of the limits `k-0`, `k-1` and so on, each with 10 hits a month. All of them count
/// denied hits.
const COUNTING: [&str; 6] = [
    "strategy: fixed_window",
    "strategy: fixed_window, calendar: {time_zone: UTC}",
    "strategy: fixed_window, on_excess: charge, mode: cached_deny",
    "strategy: gcra, on_excess: charge",
    "strategy: sliding_window, on_excess: charge",
    "strategy: sliding_log, on_excess: charge",
];

/// A busy machine is no store failure.
const PATIENT: &[&str] = &["--store-timeout", "5s"];

fn limits() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let leased = "mode: leased, max_overshoot: 0";
    let rules = COUNTING.iter().chain([&leased]).enumerate().map(|(number, fields)| {
        // Compatible keys cannot be leased, and `per` has none.
        let period = if fields.contains("leased") { "per: 30d" } else { "unit: month" };
        format!(
            "- {{key: k-{number}, rate_limit: {{{period}, requests_per_unit: 10, {fields}}}}}\n"
        )
    });
    let text = format!("domain: d\ndescriptors:\n{}", rules.collect::<String>());
    std::fs::write(dir.path().join("d.yaml"), text).unwrap();
    dir
}

fn counter(service: &Service, key: &str) -> Value {
    let path = format!("/counter?domain=d&descriptor={key}=v");
    let reply = http1::get(service.admin, &path, &[]).unwrap();
    serde_json::from_slice(&reply.body).unwrap_or_else(|_| panic!("{}", reply.text()))
}

/// The right value of the case `grant-without-effect`: 50 of 10 are counted, so 41 must be refunded
/// before a check is allowed.
#[test]
fn counter_shows_hits_above_the_limit() {
    for_a_day_with_a_minute_left();
    let (limits, redis) = (limits(), Redis::start());
    let compat = [PATIENT, &["--compat-store-key-format", "compat"]].concat();
    for (url, flags) in [("memory", PATIENT), (&redis.url(), PATIENT), (&redis.url(), &compat)] {
        let service = serve(limits.path(), url, flags);
        wait_until_ready(&service);
        for (number, fields) in COUNTING.iter().enumerate() {
            let key = format!("k-{number}");
            let start = counter(&service, &key)["counted"].as_u64().unwrap();
            // Most counters of the second service over Redis are those of the first.
            for _ in start..50 {
                check(&service, &key, "v");
            }
            let shown = counter(&service, &key);
            let numbers = [&shown["counted"], &shown["to_refund"], &shown["remaining"]];
            // A sliding log keeps the newest 10 hits, so one refunded hit is enough.
            let is_log = fields.contains("sliding_log");
            let right = if is_log { [10, 1, 0] } else { [50, 41, 0] }.map(|hits| json!(hits));
            let context = format!("{url} {flags:?} {fields}: {shown}");
            assert_eq!(numbers, right.each_ref(), "{context}");
            assert_eq!(shown["includes_leases"], false, "{context}");
        }
    }
}

#[test]
fn counter_of_a_leased_limit_includes_borrowed_hits() {
    for_a_day_with_a_minute_left();
    let (limits, redis) = (limits(), Redis::start());
    let service = serve(limits.path(), &redis.url(), PATIENT);
    wait_until_ready(&service);
    let key = format!("k-{}", COUNTING.len());
    for _ in 0..3 {
        check(&service, &key, "v");
    }
    let shown = counter(&service, &key);
    assert_eq!(shown["includes_leases"], true, "{shown}");
    assert!((3..=10).contains(&shown["counted"].as_u64().unwrap()), "{shown}");
}
