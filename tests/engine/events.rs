//! Tests of events about concurrency limits and bans, with an engine in this process.

use std::sync::Arc;

use serde_json::{Value, json};
use sluicegate::clock::Clock;
use sluicegate::config::load;
use sluicegate::config::settings::{DescriptorValues, EventKinds, UnitFraction};
use sluicegate::engine::actions::Operator;
use sluicegate::engine::events::EventOptions;
use sluicegate::engine::{AdmissionOutcome, DecisionPolicy, Engine};
use sluicegate::kernel::decision::{Check, Cost, Descriptor};
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::telemetry::cloud_events::{EventDelivery, EventDrain, WebhookOptions};
use sluicegate::telemetry::event::{Event as _, ShareFenced};

use crate::support::engine::check_of_entry;
use crate::support::event_receiver::{EventReceiver, Replies};
use crate::support::waiting::{PATIENCE, until};

const LIMITS: &str = "domain: d\ndescriptors:\n\
- {key: upstream, concurrency: {limit: 1, mode: local, classes: {by: tier, up_to: {gold: 100%}}}}\n\
- {key: k, rate_limit: {unit: minute, requests_per_unit: 0, \
penalty: {after: 1, within: 1m, for: 10m}}}\n";

/// An engine whose events are delivered to `receiver`.
fn start(receiver: &EventReceiver) -> (Arc<Engine>, EventDrain) {
    let options = WebhookOptions {
        url: receiver.url(),
        shown_url: receiver.url(),
        source: "test".to_owned(),
        secret_file: None,
        ca_file: None,
    };
    let (queue, delivery) = EventDelivery::new(options).unwrap();
    let memory = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [7; 16]));
    let clock = Clock::manual(Nanos::from_secs(1_000_000));
    let engine = Engine::new(clock, memory, DecisionPolicy::default()).with_events(EventOptions {
        queue: Arc::clone(&queue),
        kinds: EventKinds::ALL,
        near_limit: UnitFraction::NEAR_LIMIT_DEFAULT,
        descriptor_values: DescriptorValues::Shown,
        shadow_mode: false,
        replica: "one".to_owned(),
    });
    let config = load([("f", LIMITS.as_bytes())], Revision(1), false).unwrap().0;
    engine.publish(config.into());
    let drain = delivery.start(queue, Arc::new(|| Nanos::from_secs(1_000_000)));
    (Arc::new(engine), drain)
}

fn wait_for_event(receiver: &EventReceiver, subject: &str) -> Value {
    until(subject, || {
        let events = receiver.events();
        let found = events.iter().find(|event| event["subject"] == subject).cloned();
        found.ok_or_else(|| format!("{events:?}"))
    })
    .unwrap()
}

#[test]
fn an_expired_share_is_an_event_once_a_minute() {
    let (receiver, runtime) =
        (EventReceiver::start(Replies::Accept), tokio::runtime::Runtime::new().unwrap());
    let (engine, _drain) = runtime.block_on(async { start(&receiver) });
    runtime.spawn(async move { engine.watch_incidents().await });
    let limit = "events.test.fenced";
    ShareFenced { limit }.emit();
    ShareFenced { limit }.emit();
    let event = wait_for_event(&receiver, limit);
    assert_eq!(event["type"], "io.sluicegate.share.fenced");
    assert_eq!(event["data"]["replica"], "one");
}

#[test]
fn a_rejection_by_a_concurrency_limit_is_an_event() {
    let (receiver, runtime) =
        (EventReceiver::start(Replies::Accept), tokio::runtime::Runtime::new().unwrap());
    runtime.block_on(async {
        let (engine, drain) = start(&receiver);
        let entries = smallvec::smallvec![("upstream", "checkout")];
        let descriptor = Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None };
        let check = Check { domain: "d", descriptors: smallvec::smallvec![descriptor] };
        let admitted = engine.admit(&check, None).await.unwrap();
        for _ in 0..3 {
            let rejected = engine.admit(&check, None).await.unwrap();
            assert!(matches!(rejected, AdmissionOutcome::Rejected(_)));
        }
        drain.finish(PATIENCE).await;
        drop(admitted);
    });
    let events = receiver.events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["type"], "io.sluicegate.limit.denied");
    let (subject, data) = (&events[0]["subject"], &events[0]["data"]);
    assert_eq!(subject, "d.upstream");
    assert_eq!(data["descriptors"], json!([[{"key": "upstream", "value": "checkout"}]]));
    assert_eq!(data["reason"], "concurrency_limit_reached");
    assert_eq!(data["class"], "gold");
    assert_eq!((&data["in_flight"], &data["queued"]), (&json!(1), &json!(0)));
}

#[test]
fn a_ban_and_its_lift_are_events() {
    let (receiver, runtime) =
        (EventReceiver::start(Replies::Accept), tokio::runtime::Runtime::new().unwrap());
    runtime.block_on(async {
        let (engine, drain) = start(&receiver);
        engine.decide(&check_of_entry("k", "v")).await.unwrap();
        engine.decide(&check_of_entry("k", "v")).await.unwrap();
        let operator = Operator { name: "alice", reason: "ticket 7" };
        engine.lift_bans("d", &[("k", "v")], operator).await.unwrap();
        drain.finish(PATIENCE).await;
    });
    let events = receiver.events();
    let of_type = |wanted: &str| {
        let found: Vec<_> = events.iter().filter(|event| event["type"] == wanted).collect();
        assert_eq!(found.len(), 1, "{events:?}");
        assert_eq!(found[0]["subject"], "d.k");
        let data = &found[0]["data"];
        assert_eq!(data["descriptor"], json!([{"key": "k", "value": "v"}]));
        assert_eq!((&data["domain"], &data["replica"]), (&json!("d"), &json!("one")));
        data.clone()
    };
    let began = of_type("io.sluicegate.ban.began");
    assert_eq!(began["until"], "1970-01-12T13:56:40Z", "second 1,000,600");
    let lifted = of_type("io.sluicegate.ban.lifted");
    assert_eq!((&lifted["by"], &lifted["reason"]), (&json!("alice"), &json!("ticket 7")));
}
