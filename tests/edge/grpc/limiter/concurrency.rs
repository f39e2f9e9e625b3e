//! Tests of concurrency limits of the limiter that proxies embed, over a real connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use sluicegate::engine::Engine;
use sluicegate::engine::proxies::ProxyBucket;
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::decision::{Reason, RuleVerdict, Verdict};
use sluicegate::kernel::units::{Nanos, Revision};
use sluicegate_proxy::settings::WaitSettings;
use sluicegate_proxy::{Admission, Check, Limiter, Started};

use super::{WAIT, admission, engine, entries, limiter, serve, until};
use crate::support::engine::{force, publish_as};
use crate::support::waiting::{now, soon};

pub(super) fn limit(fields: &str) -> String {
    format!("- key: user\n  concurrency: {{{fields}}}\n")
}

fn start(limiter: &Limiter, value: &str, wait: WaitSettings) -> Started {
    limiter.start(&Check { domain: "d", descriptors: &[entries(&[("user", value)])], wait })
}

pub(super) async fn admit(limiter: &Limiter) -> Admission {
    admission(start(limiter, "a", WAIT)).await
}

/// Returns a request with a permit. The share of a limit follows the demand, so it may take a few
/// reports.
pub(super) async fn admitted(limiter: &Limiter) -> Admission {
    soon("a permit", async {
        loop {
            let admission = admit(limiter).await;
            if !admission.permits.is_empty() {
                return admission;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

pub(super) fn release(admission: Admission) {
    admission.permits.release(RequestOutcome::Success.into(), None);
}

/// The buckets that the proxies reported last.
fn reported(engine: &Engine) -> Vec<ProxyBucket> {
    engine.proxies().list().into_iter().flat_map(|proxy| proxy.concurrency).collect()
}

fn in_flight(engine: &Engine) -> u32 {
    reported(engine).iter().map(|bucket| bucket.load.in_flight).sum()
}

/// Counts requests that are in flight, and the most at once.
#[derive(Default)]
struct Upstream {
    now: AtomicU32,
    most: AtomicU32,
    served: AtomicU32,
}

impl Upstream {
    async fn serve(&self) {
        let now = self.now.fetch_add(1, SeqCst) + 1;
        self.most.fetch_max(now, SeqCst);
        self.served.fetch_add(1, SeqCst);
        tokio::time::sleep(Duration::from_millis(2)).await;
        self.now.fetch_sub(1, SeqCst);
    }
}

#[tokio::test]
async fn proxies_together_never_exceed_a_shared_limit() {
    const LIMIT: u32 = 6;
    const CLIENTS: usize = 5;
    const ROUNDS: u32 = 20;
    let engine = engine(&limit("limit: 6"));
    let served = serve(&engine).await;
    let upstreams: [Arc<Upstream>; 3] = Default::default();
    let all = Arc::new(Upstream::default());
    let proxies = [
        limiter(served.address).await,
        limiter(served.address).await,
        limiter(served.address).await,
    ];
    let clients = (0..CLIENTS * proxies.len()).map(|client| {
        let at = client % proxies.len();
        let (proxy, own, all) = (proxies[at].clone(), Arc::clone(&upstreams[at]), all.clone());
        async move {
            // Every client of every proxy is served, so the share follows the demand.
            for _ in 0..ROUNDS {
                let admission = admitted(&proxy).await;
                tokio::join!(own.serve(), all.serve());
                release(admission);
            }
        }
    });
    soon("all requests", futures_util::future::join_all(clients)).await;
    let most = all.most.load(SeqCst);
    assert!((2..=LIMIT).contains(&most), "{most} at once");
    assert!(upstreams.iter().all(|own| own.served.load(SeqCst) == 5 * ROUNDS));
    until("no request in flight", || in_flight(&engine) == 0).await;
    // The whole limit moves to the proxy that needs it.
    let mut held = Vec::new();
    while held.len() < 6 {
        held.push(admitted(&proxies[0]).await);
    }
    assert_eq!(admit(&proxies[0]).await.answer.verdict, RuleVerdict::Deny);
    until("six requests in flight", || in_flight(&engine) == LIMIT).await;
}

#[tokio::test]
async fn a_rejected_request_gets_the_reply_of_the_limit() {
    let reject = "reject: {status: 529, body: busy, retry_after: 2s}";
    let engine = engine(&limit(&format!("limit: 1, mode: local, {reject}")));
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    let held = admit(&proxy).await;
    assert_eq!(held.answer.verdict, RuleVerdict::Allow);
    let answer = admit(&proxy).await.answer;
    assert_eq!((answer.verdict, answer.denied_by.as_deref()), (RuleVerdict::Deny, Some("d.user")));
    let rejection = answer.rejection.unwrap();
    assert_eq!(rejection.reason, Reason::ConcurrencyLimitReached);
    assert_eq!((rejection.reply.status, &*rejection.reply.body), (529, "busy"));
    assert_eq!(rejection.reply.retry_after, Some(Nanos::from_secs(2)));
    release(held);
    assert_eq!(admit(&proxy).await.answer.verdict, RuleVerdict::Allow);
}

#[tokio::test]
async fn each_proxy_has_a_whole_local_limit() {
    let engine = engine(&limit("limit: 2, mode: local"));
    let served = serve(&engine).await;
    for proxy in [limiter(served.address).await, limiter(served.address).await] {
        let _held = (admit(&proxy).await, admit(&proxy).await);
        assert_eq!(admit(&proxy).await.answer.verdict, RuleVerdict::Deny);
    }
}

#[tokio::test]
async fn the_store_counts_each_permit_of_a_strict_limit() {
    let engine = engine(&limit("limit: 3, mode: strict"));
    let served = serve(&engine).await;
    let [one, two] = [limiter(served.address).await, limiter(served.address).await];
    let held = [admitted(&one).await, admitted(&two).await];
    let last = admitted(&one).await;
    for proxy in [&one, &two] {
        assert_eq!(admit(proxy).await.answer.verdict, RuleVerdict::Deny);
    }
    release(last);
    let _next = admitted(&two).await;
    assert_eq!(admit(&one).await.answer.verdict, RuleVerdict::Deny);
    drop(held);
}

#[tokio::test]
async fn waiting_requests_get_permits_in_order_or_are_rejected() {
    let engine = engine(&limit("limit: 1, mode: local, queue: {size: 2, timeout: 10m}"));
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    // The deadline does not include the time in the queue.
    let wait = WaitSettings { deadline: Duration::from_millis(20), failure: Verdict::Deny };
    let held = admit(&proxy).await;
    let waiting = [start(&proxy, "a", wait), start(&proxy, "a", wait)];
    assert!(waiting.iter().all(|started| matches!(started, Started::Waiting(_))));
    let rejection = admit(&proxy).await.answer.rejection.unwrap();
    assert_eq!(rejection.reason, Reason::QueueFull);
    tokio::time::sleep(3 * wait.deadline).await;
    release(held);
    let [first, second] = waiting;
    let first = soon("the first", admission(first)).await;
    assert_eq!(first.answer.verdict, RuleVerdict::Allow);
    // A client that leaves frees its place, and the next one gets the permit.
    drop(second);
    let third = start(&proxy, "a", wait);
    release(first);
    assert_eq!(soon("the third", admission(third)).await.answer.verdict, RuleVerdict::Allow);
}

#[tokio::test]
async fn a_request_gets_the_rules_in_force_after_its_queue() {
    let concurrency = "concurrency: {limit: 1, mode: local, queue: {size: 2, timeout: 10m}}";
    let rate = "rate_limit: {unit: day, requests_per_unit: 100}";
    let engine = engine(&format!("- {{key: user, {rate}, {concurrency}}}\n"));
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    let held = admit(&proxy).await;
    let waiting = start(&proxy, "a", WAIT);
    assert!(matches!(waiting, Started::Waiting(_)));
    for value in ["a", "b"] {
        force(&engine, ("d", &[("user", value)]), Verdict::Deny, Nanos::from_secs(3_600));
    }
    let known = async {
        while admission(start(&proxy, "b", WAIT)).await.answer.verdict == RuleVerdict::Allow {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("the forced decisions", known).await;
    release(held);
    let late = soon("the waiting request", admission(waiting)).await;
    assert_eq!((late.answer.verdict, late.permits.is_empty()), (RuleVerdict::Deny, true));
}

#[tokio::test]
async fn a_descriptor_that_cannot_be_reported_is_rejected() {
    const LEVELS: usize = 5;
    // A longer value would be hashed.
    let value = "x".repeat(256);
    let parent = |depth: usize| format!("{}- key: k\n{0}  descriptors:\n", " ".repeat(2 * depth));
    let indent = " ".repeat(2 * (LEVELS - 1));
    let last = format!("{indent}- {{key: k, concurrency: {{limit: 9}}}}\n");
    let engine = engine(&((0..LEVELS - 1).map(parent).collect::<String>() + &last));
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    let descriptors = [entries(&[("k", &*value); LEVELS])];
    let check = Check { domain: "d", descriptors: &descriptors, wait: WAIT };
    let rejection = admission(proxy.start(&check)).await.answer.rejection.unwrap();
    assert_eq!(rejection.reason, Reason::TooManyBuckets);
}

#[tokio::test]
async fn a_long_value_has_a_bucket() {
    let engine = engine(&limit("limit: 1, mode: local"));
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    let value = "x".repeat(60_000);
    let held = admission(start(&proxy, &value, WAIT)).await;
    assert!(!held.permits.is_empty());
    let rejection = admission(start(&proxy, &value, WAIT)).await.answer.rejection.unwrap();
    assert_eq!(rejection.reason, Reason::ConcurrencyLimitReached);
    let other = admission(start(&proxy, &(value + "x"), WAIT)).await;
    assert!(!other.permits.is_empty());
    until("the report", || reported(&engine).len() == 2).await;
}

#[tokio::test]
async fn a_wait_in_the_queue_ends_with_its_timeout() {
    let engine = engine(&limit("limit: 1, mode: local, queue: {size: 2, timeout: 50ms}"));
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    let _held = admit(&proxy).await;
    let rejection = admit(&proxy).await.answer.rejection.unwrap();
    assert_eq!(rejection.reason, Reason::QueueTimeout);
}

#[tokio::test]
async fn a_limit_in_shadow_mode_rejects_nothing() {
    let concurrency = "{limit: 1, mode: local, queue: {size: 1, timeout: 10m}}";
    let fields = format!("shadow_mode: true, concurrency: {concurrency}");
    let engine = engine(&format!("- {{key: user, {fields}}}\n"));
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    let _held = admit(&proxy).await;
    let over = admit(&proxy).await;
    assert_eq!((over.answer.verdict, over.permits.is_empty()), (RuleVerdict::Allow, true));
}

#[tokio::test]
async fn a_request_denied_by_a_rate_limit_has_no_permit() {
    let both =
        "rate_limit: {unit: day, requests_per_unit: 1}, concurrency: {limit: 1, mode: local}";
    let engine = engine(&format!("- {{key: user, {both}}}\n"));
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    release(admit(&proxy).await);
    for _ in 0..2 {
        let denied = admit(&proxy).await;
        assert_eq!((denied.answer.verdict, denied.permits.is_empty()), (RuleVerdict::Deny, true));
        assert_eq!(denied.answer.rejection, None);
    }
}

#[tokio::test]
async fn dropped_requests_lower_an_adaptive_limit() {
    const START: u32 = 50;
    let adaptive = "adaptive: {algorithm: aimd, min: 1, max: 100}";
    let engine = engine(&limit(&format!("limit: {START}, {adaptive}")));
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    let is_lower = || {
        let reported = reported(&engine);
        reported.first().is_some_and(|bucket| (1..START).contains(&bucket.load.limit))
    };
    let overload = async {
        while !is_lower() {
            let admission = admitted(&proxy).await;
            admission.permits.release(RequestOutcome::Dropped.into(), None);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("a lower limit", overload).await;
}

#[tokio::test]
async fn a_changed_limit_applies_to_the_next_request() {
    let engine = engine(&limit("limit: 1, mode: local"));
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    let _held = admit(&proxy).await;
    assert_eq!(admit(&proxy).await.answer.verdict, RuleVerdict::Deny);
    publish_as(&engine, Revision(2), &limit("limit: 2, mode: local"));
    let _second = admitted(&proxy).await;
    publish_as(&engine, Revision(3), "");
    let _third = soon("no limit", async {
        while admit(&proxy).await.answer.verdict == RuleVerdict::Deny {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn requests_of_proxies_are_counted_by_limit() {
    let engine = engine(&limit("limit: 2, mode: local"));
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    let _held = (admit(&proxy).await, admit(&proxy).await);
    for _ in 0..3 {
        assert_eq!(admit(&proxy).await.answer.verdict, RuleVerdict::Deny);
    }
    let counts = || {
        let rules = engine.rule_decisions();
        let rule = rules.iter().find(|rule| &*rule.path == "d.user").unwrap();
        (rule.counts[0], rule.counts[1])
    };
    until("the report", || counts() == (2, 3)).await;
    until("the load", || in_flight(&engine) == 2).await;
    let usage = engine.concurrency_in_use();
    assert_eq!((usage["d.user"].in_flight, usage["d.user"].limit), (2, 2));
}

#[tokio::test]
async fn a_request_under_both_limits_is_counted_once() {
    let both =
        "rate_limit: {unit: day, requests_per_unit: 2}, concurrency: {limit: 9, mode: local}";
    let engine = engine(&format!("- {{key: user, {both}}}\n"));
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    for _ in 0..3 {
        release(admit(&proxy).await);
    }
    // The report of the permits arrives with the load of their bucket.
    until("the report", || !reported(&engine).is_empty()).await;
    let rules = engine.rule_decisions();
    let rule = rules.iter().find(|rule| &*rule.path == "d.user").unwrap();
    assert_eq!((rule.counts[0], rule.counts[1]), (2, 1));
}

#[tokio::test]
async fn a_strict_limit_of_two_proxies_counts_once_in_metrics() {
    let engine = engine(&limit("limit: 3, mode: strict"));
    let served = serve(&engine).await;
    let [one, two] = [limiter(served.address).await, limiter(served.address).await];
    let _held = [admitted(&one).await, admitted(&two).await];
    until("both loads", || in_flight(&engine) == 2).await;
    let usage = engine.concurrency_in_use();
    assert_eq!((usage["d.user"].in_flight, usage["d.user"].limit), (2, 3));
}

#[tokio::test]
async fn without_the_service_a_share_expires_and_on_store_failure_decides() {
    let limits = "- key: user\n  descriptors:\n\
                  \x20 - {key: closed, concurrency: {limit: 9, on_store_failure: deny}}\n\
                  \x20 - {key: open, concurrency: {limit: 9, on_store_failure: allow}}\n";
    let engine = engine(limits);
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    let admit = async |key: &str| {
        let descriptors = [entries(&[("user", "a"), (key, "b")])];
        let wait = WaitSettings { deadline: Duration::from_secs(1), failure: Verdict::Deny };
        admission(proxy.start(&Check { domain: "d", descriptors: &descriptors, wait })).await
    };
    for key in ["closed", "open"] {
        let known = async {
            while admit(key).await.answer.verdict != RuleVerdict::Allow {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        soon("a share", known).await;
    }
    let began = now();
    served.shut_down().await.unwrap();
    // The share is valid for 5 s, the default of `fleet.share_expiry`. Its last report may be a
    // second old.
    let verdict = admit("closed").await.answer.verdict;
    let may_be_expired = Duration::from_secs(3) <= began.elapsed();
    assert!(
        verdict == RuleVerdict::Allow || may_be_expired,
        "{verdict:?} in {:?}",
        began.elapsed()
    );
    let expired = async {
        while admit("closed").await.answer.verdict != RuleVerdict::Deny {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    soon("the expiry of the share", expired).await;
    let opened = async {
        while admit("open").await.answer.verdict != RuleVerdict::Allow {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    soon("the whole limit", opened).await;
}
