//! Settings that decide what a strange question means: refunds, limits carried in requests, a full store.

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;

use super::{LIMITS, Stage, about, hits, k, limited, of, refund};
use crate::support::redis::Redis;
use crate::waiting::until;

const DAY: i32 = 4;
const HOUR: i32 = 3;

/// Ten hits a day, counted in each of the four ways.
const STRATEGIES: &str = "domain: d\ndescriptors:
- {key: fixed_window, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: gcra, rate_limit: {unit: day, requests_per_unit: 10, strategy: gcra}}
- {key: sliding_window, rate_limit: {unit: day, requests_per_unit: 10, strategy: sliding_window}}
- {key: sliding_log, rate_limit: {unit: day, requests_per_unit: 10, strategy: sliding_log}}
";

/// The verdict and what is left.
fn found(response: &RateLimitResponse) -> (Code, u32) {
    (response.statuses[0].code(), response.statuses[0].limit_remaining)
}

#[test]
fn hits_given_back_can_be_taken_again_and_never_more_than_the_limit() {
    let stage = Stage::with(STRATEGIES, &["--negative-hits", "true"]);
    for key in ["fixed_window", "gcra", "sliding_window", "sliding_log"] {
        let one = || of(key, "v");
        let steps = [
            ("an untouched counter has nothing to give back", refund(one(), 3), (Code::Ok, 10)),
            ("all are taken", hits(one(), 10), (Code::Ok, 0)),
            ("one more is denied", hits(one(), 1), (Code::OverLimit, 0)),
            ("four come back", refund(one(), 4), (Code::Ok, back(key, 4))),
            ("and are there", hits(one(), 0), (Code::Ok, back(key, 4))),
            ("they are taken again", hits(one(), u64::from(back(key, 4))), (Code::Ok, 0)),
            ("more comes back than was taken", refund(one(), 1_000), (Code::Ok, 10)),
            ("the most comes back", refund(one(), (1 << 63) - 1), (Code::Ok, 10)),
            ("zero comes back", refund(one(), 0), (Code::Ok, 10)),
            ("the limit is still ten", hits(one(), 11), (Code::OverLimit, denied(key))),
        ];
        for (what, asked, expected) in steps {
            assert_eq!(found(&stage.answer(vec![asked])), expected, "{key}: {what}");
        }
    }
}

/// A denied fixed window has counted its hit, as the reference does; the others have not.
fn back(key: &str, hits: u32) -> u32 {
    if key == "fixed_window" { hits - 1 } else { hits }
}

/// What is left after eleven hits at rest were denied.
fn denied(key: &str) -> u32 {
    if key == "fixed_window" { 0 } else { 10 }
}

#[test]
fn hits_are_given_back_through_json_as_well() {
    let stage = Stage::with(LIMITS, &["--negative-hits", "true"]);
    stage.answer(vec![hits(k("j"), 60)]);
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"j"}],
        "hitsAddend":"50","isNegativeHits":true}]}"#;
    assert_eq!(stage.json(body.as_bytes()).status, 200);
    assert_eq!(stage.remaining("j"), 90);
}

/// The limit in force for a descriptor that carries one, if any is.
fn in_force(stage: &Stage, key: &str, requests: u32, unit: i32) -> Option<(u32, i32)> {
    let response = stage.answer(vec![limited(of(key, "v"), requests, unit)]);
    let limit = response.statuses[0].current_limit.as_ref()?;
    Some((limit.requests_per_unit, limit.unit))
}

#[test]
fn a_limit_in_a_request_does_what_the_setting_says() {
    let configured = Some((100, DAY));
    let carried = [("k", 5, DAY), ("k", 500, DAY), ("k", 5, HOUR), ("unknown", 5, DAY)];
    let expected = [
        ("allow", [Some((5, DAY)), Some((500, DAY)), Some((5, HOUR)), Some((5, DAY))]),
        ("deny", [configured, configured, configured, None]),
        ("max", [Some((5, DAY)), configured, configured, Some((5, DAY))]),
    ];
    for (setting, limits) in expected {
        let stage = Stage::with(LIMITS, &["--overrides", setting]);
        for ((key, requests, unit), expected) in carried.into_iter().zip(limits) {
            let got = in_force(&stage, key, requests, unit);
            assert_eq!(got, expected, "--overrides {setting}: {requests} per unit {unit} on {key}");
        }
    }
}

#[test]
fn a_tightening_limit_in_a_request_is_enforced_on_the_same_counter() {
    let stage = Stage::with(LIMITS, &["--overrides", "max"]);
    stage.answer(vec![hits(k("t"), 4)]);
    let tight = || limited(k("t"), 5, DAY);
    assert_eq!(found(&stage.answer(vec![tight()])), (Code::Ok, 0));
    assert_eq!(found(&stage.answer(vec![tight()])), (Code::OverLimit, 0));
    // A denied fixed window counts its hits.
    assert_eq!(stage.remaining("t"), 94);
}

/// Ten hits a day for all paths below `/x/` together.
const SHARED: &str = "domain: d\ndescriptors:
- {key: path, value: '/x/*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 10}}
";

#[test]
fn a_tightening_limit_in_a_request_is_counted_where_all_values_of_a_pattern_are() {
    let stage = Stage::with(SHARED, &["--overrides", "max", "--negative-hits", "true"]);
    let path = |number: u32| of("path", &format!("/x/{number}"));
    let tight = |number| limited(path(number), 9, DAY);
    for number in 1..=9 {
        assert_eq!(found(&stage.answer(vec![tight(number)])), (Code::Ok, 9 - number));
    }
    assert_eq!(found(&stage.answer(vec![tight(10)])), (Code::OverLimit, 0));
    // A denied fixed window counts its hit: those were all ten.
    assert_eq!(found(&stage.answer(vec![hits(path(11), 0)])), (Code::Ok, 0));
    assert_eq!(stage.answer(vec![refund(tight(12), 2)]).overall_code(), Code::Ok);
    assert_eq!(found(&stage.answer(vec![hits(path(13), 0)])), (Code::Ok, 2));
}

/// As the reference: no rule is matched, so that nothing is shared.
#[test]
fn a_limit_in_a_request_that_takes_a_rules_place_is_counted_for_each_value() {
    let stage = Stage::with(SHARED, &["--overrides", "allow"]);
    for value in ["/x/1", "/x/2"] {
        let one = || limited(of("path", value), 1, DAY);
        assert_eq!(found(&stage.answer(vec![one()])), (Code::Ok, 0), "{value}");
        assert_eq!(found(&stage.answer(vec![one()])), (Code::OverLimit, 0), "{value}");
    }
}

/// Counts under the reference's keys in `redis`, and remembers which are over.
fn remembering(redis: &Redis, limits: &str, overrides: &str) -> Stage {
    let backend = format!("redis+unix://{}", redis.socket().display());
    let store = ["--backend", &backend, "--backend-deadline", "20s"];
    let keys = ["--counter-keys", "envoyproxy", "--local-deny-cache", "1048576"];
    let stage = Stage::with(limits, &[&store[..], &keys, &["--overrides", overrides]].concat());
    let peek = about(vec![hits(k("untouched"), 0)]);
    until("the store answers", || stage.ask(&peek).map_err(|status| status.to_string())).unwrap();
    stage
}

#[test]
fn a_request_that_is_over_its_own_limit_denies_no_other_below_the_configured_one() {
    let redis = Redis::start();
    let limits = format!("{SHARED}- {{key: k, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n");
    let stage = remembering(&redis, &limits, "max");
    let path = |number: u32| of("path", &format!("/x/{number}"));
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
    for (what, asked, expected) in steps {
        assert_eq!(found(&stage.answer(vec![asked])), expected, "{what}");
    }
}

/// As the reference: what it remembers is a key, whatever limit that is asked for under.
#[test]
fn a_limit_in_a_request_that_takes_a_rules_place_is_over_for_all_who_ask_for_its_key() {
    let redis = Redis::start();
    let stage = remembering(&redis, LIMITS, "allow");
    assert_eq!(found(&stage.answer(vec![hits(k("v"), 5)])), (Code::Ok, 95));
    assert_eq!(found(&stage.answer(vec![limited(k("v"), 3, DAY)])), (Code::OverLimit, 0));
    assert_eq!(stage.answer(vec![k("v")]).overall_code(), Code::OverLimit);
}

#[test]
fn a_new_key_in_a_full_store_gets_what_the_setting_says_and_is_counted() {
    for (setting, code, verdict) in
        [("deny", Code::OverLimit, "deny"), ("allow", Code::Ok, "admit")]
    {
        let stage = Stage::with(LIMITS, &["--max-keys", "1", "--when-full", setting]);
        assert_eq!(found(&stage.answer(vec![k("first")])), (Code::Ok, 99), "{setting}");
        for _ in 0..3 {
            assert_eq!(stage.answer(vec![k("second")]).overall_code(), code, "{setting}");
        }
        assert_eq!(found(&stage.answer(vec![k("first")])), (Code::Ok, 98), "{setting}");
        let full = format!("sluicegate_memory_full_total{{verdict=\"{verdict}\"}}");
        assert_eq!(stage.metric(&full), 3, "{setting}");
        let reason = "sluicegate_descriptors_decided_total{reason=\"store_full\"}";
        assert_eq!(stage.metric(reason), 3, "{setting}");
        assert_eq!(stage.metric("sluicegate_memory_keys"), 1, "{setting}");
        assert_eq!(stage.metric("sluicegate_memory_keys_max"), 1, "{setting}");
    }
}

#[test]
fn a_limit_is_nearly_used_up_by_what_it_admits_at_once_whatever_it_admits_in_its_unit() {
    let limits = "domain: d\ndescriptors:\n\
                  - key: burst\n  rate_limit: {requests_per_unit: 60, unit: hour, strategy: gcra, burst: 10}\n\
                  - key: window\n  rate_limit: {requests_per_unit: 10, unit: year, strategy: fixed_window}\n";
    let near = "sluicegate_descriptors_near_limit_total";
    // Beyond 0.8 of ten are the ninth and the tenth.
    for key in ["burst", "window"] {
        let stage = Stage::with(limits, &["--near-limit-ratio", "0.8"]);
        for counted in [0, 0, 0, 0, 0, 0, 0, 0, 1, 2] {
            assert_eq!(stage.answer(vec![of(key, "v")]).overall_code(), Code::Ok, "{key}");
            assert_eq!(stage.metric(near), counted, "{key}");
        }
    }
}
