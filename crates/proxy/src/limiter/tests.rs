//! A limiter with a real service, whose replies a test writes.

mod memory;

use std::borrow::Cow;
use std::pin::pin;
use std::time::Duration;

use allocation_counter::measure;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::{Check, Limiter, Started, spawn};
use crate::answer::Answer;
use crate::fixtures::service::{PATIENCE, Service, answer};
use crate::fixtures::{
    DENY_AFTER_A_MINUTE, SECOND_US, leased_limit, leased_reply, shared_limit, user,
};
use crate::kernel::decision::{RuleVerdict, Verdict};
use crate::request::{DescriptorEntries, MAX_KEY_BYTES, MAX_REQUEST_BYTES};
use crate::settings::WaitSettings;
use crate::wire::api::counter_decision::Verdict as WireVerdict;
use crate::wire::api::rule_reply::Handling;
use crate::wire::api::{self, borrow_result, lease_message, proxy_message};

fn start(limiter: &Limiter, descriptors: &[DescriptorEntries<'_>]) -> Started {
    limiter.start(&Check { domain: "shop", descriptors, wait: DENY_AFTER_A_MINUTE })
}

const ALLOW: api::CounterDecision = api::CounterDecision {
    verdict: WireVerdict::Allow as i32,
    remaining: 1_000,
    reset_after_us: SECOND_US,
    retry_after_us: 0,
};

/// Lends 1,000 hits to the sender of a borrow message.
fn lend() -> lease_message::Message {
    lend_for(30 * SECOND_US)
}

fn lend_for(valid_for_us: u64) -> lease_message::Message {
    let reply = api::BorrowReply {
        decision: Some(ALLOW),
        granted: 1_000,
        kept: 0,
        outstanding_elsewhere: 0,
        valid_for_us,
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
async fn a_delayed_task_runs_once_in_the_limiters_thread() {
    const DELAY: Duration = Duration::from_millis(20);
    let (_service, limiter) = Service::start_with_limiter().await;
    let (sender, ran) = oneshot::channel();
    let began = Instant::now();
    limiter.run_after(DELAY, move || {
        let thread = std::thread::current().name().map(str::to_owned);
        sender.send((thread, began.elapsed())).unwrap();
    });
    let (thread, delay) = timeout(PATIENCE, ran).await.unwrap().unwrap();
    assert_eq!(thread.as_deref(), Some("sluicegate"));
    assert!(DELAY <= delay, "{delay:?}");
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
        assert_eq!((admission.answer.verdict, allocations.count_total), (RuleVerdict::Allow, 0));
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
        [(Verdict::Allow, RuleVerdict::FallbackAllow), (Verdict::Deny, RuleVerdict::FallbackDeny)]
    {
        let wait = WaitSettings { deadline: Duration::from_millis(5), failure };
        let descriptors = [user("ann")];
        let check = Check { domain: "shop", descriptors: &descriptors, wait };
        assert_eq!(answer(limiter.start(&check)).await.verdict, verdict);
    }
}

/// Replies to the next request, which must be for the rule of this user: unlimited, from a row with
/// the user's name as its id.
async fn reply_with_row(service: &mut Service, user: &str) {
    let (id, request) = service.next_request().await;
    let proxy_message::Message::Rule(request) = request else { panic!("{request:?}") };
    assert_eq!(request.entries[0].value, user);
    let row = api::TableRow { table: "customers".to_owned(), id: user.to_owned() };
    let handling = Handling::Unlimited.into();
    let rule = api::RuleReply { handling, rows: vec![row], ..Default::default() };
    service.reply(id, lease_message::Message::Rule(rule)).await;
}

fn rows_changed(id: &str) -> lease_message::Message {
    let row = api::TableRow { table: "customers".to_owned(), id: id.to_owned() };
    lease_message::Message::RowsChanged(api::RowsChanged { rows: vec![row] })
}

#[tokio::test]
async fn a_changed_row_renews_only_the_rules_that_read_it() {
    let (mut service, limiter) = Service::start_with_limiter().await;
    let (ann, bob) = ([user("ann")], [user("bob")]);
    for (name, descriptors) in [("ann", &ann), ("bob", &bob)] {
        let started = start(&limiter, descriptors);
        reply_with_row(&mut service, name).await;
        answer(started).await;
    }
    service.reply(0, rows_changed("ann")).await;
    // The old rule decides until the new one arrives. The rule of another user is not asked for.
    let asked = async {
        loop {
            answer(start(&limiter, &bob)).await;
            answer(start(&limiter, &ann)).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = asked => {}
        () = reply_with_row(&mut service, "ann") => {}
    }
}

#[tokio::test]
async fn a_row_that_changes_during_the_call_is_asked_for_again() {
    let (mut service, limiter) = Service::start_with_limiter().await;
    let ann = [user("ann")];
    let first = start(&limiter, &ann);
    let (id, _) = service.next_request().await;
    service.reply(0, rows_changed("ann")).await;
    let row = api::TableRow { table: "customers".to_owned(), id: "ann".to_owned() };
    let handling = Handling::Unlimited.into();
    let rule = api::RuleReply { handling, rows: vec![row], ..Default::default() };
    service.reply(id, lease_message::Message::Rule(rule)).await;
    answer(first).await;
    let _again = start(&limiter, &ann);
    reply_with_row(&mut service, "ann").await;
}

/// Returns the answer to a request under a shared limit, whose report gets no reply. `None` if the
/// deadline ended before the report arrived.
async fn decide_without_a_share(handling: Handling, deadline: Duration) -> Option<Answer> {
    let (mut service, limiter) = Service::start_with_limiter().await;
    let (descriptors, failure) = ([user("ann")], Verdict::Allow);
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
    let rows = [
        (Handling::Unlimited, RuleVerdict::FallbackAllow),
        (Handling::ForcedDeny, RuleVerdict::Deny),
    ];
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
    let (key, value) = ("x".repeat(MAX_KEY_BYTES + 1), "x".repeat(MAX_REQUEST_BYTES));
    let long_key = [(&*key, Cow::Borrowed("ann"))].into_iter().collect();
    let (many, values) = (vec![user("ann"); 1_001], vec![user(&value[..1_000]); 1_000]);
    let (long, none) = (vec![user(&value)], vec![DescriptorEntries::new()]);
    let keys = vec![[(&key[1..], Cow::Borrowed("ann"))].into_iter().collect(); 8];
    let refused = [vec![long_key], long, none, many, keys];
    for descriptors in &refused {
        let started = start(&limiter, descriptors);
        let Started::Decided(admission) = started else { panic!("it was sent") };
        assert_eq!(admission.answer.verdict, RuleVerdict::FallbackDeny);
    }
    let _waiting = start(&limiter, &values);
    let (_, request) = service.next_request().await;
    assert!(matches!(request, proxy_message::Message::Rule(_)));
}

/// Under Envoy's default limit for headers, one header can be in each descriptor of a route.
#[tokio::test]
async fn nine_descriptors_of_60_kb_reach_the_service() {
    let (mut service, limiter) = Service::start_with_limiter().await;
    let values: Vec<_> = (0..9).map(|number| format!("{number}{}", "x".repeat(60_000))).collect();
    let descriptors: Vec<_> = values.iter().map(|value| user(value)).collect();
    let started = start(&limiter, &descriptors);
    for value in &values {
        let (id, request) = service.next_request().await;
        let proxy_message::Message::Rule(request) = request else { panic!("{request:?}") };
        assert!(request.entries[0].value == *value, "{}", request.entries[0].value.len());
        let counter = vec![api::LeaseEntry { key: "user".to_owned(), value: "#hash".to_owned() }];
        let together = api::RuleReply {
            handling: Handling::AskTogether.into(),
            rule: "shop/user".to_owned(),
            counter,
            ..Default::default()
        };
        service.reply(id, lease_message::Message::Rule(together)).await;
    }
    let (id, request) = service.next_request().await;
    let proxy_message::Message::Check(check) = request else { panic!("{request:?}") };
    let sent = check.descriptors.iter().map(|descriptor| &*descriptor.entries[0].value);
    assert_eq!(sent.collect::<Vec<_>>(), ["#hash"; 9]);
    let decision = api::CheckDecision { allowed: true, ..Default::default() };
    let result = Some(api::check_result::Result::Decision(decision));
    service.reply(id, lease_message::Message::Check(api::CheckResult { result })).await;
    assert_eq!(answer(started).await.verdict, RuleVerdict::Allow);
}

#[tokio::test]
async fn requests_without_memory_get_the_failure_rule_and_are_counted() {
    let (_service, limiter) = Service::start_with_limiter().await;
    let wait = |number: usize| {
        let value = format!("{number}{}", "x".repeat(50_000));
        start(&limiter, &[user(&value)])
    };
    // They and their calls need more than 12 MiB, and the service does not reply.
    let started: Vec<_> = (0..300).map(wait).collect();
    for started in started {
        assert_eq!(answer(started).await.verdict, RuleVerdict::FallbackDeny);
    }
    assert_ne!(limiter.take_refused(), 0);
    assert_eq!(limiter.take_refused(), 0);
    let ended = async {
        while limiter.0.memory.used() != 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, ended).await.expect("the memory of ended requests is free");
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
    assert_eq!(decided, Answer::failed(DENY_AFTER_A_MINUTE.failure));
    assert_eq!(decided.verdict, RuleVerdict::FallbackDeny);
}
