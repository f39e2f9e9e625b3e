//! Tests of recordings of an engine's checks.

mod budgets;

use std::collections::HashMap;
use std::sync::Arc;

use sluicegate::clock::Clock;
use sluicegate::config::Config;
use sluicegate::engine::recorder::{RecordError, RecordedKeys, RecordingOptions, RecordingStream};
use sluicegate::engine::{DecisionPolicy, Engine};
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::recording::percent::Percent;
use sluicegate::recording::{CheckOrder, CheckOutcome, RecordingEnd};
use sluicegate::replay::comparison::{ReplayLimits, compare};
use sluicegate::store::memory::{MemoryStore, WhenFull};

use crate::recording::read;
use crate::support::engine::{advance_clock, check, check_of, check_of_entry, publish};
use crate::support::waiting::soon;

const OPTIONS: RecordingOptions = RecordingOptions {
    sample: Percent::ALL,
    duration: Nanos::from_secs(60),
    keys: RecordedKeys::Clear,
};

fn engine() -> Engine {
    let store = Arc::new(MemoryStore::new(10_000, WhenFull::Deny, [7; 16]));
    let clock = Clock::manual(Nanos::from_secs(1_763_632_345));
    let engine = Engine::new(clock, store, DecisionPolicy::default());
    publish(&engine, "", "  - {key: k, rate_limit: {unit: minute, requests_per_unit: 2}}\n");
    engine
}

/// Stops the recording and returns its bytes.
async fn stopped(engine: &Engine, mut recording: RecordingStream) -> Vec<u8> {
    engine.stop_recording();
    let mut bytes = Vec::new();
    while let Some(more) = soon("bytes", recording.next_bytes()).await {
        bytes.extend(more);
    }
    bytes
}

#[tokio::test]
async fn checks_peeks_and_refunds_are_recorded_in_order() {
    let engine = engine();
    engine.decide(&check_of_entry("k", "before")).await.unwrap();
    let recording = engine.start_recording(OPTIONS).unwrap();
    for hits in [2, 1] {
        engine.decide(&check(&[("k", "ann")], Cost::Charge(Hits(hits)))).await.unwrap();
        advance_clock(&engine, Nanos::SECOND);
    }
    engine.decide(&check(&[("k", "ann")], Cost::Refund(Hits(3)))).await.unwrap();
    engine.peek(check_of_entry("k", "ann"), None).await.unwrap();
    engine.decide(&check(&[], Cost::Charge(Hits(1)))).await.unwrap_err();
    let recorded = read(&stopped(&engine, recording).await).unwrap();
    let costs: Vec<_> = recorded.checks.iter().map(|one| one.descriptors[0].1).collect();
    let charge = |hits| Cost::Charge(Hits(hits));
    assert_eq!(costs, [charge(2), charge(1), Cost::Refund(Hits(3)), charge(0)]);
    let outcomes: Vec<_> = recorded.checks.iter().map(|one| one.outcome).collect();
    let (allow, deny) = (CheckOutcome::Allow, CheckOutcome::Deny);
    assert_eq!(outcomes, [allow, deny, allow, allow]);
    assert_eq!(recorded.checks[1].denied_by.as_deref(), Some("d.k"));
    assert_eq!(recorded.checks[1].time, recorded.checks[0].time.plus(Nanos::SECOND));
    assert_eq!(recorded.end, Some(RecordingEnd { recorded: 4, dropped: 0 }));
    assert_eq!(recorded.header.order, CheckOrder::Decisions);
    engine.decide(&check_of_entry("k", "after")).await.unwrap();
}

#[tokio::test]
async fn one_recording_runs_at_a_time() {
    let engine = engine();
    let recording = engine.start_recording(OPTIONS).unwrap();
    let second = engine.start_recording(OPTIONS);
    assert_eq!(second.unwrap_err(), RecordError::AlreadyRecording);
    drop(recording);
    let third = engine.start_recording(OPTIONS).unwrap();
    stopped(&engine, third).await;
    engine.start_recording(OPTIONS).unwrap();
}

#[tokio::test]
async fn the_end_of_a_recording_keeps_the_next_one() {
    let engine = engine();
    let mut first = engine.start_recording(OPTIONS).unwrap();
    engine.decide(&check_of_entry("k", "ann")).await.unwrap();
    engine.stop_recording();
    for part in ["header", "last block"] {
        assert!(soon(part, first.next_bytes()).await.is_some());
    }
    let second = engine.start_recording(OPTIONS).unwrap();
    drop(first);
    engine.decide(&check_of_entry("k", "bob")).await.unwrap();
    let recorded = read(&stopped(&engine, second).await).unwrap();
    assert_eq!(recorded.end, Some(RecordingEnd { recorded: 1, dropped: 0 }));
}

#[tokio::test]
async fn a_recording_ends_after_its_duration() {
    let engine = engine();
    for duration in [Nanos(0), Nanos::from_secs(3_601)] {
        let invalid = engine.start_recording(RecordingOptions { duration, ..OPTIONS });
        assert_eq!(invalid.unwrap_err(), RecordError::InvalidDuration);
    }
    let mut recording = engine.start_recording(OPTIONS).unwrap();
    engine.decide(&check_of_entry("k", "ann")).await.unwrap();
    advance_clock(&engine, OPTIONS.duration);
    let mut bytes = Vec::new();
    while let Some(more) = soon("bytes", recording.next_bytes()).await {
        bytes.extend(more);
    }
    assert_eq!(read(&bytes).unwrap().end, Some(RecordingEnd { recorded: 1, dropped: 0 }));
}

#[tokio::test]
async fn a_recording_ends_in_time_without_its_reader() {
    let engine = engine();
    let mut recording = engine.start_recording(OPTIONS).unwrap();
    engine.decide(&check_of_entry("k", "ann")).await.unwrap();
    advance_clock(&engine, OPTIONS.duration);
    for _ in 0..3 {
        engine.decide(&check_of_entry("k", "late")).await.unwrap();
    }
    let mut bytes = Vec::new();
    while let Some(more) = soon("bytes", recording.next_bytes()).await {
        bytes.extend(more);
    }
    assert_eq!(read(&bytes).unwrap().end, Some(RecordingEnd { recorded: 1, dropped: 0 }));
}

#[tokio::test]
async fn a_sampled_key_has_all_its_checks() {
    let engine = engine();
    let sample = Percent::parse("20%").unwrap();
    let recording = engine.start_recording(RecordingOptions { sample, ..OPTIONS }).unwrap();
    for n in 0..3_000 {
        engine.decide(&check_of_entry("k", &format!("{}", n % 1_000))).await.unwrap();
    }
    let mut checks = HashMap::<_, u32>::new();
    for one in read(&stopped(&engine, recording).await).unwrap().checks {
        *checks.entry(one.descriptors[0].0[0].1.clone()).or_default() += 1;
    }
    assert!(checks.values().all(|count| *count == 3), "{checks:?}");
    // 200 keys with a standard deviation of 13.
    assert!((120..=280).contains(&checks.len()), "{}", checks.len());
}

#[tokio::test]
async fn counters_of_a_sample_are_replayed_exactly() {
    let engine = engine();
    let sample = Percent::parse("40%").unwrap();
    let recording = engine.start_recording(RecordingOptions { sample, ..OPTIONS }).unwrap();
    for n in 0..2_000 {
        // 20 and 31 values, so that a counter is charged in many different checks.
        let (one, other) = (format!("a{}", n % 20), format!("b{}", n % 31));
        engine.decide(&check_of(&[("k", &*one), ("k", &*other)])).await.unwrap();
        advance_clock(&engine, Nanos(700 * Nanos::MILLI.0));
    }
    let bytes = stopped(&engine, recording).await;
    let config = Config::clone(&engine.config().unwrap());
    let replayed = compare(&*bytes, ReplayLimits { old: config, new: None }).unwrap();
    assert_eq!(replayed.recorded.equal, replayed.recorded.known);
    let recorded = read(&bytes).unwrap().checks;
    let has_descriptors = |count| recorded.iter().any(|one| one.descriptors.len() == count);
    assert!(has_descriptors(1) && has_descriptors(2), "part of a check is sampled");
    assert!(0 < replayed.old_denied && replayed.old_denied < replayed.checks);
}

#[tokio::test]
async fn checks_beyond_the_queue_are_dropped_and_counted() {
    let engine = engine();
    let recording = engine.start_recording(OPTIONS).unwrap();
    // A value of 64 KiB fills a block with eight checks; nobody reads the queue of 32 blocks.
    let values: Vec<_> = (0..400).map(|n| format!("{n}{}", "x".repeat(65_000))).collect();
    for value in &values {
        engine.decide(&check_of_entry("k", value)).await.unwrap();
    }
    let recorded = read(&stopped(&engine, recording).await).unwrap();
    let end = recorded.end.unwrap();
    assert_eq!(end.recorded + end.dropped, 400);
    assert_eq!(end.recorded, recorded.checks.len() as u64);
    assert!(200 < end.recorded && 50 < end.dropped, "{end:?}");
}

#[tokio::test]
async fn hashed_recordings_have_a_salt_and_no_values() {
    let engine = engine();
    let options = RecordingOptions { keys: RecordedKeys::Hashed, ..OPTIONS };
    let recording = engine.start_recording(options).unwrap();
    assert_eq!(engine.decide(&check_of_entry("k", "ann")).await.unwrap().verdict, Verdict::Allow);
    let recorded = read(&stopped(&engine, recording).await).unwrap();
    assert!(recorded.header.salt.is_some());
    let value = &recorded.checks[0].descriptors[0].0[0].1;
    assert!(value.starts_with('~') && value.len() == 17, "{value}");
}
