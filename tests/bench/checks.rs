//! Tests of the checks that a bench sends, of its answers and of the CPU time of a process.

use sluicegate::bench::cpu::{cpu_time, parse_stat};
use sluicegate::bench::{AnswerCode, CheckSeries, KeyChooser};
use sluicegate::kernel::units::Nanos;

/// Points in the middle of equal parts: each key gets its frequency, without randomness.
const POINTS: u32 = 1_000_000;

/// The largest difference between the frequencies of keys and those of the formula.
fn zipf_error(keys: u32, skew: f64) -> f64 {
    let chooser = KeyChooser::new(keys, skew);
    let mut counts = vec![0_u32; keys as usize];
    for point in 0..POINTS {
        counts[chooser.choose((f64::from(point) + 0.5) / f64::from(POINTS)) as usize] += 1;
    }
    let weight = |rank: u32| f64::from(rank).powf(-skew);
    let sum: f64 = (1..=keys).map(weight).sum();
    let errors = (1..=keys)
        .zip(&counts)
        .map(|(rank, count)| (f64::from(*count) / f64::from(POINTS) - weight(rank) / sum).abs());
    errors.fold(0.0, f64::max)
}

#[test]
fn keys_have_the_frequencies_of_zipf() {
    for (keys, skew) in [(1, 0.0), (10, 0.0), (1_000, 0.7), (1_000, 1.0), (100, 2.5)] {
        let error = zipf_error(keys, skew);
        assert!(error <= 2.0 / f64::from(POINTS), "{keys} keys, skew {skew}: {error}");
    }
}

#[test]
fn every_point_chooses_an_existing_key() {
    for (keys, skew) in [(1, 0.0), (3, 0.0), (3, 1.0), (1_000_000, 10.0)] {
        for point in [0.0, 0.5, 1.0 - f64::EPSILON / 2.0, 1.0] {
            assert!(KeyChooser::new(keys, skew).choose(point) < keys);
        }
    }
}

fn series(seed: u64) -> CheckSeries {
    let entry = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    CheckSeries {
        domain: "shop".to_owned(),
        descriptors: vec![vec![entry("api_key", "client-{key}"), entry("path", "/")]],
        copies: 3,
        hits: 2,
        keys: KeyChooser::new(1_000, 0.0),
        seed,
    }
}

#[test]
fn one_seed_sends_the_same_checks_again() {
    let checks = |seed| (0..100).map(|index| series(seed).check(index)).collect::<Vec<_>>();
    assert_eq!(checks(1), checks(1));
    assert_ne!(checks(1), checks(2));
}

#[test]
fn each_copy_of_a_descriptor_has_a_key() {
    let check = series(1).check(0);
    assert_eq!((check.hits, check.descriptors.len()), (2, 3));
    let value = &check.descriptors[0][0].1;
    assert_eq!(*value, format!("client-{}", check.key));
    assert!(check.descriptors.iter().any(|other| other[0].1 != *value), "{check:?}");
    assert!(check.descriptors.iter().all(|entries| entries[1].1 == "/"));
}

#[test]
fn only_a_decision_in_json_is_a_decision() {
    for (status, body, expected) in [
        (200, r#"{"overallCode":"OK","statuses":[{"code":"OK"}]}"#, AnswerCode::Allow),
        (429, r#"{"overallCode":"OVER_LIMIT"}"#, AnswerCode::Deny),
        (200, r#"{"overallCode":"OVER_LIMIT"}"#, AnswerCode::NoDecision),
        (200, "<html>", AnswerCode::NoDecision),
        (200, "", AnswerCode::NoDecision),
        (429, "too many", AnswerCode::Http(429)),
        (404, r#"{"overallCode":"OK"}"#, AnswerCode::Http(404)),
    ] {
        assert_eq!(AnswerCode::from_http(status, body.as_bytes()), expected, "{status} {body}");
    }
}

/// The form is that of `proc_pid_stat(5)`: fields 14 and 15 are `utime` and `stime`, in 1/100 s.
#[test]
fn cpu_time_is_that_of_user_and_kernel_mode() {
    let stat = "42 (a) b (c)) S 1 2 3 0 -1 4194560 100 0 0 0 250 50 7 8 20 0 9 0 12345";
    assert_eq!(parse_stat(stat), Some(Nanos::from_secs(3)));
    for other in ["", "42 (x", "42 (x) S 1 2", "42 (x) S 1 2 3 0 -1 4194560 100 0 0 0 a b"] {
        assert_eq!(parse_stat(other), None, "{other}");
    }
    let error = cpu_time(u32::MAX).unwrap_err();
    assert!(error == "no process 4294967295 on this machine", "{error}");
}
