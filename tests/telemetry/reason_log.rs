//! The bounds of log lines about repeated conditions.

use std::time::Duration;

use sluicegate::telemetry::reason_log::{DueLine, QuietLog, ReasonLog};
use tokio::time::Instant;

const FIRST: Option<DueLine> = Some(DueLine { times: None });

/// A log, and the instants of the seconds since its creation.
fn log() -> (ReasonLog, impl Fn(u64) -> Instant) {
    let start = Instant::now();
    (ReasonLog::new(), move |seconds| start + Duration::from_secs(seconds))
}

#[test]
fn a_repeated_reason_is_counted_once_a_minute() {
    let (mut log, at) = log();
    assert_eq!(log.count("refused", at(0)), FIRST);
    assert!((1..60).all(|second| log.count("refused", at(second)).is_none()));
    assert_eq!(log.count("refused", at(60)), Some(DueLine { times: Some(60) }));
    assert_eq!(log.count("refused", at(61)), None);
}

#[test]
fn a_condition_that_flaps_is_logged_four_times_a_minute() {
    let (mut log, at) = log();
    let begins = (0..61).filter(|&second| {
        let is_due = log.count("lost", at(second)).is_some();
        log.end();
        is_due
    });
    assert_eq!(begins.collect::<Vec<_>>(), [0, 1, 2, 3, 60]);
}

#[test]
fn at_most_ten_reasons_are_logged_in_a_minute() {
    let (mut log, at) = log();
    let logged = (0..30).filter(|reason| log.count(&reason.to_string(), at(0)).is_some());
    assert_eq!(logged.count(), 10);
    log.end();
    assert_eq!(log.count("another", at(60)), FIRST);
}

#[test]
fn the_end_is_logged_only_after_a_logged_begin() {
    let (mut log, at) = log();
    assert!(!log.is_begin_logged());
    let ends = (0..10).filter(|&second| {
        log.count("lost", at(second));
        let is_logged = log.is_begin_logged();
        log.end();
        is_logged
    });
    assert_eq!(ends.count(), 4);
}

#[test]
fn a_condition_without_its_own_end_ends_after_ten_quiet_seconds() {
    let (_, at) = log();
    let mut log = QuietLog::new();
    assert!(!log.record_success(at(0)));
    assert_eq!(log.count("refused", at(1)), FIRST);
    assert_eq!(log.count("refused", at(5)), None);
    assert!(!log.record_success(at(14)), "nine seconds");
    assert!(log.record_success(at(15)));
    assert!(!log.record_success(at(30)), "it has ended");
}
