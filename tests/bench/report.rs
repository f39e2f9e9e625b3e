//! Tests of the table, the JSON document and the picture.

use serde_json::json;
use sluicegate::bench::{
    AnswerCode, BenchReport, CheckTimes, LawError, LawStrategy, LimitLaw, StepResult, StepTally,
    svg,
};
use sluicegate::kernel::units::{Nanos, Unit};

/// A step of 10 s: 99 decisions after 1 ms, one after 2 s; one timeout of 1 s, one check not sent.
fn step(rate: u32) -> StepResult {
    let mut tally = StepTally::default();
    let after = |millis: u64| {
        let replied = Nanos(millis * Nanos::MILLI.0);
        CheckTimes { scheduled: Nanos(0), sent: Nanos(0), replied }
    };
    (0..99).for_each(|_| tally.record(AnswerCode::Allow, after(1)));
    tally.record(AnswerCode::Deny, after(2_000));
    tally.record(AnswerCode::Timeout, after(1_000));
    tally.record_not_sent(Nanos::SECOND);
    let cpu = Some(Nanos(1_010 * Nanos::MICRO.0));
    StepResult { rate, tally, elapsed: Nanos::from_secs(10), cpu }
}

fn report(steps: Vec<StepResult>) -> BenchReport {
    let law =
        LimitLaw { requests: 9, unit: Unit::Minute, strategy: LawStrategy::FixedWindow, hits: 1 };
    let error = LawError { allowed: 99, denied: 1, over: 0, under: 2 };
    let (target, law) = ("gRPC <&>:1".to_owned(), Some((law, error)));
    BenchReport { target, keys: 5, skew: 1.5, hits: 1, seed: 3, steps, law }
}

#[test]
fn the_table_has_a_row_for_each_step() {
    let expected = "\
gRPC <&>:1: keys 5, skew 1.5, hits 1, seed 3
     RATE     SENT NOT SENT   FAILED DECIDED/S      P50      P90      P99    P99.9      MAX DELAY P99 CPU/CHECK
    100/s      101        1        1        10    1.0ms    1.0ms    1.00s    2.00s    2.00s       0µs    10.0µs
answers at 100/s: allow 99, deny 1, timeout 1
limit 9 per minute, fixed_window: 0 hits over, 2 under; 99 allowed, 1 denied
";
    assert_eq!(report(vec![step(100)]).text(), expected);
}

#[test]
fn the_json_document_has_all_numbers() {
    let json = report(vec![step(100), step(200)]).json();
    assert_eq!((&json["seed"], &json["steps"][1]["rate"]), (&json!(3), &json!(200)));
    let step = &json["steps"][0];
    assert_eq!(step["answers"], json!({"allow": 99, "deny": 1, "timeout": 1}));
    for (name, expected) in [
        ("sent", json!(101)),
        ("not_sent", json!(1)),
        ("decided", json!(100)),
        ("decided_per_second", json!(10.0)),
        ("seconds", json!(10.0)),
        ("cpu_us_per_check", json!(10.0)),
    ] {
        assert_eq!(step[name], expected, "{name}");
    }
    assert_eq!(step["latency_us"]["max"], json!(2_000_000.0));
    let law = json!({"requests": 9, "unit": "minute", "strategy": "fixed_window",
        "allowed_hits": 99, "denied_hits": 1, "over_hits": 0, "under_hits": 2});
    assert_eq!(json["law"], law);
}

#[test]
fn only_hits_over_and_missing_decisions_are_negative() {
    let good = report(vec![step(100)]);
    assert!(!good.is_negative());
    let mut over = good.clone();
    over.law.as_mut().unwrap().1.over = 1;
    let mut without = good;
    without.steps[0].tally = StepTally::default();
    assert!(over.is_negative() && without.is_negative());
    assert!(without.text().contains(" - "), "{}", without.text());
}

#[test]
fn the_picture_has_a_curve_for_each_step_with_latencies() {
    let empty = StepResult { tally: StepTally::default(), ..step(300) };
    let picture = svg(&report(vec![step(100), step(200), empty]));
    assert_eq!(picture.matches("<polyline ").count(), 2);
    for text in ["100/s", "200/s", "300/s", "99.9 %", "gRPC &lt;&amp;>:1"] {
        assert!(picture.contains(text), "{text}: {picture}");
    }
    assert!(!picture.contains("NaN") && picture.ends_with("</svg>\n"), "{picture}");
    let nothing = svg(&report(Vec::new()));
    assert!(!nothing.contains("NaN") && nothing.ends_with("</svg>\n"), "{nothing}");
}
