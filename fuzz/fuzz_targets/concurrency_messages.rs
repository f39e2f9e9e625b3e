//! Bytes as the messages about concurrency limits between proxies and Sluicegate, each after its
//! length.
//!
//! Guarantees:
//! - Rounds, reports, acquires and limits survive the conversion to a message.
//! - A granted permit is within the limit of its acquire.
//! - The shares of a round are at most the limit in the grant.
//! - Any limit gives a limiter that admits at most as many requests as its limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use sluicegate::store::heartbeat::{BucketKey, ShareReport, ShareRound};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::permits::{
    AcquireOutcome, LimitPermits, PermitId, PermitReport, StrictAcquire, StrictPermitRequest,
};
use sluicegate::store::{FleetStore, StoreReply};
use sluicegate_kernel::concurrency::Limiter;
use sluicegate_kernel::concurrency::limiter::{LimiterConfig, LimiterEffect, LimiterEvent};
use sluicegate_kernel::concurrency::permit_table::PermitTiming;
use sluicegate_kernel::coordinator::incarnation::IncarnationRecord;
use sluicegate_kernel::coordinator::{CoordinatorConfig, Heartbeat, HeartbeatReply, ShareTiming};
use sluicegate_kernel::units::{Incarnation, Nanos, ReplicaId, Share};
use sluicegate_lease_protocol::api::{
    LeaseMessage, ProxyMessage, lease_message, proxy_message, rule_reply,
};
use sluicegate_lease_protocol::shares::ClaimedRound;
use sluicegate_lease_protocol::{concurrency, permits, shares};

const NOW: Nanos = Nanos::from_secs(1_000_000);

/// The replica that sends all requests.
const REPLICA: ReplicaId = ReplicaId(7);

/// The limit of every bucket.
const LIMIT: Share = Share(10);

const PERMIT_TIMING: PermitTiming = PermitTiming {
    grace: Nanos::from_secs(1),
    max_silence: Nanos::from_secs(4),
    max_lifetime: Nanos::from_secs(60),
};

/// The time between two messages.
const STEP: Nanos = Nanos(300 * Nanos::MILLI.0);

fuzz_target!(|bytes: &[u8]| {
    let store = MemoryStore::new(100, WhenFull::Deny, [7; 16]);
    let (mut rest, mut now) = (bytes, NOW);
    while let Ok(message) = ProxyMessage::decode_length_delimited(&mut rest) {
        read_request(&store, now, message);
        now = now.plus(STEP);
    }
    let mut rest = bytes;
    while let Ok(message) = LeaseMessage::decode_length_delimited(&mut rest) {
        read_reply(message);
    }
});

/// Reads a message as Sluicegate does, and applies it to a store.
fn read_request(store: &MemoryStore, now: Nanos, message: ProxyMessage) {
    match message.message {
        Some(proxy_message::Message::Report(report)) => {
            let round = report.shares.as_ref();
            if let Some(claimed) = round.and_then(|round| shares::share_round(round, REPLICA)) {
                apply_round(store, now, &claimed);
            }
            let permits = report.permits.as_ref();
            if let Some(limits) = permits.and_then(|it| permits::permit_report(it, REPLICA.0)) {
                apply_report(store, now, limits);
            }
        }
        Some(proxy_message::Message::Acquire(acquire)) => {
            if let Some(claimed) = permits::permit_request(&acquire) {
                acquire_permit(store, now, claimed);
            }
        }
        _ => {}
    }
}

fn apply_round(store: &MemoryStore, now: Nanos, claimed: &ClaimedRound) {
    let [heartbeat, expiry, longest] = [1, 5, 60].map(Nanos::from_secs);
    let timing = ShareTiming::new(heartbeat, expiry, longest, 1_000).expect("valid times");
    let law = CoordinatorConfig::new(timing, Share(1), LIMIT, LIMIT).expect("a valid limit");
    let report = |(bucket, heartbeat): &(BucketKey, Heartbeat)| ShareReport {
        bucket: bucket.clone(),
        law,
        heartbeat: *heartbeat,
    };
    let round = ShareRound {
        record: IncarnationRecord {
            replica: REPLICA,
            incarnation: Incarnation(1),
            coordinator_incarnation: claimed.coordinator_incarnation,
        },
        last_reply_at: None,
        longest_use: timing.longest_use(),
        is_leaving: claimed.is_leaving,
        reports: claimed.reports.iter().map(report).collect(),
    };
    let again = shares::share_round(&shares::share_round_message(&round), REPLICA);
    assert_eq!(again.as_ref(), Some(claimed));
    let reply = ready(store.report_shares(now, &round));
    let message = shares::share_round_result_message(&reply);
    let received = shares::share_round_result(&message, &round).expect("a reply of the store");
    assert_eq!(received, reply);
    for reply in reply.expect("the memory store replies").replies.iter().flatten() {
        if let HeartbeatReply::Grant(grant) = reply {
            assert!(grant.share <= grant.limit.max(grant.fair_share), "{grant:?}");
        }
    }
}

fn apply_report(store: &MemoryStore, now: Nanos, limits: Vec<LimitPermits>) {
    let report = PermitReport { times: PERMIT_TIMING, to_all_nodes: false, limits };
    let again = permits::permit_report(&permits::permit_report_message(&report), REPLICA.0);
    assert_eq!(again.as_ref(), Some(&report.limits));
    let replies = ready(store.report_strict_permits(now, &report));
    let message = permits::permit_report_result_message(&replies);
    assert_eq!(permits::permit_report_result(&message, report.limits.len()), Some(replies));
}

fn acquire_permit(store: &MemoryStore, now: Nanos, claimed: (BucketKey, u64)) {
    let permit = StrictAcquire {
        id: PermitId(REPLICA.0, claimed.1),
        limit: LIMIT,
        lifetime: Nanos::from_secs(5),
        timing: PERMIT_TIMING,
    };
    let request = StrictPermitRequest { bucket: claimed.0.clone(), permit };
    let again = permits::permit_request(&permits::permit_request_message(&request));
    assert_eq!(again, Some(claimed));
    let before = ready(store.acquire_strict_permit(now, &request));
    let repeated = ready(store.acquire_strict_permit(now, &request));
    let (Ok(before), Ok(repeated)) = (before, repeated) else { panic!("the store replies") };
    if before.result == AcquireOutcome::Acquired {
        assert_eq!(repeated, before, "a repeated acquire has no effect");
    }
}

/// Reads a message as the proxy does.
fn read_reply(message: LeaseMessage) {
    match message.message {
        Some(lease_message::Message::Rule(rule)) => {
            let _handling = rule_reply::Handling::try_from(rule.handling);
            if let Some(rule) = rule.concurrency.as_ref().and_then(concurrency::concurrency_rule) {
                let again = concurrency::concurrency_rule(&concurrency::concurrency_message(&rule));
                assert_eq!(again.as_ref(), Some(&rule));
                use_limit(&rule.rules);
            }
        }
        Some(lease_message::Message::Acquire(result)) => {
            let _reply = permits::permit_result(&result);
        }
        Some(lease_message::Message::Report(result)) => {
            let _replies = result.permits.map(|permits| permits::permit_report_result(&permits, 1));
        }
        _ => {}
    }
}

fn use_limit(rules: &LimiterConfig) {
    let mut limiter = Limiter::new(rules, 7);
    for step in 0..8_u64 {
        let now = NOW.plus(Nanos(step * Nanos::MILLI.0));
        let acquire = LimiterEvent::Acquire { lifetime: None, timeout: Nanos::SECOND };
        let limit = limiter.limit();
        let effects = limiter.step(now, acquire);
        let is_admitted = effects.iter().any(|it| matches!(it, LimiterEffect::Admit(_)));
        assert!(!is_admitted || limiter.in_flight() <= limit, "{} of {limit}", limiter.in_flight());
    }
}

fn ready<T>(reply: StoreReply<'_, T>) -> T {
    match reply {
        StoreReply::Ready(reply) => reply,
        StoreReply::Pending(_) => panic!("the memory store replies at once"),
    }
}
