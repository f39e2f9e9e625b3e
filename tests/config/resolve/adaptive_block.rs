//! Tests of the blocks `adaptive` and `fleet` of a concurrency limit.

use sluicegate::config::concurrency::ConcurrencyLimit;
use sluicegate::kernel::concurrency::adaptive::{AdaptiveTuning, Hundredths};
use sluicegate::kernel::coordinator::aggregate::VoteAggregate;
use sluicegate::kernel::units::Nanos;

use crate::config::{findings, load_clean};

fn descriptor(fields: &str) -> String {
    format!("- key: k\n  concurrency: {{limit: 64, max_duration: 60s, {fields}}}\n")
}

fn concurrency_limit(fields: &str) -> ConcurrencyLimit {
    let config = load_clean(&descriptor(fields));
    config.domains["d"].tree.lookup_concurrency_limit([("k", "v")]).unwrap().limit.clone()
}

fn tuning(fields: &str) -> AdaptiveTuning {
    concurrency_limit(&format!("adaptive: {{{fields}}}")).rules.adaptive.unwrap().tuning
}

fn assert_finding(fields: &str, expected: &str) {
    let findings = findings(&descriptor(fields));
    assert_eq!(findings.len(), 1, "{fields}: {findings:#?}");
    assert!(findings[0].contains(expected), "{fields}: {}\nwanted {expected}", findings[0]);
}

#[test]
fn adaptive_fields_set_the_parameters_of_the_algorithm() {
    assert_eq!(tuning(""), AdaptiveTuning::default());
    let all = "algorithm: gradient2, target: 250ms, tolerance: 1.5, increase: 2, decrease: 0.75, \
               window: 1s, smoothing: 0.5, probe_interval: 30s, probe_depth: 0.4";
    let expected = AdaptiveTuning {
        target: Some(Nanos(250 * Nanos::MILLI.0)),
        tolerance: Some(Hundredths(150)),
        increase: Some(2),
        decrease: Some(Hundredths(75)),
        window: Some(Nanos::SECOND),
        smoothing: Some(Hundredths(50)),
        probe_interval: Some(Nanos::from_secs(30)),
        probe_depth: Some(Hundredths(40)),
    };
    assert_eq!(tuning(all), expected);
    for (text, hundredths) in [("2", 200), ("1.05", 105), ("10", 1_000), ("'1.50'", 150)] {
        let tolerance = Some(Hundredths(hundredths));
        let expected = AdaptiveTuning { tolerance, ..AdaptiveTuning::default() };
        assert_eq!(tuning(&format!("tolerance: {text}")), expected);
    }
}

#[test]
fn a_field_without_effect_is_an_error() {
    for field in ["increase: 2", "decrease: 0.5"] {
        let name = field.split(':').next().unwrap();
        let expected = format!("E32 `{name}` has no effect with `algorithm: gradient`");
        assert_finding(&format!("adaptive: {{{field}}}"), &expected);
        assert_finding(&format!("adaptive: {{algorithm: gradient, {field}}}"), &expected);
        tuning(&format!("algorithm: aimd, {field}"));
        tuning(&format!("algorithm: gradient2, {field}"));
    }
    for algorithm in ["gradient", "aimd"] {
        let fields = format!("adaptive: {{algorithm: {algorithm}, smoothing: 0.5}}");
        let expected = format!("E32 `smoothing` has no effect with `algorithm: {algorithm}`");
        assert_finding(&fields, &expected);
    }
    let local = "mode: local, adaptive: {aggregate: min}";
    assert_finding(local, "E32 `aggregate` has no effect with `mode: local`");
}

#[test]
fn adaptive_fields_out_of_range_are_errors() {
    for (field, code) in [
        ("target: 0s", "E31"),
        ("target: soon", "E31"),
        ("target: 61m", "E38"),
        ("tolerance: 1.04", "E38"),
        ("tolerance: 10.01", "E38"),
        ("increase: 0", "E38"),
        ("increase: 1001", "E38"),
        ("decrease: 0.09", "E38"),
        ("decrease: 1", "E38"),
        ("window: 9ms", "E38"),
        ("window: 61s", "E38"),
        ("smoothing: 0.04", "E38"),
        ("smoothing: 1.01", "E38"),
        ("probe_interval: 999ms", "E38"),
        ("probe_interval: 61m", "E38"),
        ("probe_depth: 0.29", "E38"),
        ("probe_depth: 0.91", "E38"),
    ] {
        let expected = format!("{code} `{field}`");
        assert_finding(&format!("adaptive: {{algorithm: gradient2, {field}}}"), &expected);
    }
    for text in ["1.505", "50%", "fast", "-1", "1e1", "."] {
        let expected = format!("E38 `tolerance: {text}` is not a number with up to two decimals");
        assert_finding(&format!("adaptive: {{tolerance: {text}}}"), &expected);
    }
}

#[test]
fn aggregate_selects_the_vote_rule() {
    assert_eq!(concurrency_limit("adaptive: {}").aggregate, VoteAggregate::Median);
    for (word, aggregate) in [("median", VoteAggregate::Median), ("min", VoteAggregate::Min)] {
        let fields = format!("adaptive: {{aggregate: {word}}}");
        assert_eq!(concurrency_limit(&fields).aggregate, aggregate);
    }
    assert_finding("adaptive: {aggregate: mean}", "E29 `aggregate: mean`");
}

#[test]
fn limits_with_different_parameters_have_different_descriptions() {
    let text = |fields: &str| concurrency_limit(fields).to_string();
    let all = "algorithm: gradient2, min: 8, max: 512, target: 250ms, tolerance: 1.5, increase: 2, \
               decrease: 0.75, window: 1s, smoothing: 0.5, probe_interval: 30s, probe_depth: 0.4";
    assert_eq!(
        text(&format!("adaptive: {{{all}, aggregate: min}}")),
        "64 in flight, gradient2 from 8 to 512, target 250ms, tolerance 1.5, increase 2, \
         decrease 0.75, window 1s, smoothing 0.5, probe interval 30s, probe depth 0.4, \
         aggregate min, rejected with 503"
    );
    assert_eq!(
        text("adaptive: {tolerance: 2}"),
        "64 in flight, gradient from 1 to 1000, tolerance 2, rejected with 503"
    );
}
