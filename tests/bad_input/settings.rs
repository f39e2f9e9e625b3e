//! Tests of the settings for refunds, limit overrides, full stores and the near-limit ratio.

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;

use super::{Fixture, LIMITS, check_request, hits, k, limited, pair, refund};
use crate::support::redis::Redis;
use crate::support::waiting::until;

const DAY: i32 = 4;
const HOUR: i32 = 3;

const STRATEGIES: &str = "domain: d\ndescriptors:
- {key: fixed_window, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: gcra, rate_limit: {unit: day, requests_per_unit: 10, strategy: gcra}}
- {key: sliding_window, rate_limit: {unit: day, requests_per_unit: 10, strategy: sliding_window}}
- {key: sliding_log, rate_limit: {unit: day, requests_per_unit: 10, strategy: sliding_log}}
";

/// Returns the verdict and the remaining hits of the only descriptor.
fn outcome(response: &RateLimitResponse) -> (Code, u32) {
    (response.statuses[0].code(), response.statuses[0].limit_remaining)
}

#[test]
fn refunded_hits_are_usable_up_to_the_limit() {
    let fixture = Fixture::with(STRATEGIES, &["--limits-refunds", "true"]);
    for key in ["fixed_window", "gcra", "sliding_window", "sliding_log"] {
        let one = || pair(key, "v");
        let steps = [
            ("an untouched counter has nothing to give back", refund(one(), 3), (Code::Ok, 10)),
            ("all are taken", hits(one(), 10), (Code::Ok, 0)),
            ("one more is denied", hits(one(), 1), (Code::OverLimit, 0)),
            ("four come back", refund(one(), 4), (Code::Ok, refunded(key, 4))),
            ("and are there", hits(one(), 0), (Code::Ok, refunded(key, 4))),
            ("they are taken again", hits(one(), u64::from(refunded(key, 4))), (Code::Ok, 0)),
            ("more comes back than was taken", refund(one(), 1_000), (Code::Ok, 10)),
            ("the most comes back", refund(one(), (1 << 63) - 1), (Code::Ok, 10)),
            ("zero comes back", refund(one(), 0), (Code::Ok, 10)),
            ("the limit is still ten", hits(one(), 11), (Code::OverLimit, denied(key))),
        ];
        for (label, sent, expected) in steps {
            assert_eq!(outcome(&fixture.check(vec![sent])), expected, "{key}: {label}");
        }
    }
}

/// Expected remaining hits after the refund; only a fixed window also counted the denied hits.
fn refunded(key: &str, hits: u32) -> u32 {
    if key == "fixed_window" { hits - 1 } else { hits }
}

/// Expected remaining hits after eleven hits were denied on an unused counter of ten.
fn denied(key: &str) -> u32 {
    if key == "fixed_window" { 0 } else { 10 }
}

#[test]
fn json_checks_refund_hits() {
    let fixture = Fixture::with(LIMITS, &["--limits-refunds", "true"]);
    fixture.check(vec![hits(k("j"), 60)]);
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"j"}],
        "hitsAddend":"50","isNegativeHits":true}]}"#;
    assert_eq!(fixture.json(body.as_bytes()).status, 200);
    assert_eq!(fixture.remaining("j"), 90);
}

fn applied_limit(fixture: &Fixture, key: &str, requests: u32, unit: i32) -> Option<(u32, i32)> {
    let response = fixture.check(vec![limited(pair(key, "v"), requests, unit)]);
    let limit = response.statuses[0].current_limit.as_ref()?;
    Some((limit.requests_per_unit, limit.unit))
}

#[test]
fn overrides_setting_selects_the_applied_limit() {
    let configured = Some((100, DAY));
    let carried = [("k", 5, DAY), ("k", 500, DAY), ("k", 5, HOUR), ("unknown", 5, DAY)];
    let expected = [
        ("replace", [Some((5, DAY)), Some((500, DAY)), Some((5, HOUR)), Some((5, DAY))]),
        ("ignore", [configured, configured, configured, None]),
        ("lower", [Some((5, DAY)), configured, configured, Some((5, DAY))]),
    ];
    for (setting, limits) in expected {
        let fixture = Fixture::with(LIMITS, &["--limits-overrides", setting]);
        for ((key, requests, unit), expected) in carried.into_iter().zip(limits) {
            let got = applied_limit(&fixture, key, requests, unit);
            assert_eq!(
                got, expected,
                "--limits-overrides {setting}: {requests} per unit {unit} on {key}"
            );
        }
    }
}

#[test]
fn smaller_override_uses_the_counter_of_the_rule() {
    let fixture = Fixture::with(LIMITS, &["--limits-overrides", "lower"]);
    fixture.check(vec![hits(k("t"), 4)]);
    let tight = || limited(k("t"), 5, DAY);
    assert_eq!(outcome(&fixture.check(vec![tight()])), (Code::Ok, 0));
    assert_eq!(outcome(&fixture.check(vec![tight()])), (Code::OverLimit, 0));
    // A fixed window also counts the hits that the override denied.
    assert_eq!(fixture.remaining("t"), 94);
}

/// A limit of ten hits per day that all paths below `/x/` share.
const SHARED: &str = "domain: d\ndescriptors:
- {key: path, value: '/x/*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 10}}
";

#[test]
fn smaller_override_uses_the_shared_counter_of_the_pattern() {
    let fixture =
        Fixture::with(SHARED, &["--limits-overrides", "lower", "--limits-refunds", "true"]);
    let path = |number: u32| pair("path", &format!("/x/{number}"));
    let tight = |number| limited(path(number), 9, DAY);
    for number in 1..=9 {
        assert_eq!(outcome(&fixture.check(vec![tight(number)])), (Code::Ok, 9 - number));
    }
    assert_eq!(outcome(&fixture.check(vec![tight(10)])), (Code::OverLimit, 0));
    // A fixed window also counts denied hits, so no hit of the limit of ten remains.
    assert_eq!(outcome(&fixture.check(vec![hits(path(11), 0)])), (Code::Ok, 0));
    assert_eq!(fixture.check(vec![refund(tight(12), 2)]).overall_code(), Code::Ok);
    assert_eq!(outcome(&fixture.check(vec![hits(path(13), 0)])), (Code::Ok, 2));
}

/// As in envoyproxy/ratelimit, an override that replaces the rule does not use its shared counter.
#[test]
fn override_that_replaces_the_rule_counts_per_value() {
    let fixture = Fixture::with(SHARED, &["--limits-overrides", "replace"]);
    for value in ["/x/1", "/x/2"] {
        let one = || limited(pair("path", value), 1, DAY);
        assert_eq!(outcome(&fixture.check(vec![one()])), (Code::Ok, 0), "{value}");
        assert_eq!(outcome(&fixture.check(vec![one()])), (Code::OverLimit, 0), "{value}");
    }
}

/// Starts a service with a deny cache and envoyproxy/ratelimit's counter keys in `redis`.
fn start_with_deny_cache(redis: &Redis, limits: &str, overrides: &str) -> Fixture {
    let backend = format!("redis+unix://{}", redis.socket().display());
    let store = ["--store-url", &backend, "--store-timeout", "20s"];
    let keys = ["--compat-store-key-format", "compat", "--compat-store-deny-cache", "1048576"];
    let fixture =
        Fixture::with(limits, &[&store[..], &keys, &["--limits-overrides", overrides]].concat());
    let peek = check_request(vec![hits(k("untouched"), 0)]);
    until("the store answers", || fixture.try_check(&peek).map_err(|status| status.to_string()))
        .unwrap();
    fixture
}

#[test]
fn cached_denial_of_an_override_denies_no_other_check() {
    let redis = Redis::start();
    let limits = format!("{SHARED}- {{key: k, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n");
    let fixture = start_with_deny_cache(&redis, &limits, "lower");
    let path = |number: u32| pair("path", &format!("/x/{number}"));
    let tight = |number| limited(path(number), 3, DAY);
    let steps = [
        ("half of ten", hits(path(1), 5), (Code::Ok, 5)),
        ("the sixth, of three", tight(2), (Code::OverLimit, 0)),
        ("the seventh, of ten", path(3), (Code::Ok, 3)),
        ("known to be over three, and not counted", tight(4), (Code::OverLimit, 0)),
        ("the eighth", path(5), (Code::Ok, 2)),
        ("the eleventh", hits(path(6), 3), (Code::OverLimit, 0)),
        ("known to be over ten", path(7), (Code::OverLimit, 0)),
        ("and over three", tight(8), (Code::OverLimit, 0)),
    ];
    for (label, sent, expected) in steps {
        assert_eq!(outcome(&fixture.check(vec![sent])), expected, "{label}");
    }
}

/// As in envoyproxy/ratelimit, a cached denial has a key but no limit, so it applies to any limit.
#[test]
fn cached_denial_of_a_replacing_override_denies_all_checks_of_its_key() {
    let redis = Redis::start();
    let fixture = start_with_deny_cache(&redis, LIMITS, "replace");
    assert_eq!(outcome(&fixture.check(vec![hits(k("v"), 5)])), (Code::Ok, 95));
    assert_eq!(outcome(&fixture.check(vec![limited(k("v"), 3, DAY)])), (Code::OverLimit, 0));
    assert_eq!(fixture.check(vec![k("v")]).overall_code(), Code::OverLimit);
}

#[test]
fn full_store_applies_when_full_to_new_keys() {
    for (setting, code, verdict) in
        [("deny", Code::OverLimit, "deny"), ("allow", Code::Ok, "allow")]
    {
        let fixture =
            Fixture::with(LIMITS, &["--store-max-keys", "1", "--store-when-full", setting]);
        assert_eq!(outcome(&fixture.check(vec![k("first")])), (Code::Ok, 99), "{setting}");
        for _ in 0..3 {
            assert_eq!(fixture.check(vec![k("second")]).overall_code(), code, "{setting}");
        }
        assert_eq!(outcome(&fixture.check(vec![k("first")])), (Code::Ok, 98), "{setting}");
        let full = format!("sluicegate_memory_full_total{{verdict=\"{verdict}\"}}");
        assert_eq!(fixture.metric(&full), 3, "{setting}");
        let reason = "sluicegate_descriptors_decided_total{reason=\"store_full\"}";
        assert_eq!(fixture.metric(reason), 3, "{setting}");
        assert_eq!(fixture.metric("sluicegate_memory_keys"), 1, "{setting}");
        assert_eq!(fixture.metric("sluicegate_memory_keys_max"), 1, "{setting}");
    }
}

#[test]
fn near_limit_threshold_is_a_fraction_of_the_burst() {
    let limits = "domain: d\ndescriptors:\n\
                  - key: burst\n  rate_limit: {requests_per_unit: 60, unit: hour, strategy: gcra, burst: 10}\n\
                  - key: window\n  rate_limit: {requests_per_unit: 10, unit: year, strategy: fixed_window}\n";
    let near = "sluicegate_descriptors_near_limit_total";
    // Hits 9 and 10 are above the near-limit threshold, 0.8 of ten.
    for key in ["burst", "window"] {
        let fixture = Fixture::with(limits, &["--telemetry-near-limit", "0.8"]);
        for counted in [0, 0, 0, 0, 0, 0, 0, 0, 1, 2] {
            assert_eq!(fixture.check(vec![pair(key, "v")]).overall_code(), Code::Ok, "{key}");
            assert_eq!(fixture.metric(near), counted, "{key}");
        }
    }
}
