//! Tests of the limiter that proxies embed, over a real connection.

mod concurrency;
mod long_values;
mod redis;
mod tls;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sluicegate::clock::Clock;
use sluicegate::config::hooks::Hooks;
use sluicegate::edge::health::Readiness;
use sluicegate::engine::top_keys::TopKeysQuery;
use sluicegate::engine::{DecisionPolicy, Engine};
use sluicegate::kernel::decision::{RuleVerdict, Verdict};
use sluicegate::kernel::top_keys::TopWindow;
use sluicegate::kernel::units::{Nanos, Revision};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate_proxy::answer::Answer;
use sluicegate_proxy::settings::{LimiterSettings, ProxyIdentity, ServiceSettings, WaitSettings};
use sluicegate_proxy::{
    Admission, Check, DEFAULT_MEMORY_BYTES, DescriptorEntries, Limiter, Started,
};
use tokio::sync::oneshot;

use super::{Served, served_with};
use crate::support::engine::{force, publish_as};
use crate::support::waiting::{PATIENCE, now, soon};

/// Long enough for a busy machine.
const WAIT: WaitSettings = WaitSettings { deadline: PATIENCE, failure: Verdict::Deny };

const LEASED: &str = "- key: user\n  rate_limit: {unit: day, requests_per_unit: 1000, \
                      strategy: fixed_window, mode: leased, max_overshoot: 100}\n";

fn engine(descriptors: &str) -> Arc<Engine> {
    let store = Arc::new(MemoryStore::new(10_000, WhenFull::Deny, [7; 16]));
    let engine = Engine::new(Clock::system(), store, DecisionPolicy::default());
    publish_as(&engine, Revision(1), descriptors);
    Arc::new(engine)
}

async fn serve(engine: &Arc<Engine>) -> Served {
    served_with(Arc::clone(engine), Readiness::Ready, Hooks::default()).await
}

async fn limiter(address: SocketAddr) -> Limiter {
    let settings = LimiterSettings {
        service: ServiceSettings { address: address.to_string(), tls: None },
        identity: ProxyIdentity { name: "edge-1".into(), software: "test/1".into() },
        memory_bytes: DEFAULT_MEMORY_BYTES,
    };
    let limiter = Limiter::start_thread(settings, |_| {}, |_, _| {}).unwrap();
    let connected = async {
        while !limiter.is_connected() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("the connection", connected).await;
    limiter
}

fn entries<'e>(pairs: &[(&'e str, &'e str)]) -> DescriptorEntries<'e> {
    pairs.iter().map(|(key, value)| (*key, Cow::Borrowed(*value))).collect()
}

async fn decide_all(limiter: &Limiter, descriptors: &[&[(&str, &str)]]) -> Answer {
    decide_with(limiter, descriptors, WAIT).await
}

async fn decide_with(
    limiter: &Limiter,
    descriptors: &[&[(&str, &str)]],
    wait: WaitSettings,
) -> Answer {
    let descriptors: Vec<DescriptorEntries<'_>> =
        descriptors.iter().map(|pairs| entries(pairs)).collect();
    let check = Check { domain: "d", descriptors: &descriptors, wait };
    admission(limiter.start(&check)).await.answer
}

/// Waits for the answer.
async fn admission(started: Started) -> Admission {
    match started {
        Started::Decided(admission) => admission,
        Started::Waiting(pending) => {
            let (sender, receiver) = oneshot::channel();
            pending.wake_with(Box::new(move || sender.send(()).unwrap()));
            receiver.await.unwrap();
            pending.take().unwrap()
        }
    }
}

async fn decide(limiter: &Limiter, value: &str) -> Answer {
    // The server runs in this thread, too.
    tokio::task::yield_now().await;
    decide_all(limiter, &[&[("user", value)]]).await
}

async fn allowed(limiter: &Limiter, value: &str, requests: usize) -> usize {
    let mut allowed = 0;
    for _ in 0..requests {
        allowed += usize::from(decide(limiter, value).await.verdict == RuleVerdict::Allow);
    }
    allowed
}

/// Calls `check` until it returns `true`.
async fn until(name: &str, check: impl Fn() -> bool) {
    let checked = async {
        while !check() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(name, checked).await;
}

#[tokio::test]
async fn three_proxies_allow_the_limit_less_unspent_hits() {
    let engine = engine(LEASED);
    let served = serve(&engine).await;
    let proxies = [
        limiter(served.address).await,
        limiter(served.address).await,
        limiter(served.address).await,
    ];
    let [one, two, three] = &proxies;
    let all =
        tokio::join!(allowed(one, "a", 600), allowed(two, "a", 600), allowed(three, "a", 600));
    let total = all.0 + all.1 + all.2;
    // Hits of a lease were charged. At most `max_overshoot` of them are unspent.
    assert!((900..=1_000).contains(&total), "{all:?}");
    let answer = decide(one, "a").await;
    assert_eq!(answer.verdict, RuleVerdict::Deny);
    assert_eq!(answer.denied_by.as_deref(), Some("d.user"));
    assert!(answer.retry_after.unwrap() <= Duration::from_secs(86_400));
    assert_eq!(answer.reported.unwrap().requests, 1_000);
}

#[tokio::test]
async fn a_leased_request_is_decided_without_a_call() {
    let engine = engine(LEASED);
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    allowed(&proxy, "a", 100).await;
    let messages = || engine.proxies().list()[0].messages;
    let (began, before) = (now(), messages());
    let decided = allowed(&proxy, "a", 20).await;
    assert_eq!(decided, 20);
    // At most one refill, and one report a second.
    let (calls, reports) = (messages() - before, 1 + began.elapsed().as_secs());
    assert!(calls <= 3 + reports, "{calls} calls for 20 requests");
}

#[tokio::test]
async fn a_strict_rule_is_decided_by_the_service() {
    let engine = engine("- key: user\n  rate_limit: {unit: day, requests_per_unit: 3}\n");
    let served = serve(&engine).await;
    let proxies = [limiter(served.address).await, limiter(served.address).await];
    let mut verdicts = Vec::new();
    for proxy in [&proxies[0], &proxies[1], &proxies[0], &proxies[1]] {
        verdicts.push(decide(proxy, "a").await.verdict);
    }
    assert_eq!(
        verdicts,
        [RuleVerdict::Allow, RuleVerdict::Allow, RuleVerdict::Allow, RuleVerdict::Deny]
    );
}

#[tokio::test]
async fn descriptors_that_depend_on_each_other_are_checked_together() {
    let engine = engine("");
    let limits = "charge: all_or_nothing\ndescriptors:\n\
                  - key: user\n  rate_limit: {unit: day, requests_per_unit: 2}\n\
                  - key: path\n  rate_limit: {unit: day, requests_per_unit: 1}\n";
    let (config, _) = sluicegate::config::load(
        [("a.yaml", format!("domain: d\n{limits}").as_bytes())],
        Revision(2),
        false,
    )
    .unwrap();
    engine.publish(Arc::new(config));
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    let both: [&[(&str, &str)]; 2] = [&[("user", "a")], &[("path", "/")]];
    assert_eq!(decide_all(&proxy, &both).await.verdict, RuleVerdict::Allow);
    assert_eq!(decide_all(&proxy, &both).await.verdict, RuleVerdict::Deny);
    // The denied check charged neither limit, so one hit of the user is left.
    assert_eq!(decide(&proxy, "a").await.verdict, RuleVerdict::Allow);
    assert_eq!(decide(&proxy, "a").await.verdict, RuleVerdict::Deny);
}

/// Publishes a limit, and returns the time until the proxy denies by it.
async fn time_until_applied(engine: &Engine, proxy: &Limiter, requests: u32) -> Duration {
    let limit = LEASED.replace("1000", &requests.to_string()).replace("100}", "2}");
    publish_as(engine, Revision(u64::from(requests)), &limit);
    let changed_at = now();
    let applied = async {
        loop {
            let answer = decide(proxy, "a").await;
            let shown = answer.reported.map(|limit| limit.requests);
            if (answer.verdict, shown) == (RuleVerdict::Deny, Some(requests)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("the new limit", applied).await;
    changed_at.elapsed()
}

#[tokio::test]
async fn a_changed_limit_applies_within_a_second() {
    let engine = engine(LEASED);
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    assert_eq!(allowed(&proxy, "a", 50).await, 50);
    // A busy machine may delay some of the changes.
    let mut delays = Vec::new();
    while delays.iter().all(|delay| Duration::from_secs(1) <= *delay) {
        assert!(delays.len() < 10, "{delays:?}");
        let requests = 20 + u32::try_from(delays.len()).unwrap();
        delays.push(time_until_applied(&engine, &proxy, requests).await);
    }
    publish_as(
        &engine,
        Revision(99),
        "- key: other\n  rate_limit: {unit: day, requests_per_unit: 1}\n",
    );
    let changed_at = now();
    while decide(&proxy, "a").await.verdict == RuleVerdict::Deny {
        assert!(changed_at.elapsed() < PATIENCE, "the removed rule is still in force");
    }
}

#[tokio::test]
async fn an_operator_can_force_the_decisions_of_proxies() {
    let engine = engine(LEASED);
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    assert_eq!(allowed(&proxy, "a", 10).await, 10);
    let hour = Nanos::from_secs(3_600);
    force(&engine, ("d", &[("user", "a")]), Verdict::Deny, hour);
    let forced_at = now();
    while decide(&proxy, "a").await.verdict == RuleVerdict::Allow {
        assert!(forced_at.elapsed() < PATIENCE, "the forced decision does not apply");
    }
}

#[tokio::test]
async fn decisions_of_proxies_are_counted_by_rule_and_key() {
    let engine = engine(LEASED);
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    let allowed = u64::try_from(allowed(&proxy, "a", 1_200).await).unwrap();
    let counts = || {
        let rules = engine.rule_decisions();
        let rule = rules.iter().find(|rule| &*rule.path == "d.user").unwrap();
        (rule.counts[0], rule.counts[1])
    };
    until("the report", || counts() == (allowed, 1_200 - allowed)).await;
    let query = TopKeysQuery { window: TopWindow::Hour, max: 10, domain: None, path: None };
    let top = engine.top_keys(&query);
    assert_eq!(top.all.rows[0].hits, 1_200);
    assert_eq!(top.denied.rows[0].hits, 1_200 - allowed);
    let connected = engine.proxies().list();
    let identity = &connected[0].identity;
    assert_eq!((&*identity.name, &*identity.software), ("edge-1", "test/1"));
}

#[tokio::test]
async fn unmatched_keys_need_one_call_for_all_values() {
    let engine = engine(LEASED);
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    let unlimited = async |value: &str| decide_all(&proxy, &[&[("path", value)]]).await;
    assert_eq!(unlimited("/0").await, Answer::unlimited());
    let messages = || engine.proxies().list()[0].messages;
    let (began, before) = (now(), messages());
    for number in 1..50 {
        assert_eq!(unlimited(&format!("/{number}")).await, Answer::unlimited());
    }
    let calls = messages() - before;
    // Only usage reports: one a second, with two messages at most.
    let seconds = 1 + began.elapsed().as_secs();
    assert!(calls <= 3 + 2 * seconds, "{calls} calls");
}

#[tokio::test]
async fn without_the_service_leased_hits_are_spent_then_the_failure_rule_decides() {
    let engine = engine(LEASED);
    let served = serve(&engine).await;
    let proxy = limiter(served.address).await;
    assert_eq!(allowed(&proxy, "a", 50).await, 50);
    let (_, leased_hits) = proxy.leased();
    served.shut_down().await.unwrap();
    until("the lost connection", || !proxy.is_connected()).await;
    let wait = |failure| WaitSettings { deadline: Duration::from_millis(20), failure };
    let mut spent = 0;
    loop {
        let answer = decide_with(&proxy, &[&[("user", "a")]], wait(Verdict::Deny)).await;
        match answer.verdict {
            RuleVerdict::Allow => spent += 1,
            verdict => {
                assert_eq!(verdict, RuleVerdict::FallbackDeny);
                break;
            }
        }
    }
    assert!(spent <= leased_hits, "{spent} of {leased_hits}");
    let answer = decide_with(&proxy, &[&[("user", "a")]], wait(Verdict::Allow)).await;
    assert_eq!(answer.verdict, RuleVerdict::FallbackAllow);
    let unknown = decide_with(&proxy, &[&[("user", "new")]], wait(Verdict::Deny)).await;
    assert_eq!(unknown.verdict, RuleVerdict::FallbackDeny);
}
