//! A limiter with a real service, whose replies a test writes.

use std::borrow::Cow;
use std::pin::pin;
use std::time::Duration;

use allocation_counter::measure;
use tokio::sync::oneshot;

use super::{Check, Limiter, Started, background, spawn};
use crate::answer::{Answer, Verdict};
use crate::fixtures::service::{Service, answer};
use crate::fixtures::{
    DENY_AFTER_A_MINUTE, SECOND_US, leased_limit, leased_reply, shared_limit, user,
};
use crate::request::{DescriptorEntries, MAX_TEXT_BYTES};
use crate::settings::{FailureRule, WaitSettings};
use crate::wire::api::counter_decision::Verdict as WireVerdict;
use crate::wire::api::rule_reply::Handling;
use crate::wire::api::{self, borrow_result, lease_message, proxy_message};

fn start(limiter: &Limiter, descriptors: &[DescriptorEntries<'_>]) -> Started {
    limiter.start(&Check { domain: "shop", descriptors, wait: DENY_AFTER_A_MINUTE })
}

/// Lends 1,000 hits to the sender of a borrow message.
fn lend() -> lease_message::Message {
    let decision = api::CounterDecision {
        verdict: WireVerdict::Allow.into(),
        remaining: 1_000,
        reset_after_us: SECOND_US,
        retry_after_us: 0,
    };
    let reply = api::BorrowReply {
        decision: Some(decision),
        granted: 1_000,
        kept: 0,
        outstanding_elsewhere: 0,
        valid_for_us: 30 * SECOND_US,
    };
    let result = Some(borrow_result::Result::Applied(reply));
    lease_message::Message::Borrow(api::BorrowResult { result })
}

/// Replies to all rule requests and borrows.
async fn serve_leases(mut service: Service) {
    loop {
        let (id, request) = service.next_request().await;
        let reply = match request {
            proxy_message::Message::Rule(request) => {
                let value = &request.entries[0].value;
                lease_message::Message::Rule(leased_reply(value, vec![leased_limit("")]))
            }
            proxy_message::Message::Borrow(_) => lend(),
            other => panic!("{other:?}"),
        };
        service.reply(id, reply).await;
    }
}

#[tokio::test]
async fn leased_hits_need_no_allocation_and_no_call() {
    const REQUESTS: u64 = 20;
    let (service, limiter) = Service::start_with_limiter().await;
    tokio::spawn(serve_leases(service));
    let descriptors = [user("ann"), user("bob")];
    let mut attempts = 0;
    while limiter.leased().0 < descriptors.len() || limiter.leased().1 <= 1_000 {
        answer(start(&limiter, &descriptors)).await;
        attempts += 1;
        assert!(attempts < 100, "{:?}", limiter.leased());
    }
    let (_, before) = limiter.leased();
    for _ in 0..REQUESTS {
        let mut started = None;
        let allocations = measure(|| started = Some(start(&limiter, &descriptors)));
        let Some(Started::Decided(admission)) = started else { panic!("{started:?}") };
        assert_eq!((admission.answer.verdict, allocations.count_total), (Verdict::Allow, 0));
    }
    assert_eq!(before - limiter.leased().1, 2 * REQUESTS);
}

#[tokio::test]
async fn requests_that_wait_for_one_rule_share_one_call() {
    let (mut service, limiter) = Service::start_with_limiter().await;
    let descriptors = [user("ann")];
    let waiting: Vec<Started> = (0..50).map(|_| start(&limiter, &descriptors)).collect();
    let (id, request) = service.next_request().await;
    assert!(matches!(request, proxy_message::Message::Rule(_)), "{request:?}");
    let unlimited = api::RuleReply { handling: Handling::Unlimited.into(), ..Default::default() };
    // The rule of another descriptor is the next request, so the fifty share one.
    let other = [user("bob")];
    let last = start(&limiter, &other);
    let (other_id, request) = service.next_request().await;
    let proxy_message::Message::Rule(request) = request else { panic!("{request:?}") };
    assert_eq!(request.entries[0].value, "bob");
    for id in [id, other_id] {
        service.reply(id, lease_message::Message::Rule(unlimited.clone())).await;
    }
    for started in waiting.into_iter().chain([last]) {
        assert_eq!(answer(started).await, Answer::unlimited());
    }
    assert!(matches!(start(&limiter, &descriptors), Started::Decided(_)));
}

#[tokio::test]
async fn a_request_without_a_reply_gets_the_failure_rule_at_its_deadline() {
    let (_service, limiter) = Service::start_with_limiter().await;
    for (failure, verdict) in
        [(FailureRule::Allow, Verdict::FallbackAllow), (FailureRule::Deny, Verdict::FallbackDeny)]
    {
        let wait = WaitSettings { deadline: Duration::from_millis(5), failure };
        let descriptors = [user("ann")];
        let check = Check { domain: "shop", descriptors: &descriptors, wait };
        assert_eq!(answer(limiter.start(&check)).await.verdict, verdict);
    }
}

/// Returns the answer to a request under a shared limit, whose report gets no reply. `None` if the
/// deadline ended before the report arrived.
async fn decide_without_a_share(handling: Handling, deadline: Duration) -> Option<Answer> {
    let (mut service, limiter) = Service::start_with_limiter().await;
    let (descriptors, failure) = ([user("ann")], FailureRule::Allow);
    let wait = WaitSettings { deadline, failure };
    let started = limiter.start(&Check { domain: "shop", descriptors: &descriptors, wait });
    let mut decided = pin!(answer(started));
    let (id, _) = tokio::select! {
        biased;
        request = service.next_request() => request,
        _ = &mut decided => return None,
    };
    let concurrency = Some(shared_limit());
    let rule = api::RuleReply { handling: handling.into(), concurrency, ..Default::default() };
    service.reply(id, lease_message::Message::Rule(rule)).await;
    let (_, report) = tokio::select! {
        biased;
        request = service.next_request() => request,
        _ = &mut decided => return None,
    };
    assert!(matches!(report, proxy_message::Message::Report(_)), "{report:?}");
    Some(decided.await)
}

#[tokio::test]
async fn without_a_share_in_time_the_failure_rule_decides_for_the_limit() {
    let rows =
        [(Handling::Unlimited, Verdict::FallbackAllow), (Handling::ForcedDeny, Verdict::Deny)];
    for (handling, verdict) in rows {
        let mut decided = None;
        // A busy machine needs a longer deadline for the messages before the report.
        for doublings in 0..8 {
            let deadline = Duration::from_millis(250 << doublings);
            decided = decide_without_a_share(handling, deadline).await;
            if decided.is_some() {
                break;
            }
        }
        let decided = decided.expect("a report before the deadline");
        assert_eq!((decided.verdict, decided.rejection), (verdict, None));
    }
}

#[tokio::test]
async fn requests_that_the_service_refuses_are_not_sent() {
    let (mut service, limiter) = Service::start_with_limiter().await;
    let long = "x".repeat(MAX_TEXT_BYTES + 1);
    let many = vec![user("ann"); 1_001];
    let several = vec![user(&long[1..]); 8];
    let refused = [vec![user(&long)], vec![DescriptorEntries::new()], many, several];
    for descriptors in &refused {
        let started = start(&limiter, descriptors);
        let Started::Decided(admission) = started else { panic!("it was sent") };
        assert_eq!(admission.answer.verdict, Verdict::FallbackDeny);
    }
    let longest: [DescriptorEntries<'_>; 1] =
        [[("user", Cow::Borrowed(&long[1..]))].into_iter().collect()];
    let _started = start(&limiter, &longest);
    let (_, request) = service.next_request().await;
    assert!(matches!(request, proxy_message::Message::Rule(_)));
}

#[tokio::test]
async fn after_a_panic_the_failure_rule_decides() {
    let (panics, begin) = oneshot::channel::<()>();
    let pending = spawn(DENY_AFTER_A_MINUTE, async move {
        let _failed = begin.await;
        panic!("a planted panic");
    });
    drop(panics);
    let decided = answer(Started::Waiting(pending)).await;
    assert_eq!(decided, background::failed(DENY_AFTER_A_MINUTE));
    assert_eq!(decided.verdict, Verdict::FallbackDeny);
}
