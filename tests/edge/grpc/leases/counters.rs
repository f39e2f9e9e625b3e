//! Tests of the hits that proxies borrow and charge, with the memory store.

use sluicegate::engine::proxies::MAX_PEER_STREAMS;
use sluicegate::kernel::units::Nanos;
use sluicegate_lease_protocol::api::borrow_result::Result as Borrowed;
use sluicegate_lease_protocol::api::charge_result::Result as Charged;
use sluicegate_lease_protocol::api::check_result::Result as Checked;
use sluicegate_lease_protocol::api::counter_decision::Verdict as CounterVerdict;
use sluicegate_lease_protocol::api::lease_failure::Cause;
use sluicegate_lease_protocol::api::lease_message::Message as Reply;
use sluicegate_lease_protocol::api::proxy_message::Message;
use sluicegate_lease_protocol::api::rate_strategy::Kind;
use sluicegate_lease_protocol::api::{
    BorrowMessage, BorrowReply, ChargeMessage, CheckDecision, CheckDescriptor, CheckMessage,
    RateStrategy, ReportedLimit,
};

use super::client::{LEASED, ProxyStream, borrow, counter_of, entries, serve};
use crate::edge::empty_engine;
use crate::support::engine::{advance_clock, publish};

const DAY_NS: u64 = 86_400_000_000_000;

fn applied(result: &Borrowed) -> &BorrowReply {
    match result {
        Borrowed::Applied(reply) => reply,
        other => panic!("{other:?}"),
    }
}

async fn charge(proxy: &mut ProxyStream, hits: u64, strategy: RateStrategy) -> Charged {
    let message = ChargeMessage { counter: Some(counter_of("v", strategy)), hits };
    match proxy.ask(Message::Charge(message)).await {
        Reply::Charge(result) => result.result.unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn check(proxy: &mut ProxyStream, hits: u64) -> Checked {
    let descriptors = vec![CheckDescriptor { entries: entries(&[("k", "v")]), hits }];
    let message = CheckMessage { domain: "d".into(), descriptors, timeout_us: None };
    match proxy.ask(Message::Check(message)).await {
        Reply::Check(result) => result.result.unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The strategy of [`LEASED`].
fn strategy() -> RateStrategy {
    let kind = Kind::FixedWindow.into();
    RateStrategy { kind, hits: 100, period_ns: DAY_NS, ..RateStrategy::default() }
}

#[tokio::test]
async fn proxies_together_borrow_at_most_max_overshoot() {
    let engine = empty_engine();
    publish(&engine, "", LEASED);
    let served = serve(&engine).await;
    let mut one = ProxyStream::open(&served, 7).await;
    let mut two = ProxyStream::open(&served, 8).await;
    let first = one.borrow(borrow(1, 1, 10), strategy()).await;
    let first = applied(&first);
    assert_eq!((first.granted, first.outstanding_elsewhere), (10, 0));
    let decision = first.decision.as_ref().unwrap();
    assert_eq!((decision.verdict(), decision.remaining), (CounterVerdict::Allow, 89));
    let second = two.borrow(borrow(1, 1, 50), strategy()).await;
    let second = applied(&second);
    assert!(second.granted <= 10, "{second:?}");
    assert_eq!(second.outstanding_elsewhere, 10);
    // The hits of both requests, and the lent hits.
    let used = 2 + 10 + second.granted;
    let Checked::Decision(decision) = check(&mut one, 1).await else { panic!("no decision") };
    assert_eq!(decision.reported.unwrap().remaining, 100 - used - 1);
}

#[tokio::test]
async fn a_repeated_message_is_applied_once_and_returned_hits_are_free() {
    let engine = empty_engine();
    publish(&engine, "", LEASED);
    let served = serve(&engine).await;
    let mut proxy = ProxyStream::open(&served, 7).await;
    for _ in 0..3 {
        let result = proxy.borrow(borrow(5, 1, 10), strategy()).await;
        assert!(matches!(result, Borrowed::Applied(_) | Borrowed::Superseded(true)), "{result:?}");
    }
    assert_eq!(proxy.borrow(borrow(4, 1, 10), strategy()).await, Borrowed::Superseded(true));
    let returned = BorrowMessage { returned: 10, last_lease: 5, ..borrow(6, 0, 0) };
    let result = proxy.borrow(returned, strategy()).await;
    assert_eq!(applied(&result).decision.as_ref().unwrap().remaining, 99);
}

#[tokio::test]
async fn a_changed_strategy_gives_limit_changed() {
    let engine = empty_engine();
    publish(&engine, "", LEASED);
    let served = serve(&engine).await;
    let mut proxy = ProxyStream::open(&served, 7).await;
    publish(&engine, "", &LEASED.replace("100", "90"));
    let lost = proxy.borrow(borrow(1, 1, 10), strategy()).await;
    assert_eq!(lost, Borrowed::LimitChanged(true));
    assert_eq!(charge(&mut proxy, 1, strategy()).await, Charged::LimitChanged(true));
    let current = proxy.rule("d", &[("k", "v")]).await.leased[0].strategy.clone();
    let result = proxy.borrow(borrow(2, 1, 0), current.clone()).await;
    assert_eq!(applied(&result).decision.as_ref().unwrap().remaining, 89);
    publish(&engine, "", &LEASED.replace("mode: leased, max_overshoot: 20", "mode: exact"));
    let strict = proxy.borrow(borrow(3, 1, 10), current).await;
    assert_eq!(strict, Borrowed::LimitChanged(true));
}

#[tokio::test]
async fn calendar_windows_may_be_older_by_one_window() {
    let engine = empty_engine();
    let limit = LEASED.replace("unit: day,", "unit: day, calendar: {time_zone: UTC},");
    publish(&engine, "", &limit);
    advance_clock(&engine, Nanos::from_secs(10 * 86_400));
    let served = serve(&engine).await;
    let mut proxy = ProxyStream::open(&served, 7).await;
    let known = proxy.rule("d", &[("k", "v")]).await.leased[0].strategy.clone();
    for (number, changed) in [(1, false), (2, false), (3, true)] {
        let result = proxy.borrow(borrow(number, 1, 0), known.clone()).await;
        assert_eq!(matches!(result, Borrowed::LimitChanged(true)), changed, "{number}: {result:?}");
        advance_clock(&engine, Nanos::from_secs(86_400));
    }
}

#[tokio::test]
async fn charges_and_checks_use_the_same_counter() {
    let engine = empty_engine();
    publish(&engine, "", LEASED);
    let served = serve(&engine).await;
    let mut proxy = ProxyStream::open(&served, 7).await;
    let Charged::Decision(charged) = charge(&mut proxy, 60, strategy()).await else {
        panic!("no decision")
    };
    assert_eq!((charged.verdict(), charged.remaining), (CounterVerdict::Allow, 40));
    let limit = |remaining| ReportedLimit {
        requests: 100,
        period_ns: DAY_NS,
        remaining,
        reset_after_us: 86_400_000_000,
    };
    let allowed =
        CheckDecision { allowed: true, reported: Some(limit(10)), ..CheckDecision::default() };
    assert_eq!(check(&mut proxy, 30).await, Checked::Decision(allowed));
    let denied = CheckDecision {
        allowed: false,
        denied_by: "d.k".into(),
        retry_after_us: Some(86_400_000_000),
        reported: Some(limit(0)),
        ban_status: None,
    };
    assert_eq!(check(&mut proxy, 30).await, Checked::Decision(denied));
    assert_eq!(engine.rule_decisions()[0].counts, [1, 1, 0, 0, 0]);
}

#[tokio::test]
async fn without_limits_calls_fail_and_the_stream_stays() {
    let served = serve(&empty_engine()).await;
    let mut proxy = ProxyStream::open(&served, 7).await;
    let Borrowed::Failure(failure) = proxy.borrow(borrow(1, 1, 0), strategy()).await else {
        panic!("not a failure")
    };
    assert_eq!(failure.cause(), Cause::NoLimits);
    let Checked::Failure(failure) = check(&mut proxy, 1).await else { panic!("not a failure") };
    assert_eq!(failure.cause(), Cause::NoLimits);
}

/// Borrows ten hits of the counter of `value`, with one hit for a request.
async fn borrow_of(proxy: &mut ProxyStream, value: &str) -> BorrowReply {
    let counter = Some(counter_of(value, strategy()));
    match proxy.ask(Message::Borrow(BorrowMessage { counter, ..borrow(1, 1, 10) })).await {
        Reply::Borrow(result) => *applied(&result.result.unwrap()),
        other => panic!("{other:?}"),
    }
}

/// Each proxy with a lease is a record in the store, which others have to read.
#[tokio::test]
async fn a_peer_with_too_many_proxies_borrows_no_hits() {
    let engine = empty_engine();
    publish(&engine, "", LEASED);
    let served = serve(&engine).await;
    let proxies = u64::try_from(MAX_PEER_STREAMS).unwrap();
    for incarnation in 1..=proxies {
        let mut proxy = ProxyStream::open(&served, incarnation).await;
        assert_eq!(borrow_of(&mut proxy, &incarnation.to_string()).await.granted, 10);
    }
    let mut later = ProxyStream::open(&served, proxies + 1).await;
    let reply = borrow_of(&mut later, "later").await;
    let decision = reply.decision.unwrap();
    assert_eq!((reply.granted, decision.verdict()), (0, CounterVerdict::Allow));
    assert_eq!(decision.remaining, 99, "the request is charged");
    // The leases of the others have expired.
    advance_clock(&engine, Nanos::from_secs(3_600));
    engine.proxies().sweep(engine.clock().steady());
    assert_eq!(borrow_of(&mut later, "later again").await.granted, 10);
}
