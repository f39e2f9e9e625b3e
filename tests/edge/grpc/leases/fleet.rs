//! Tests of proxies that lease hits from a real process with a real Redis.

use std::ops::RangeInclusive;

use serde_json::Value;
use sluicegate::clock::Clock;
use sluicegate::kernel::lease::balance::{LeaseBalance, SpendResult};
use sluicegate::kernel::lease::sizer::{LeaseSizing, max_lease};
use sluicegate::kernel::lease::{BorrowReply, BorrowRequest, MessageNumber};
use sluicegate::kernel::rate::{CounterDecision, Headroom};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate_lease_protocol::api::borrow_result::Result as Borrowed;
use sluicegate_lease_protocol::api::counter_decision::Verdict as CounterVerdict;
use sluicegate_lease_protocol::api::proxy_message::Message;
use sluicegate_lease_protocol::api::rule_reply::Handling;
use sluicegate_lease_protocol::api::{
    self, BorrowMessage, ProxyMessage, RateStrategy, UsageReport,
};

use super::client::{ProxyStream, borrow, counter_of};
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

const LIMIT: u32 = 1_000;

const MAX_OVERSHOOT: usize = 100;

fn start(store: &Redis) -> (tempfile::TempDir, Service) {
    let dir = tempfile::tempdir().unwrap();
    let limits = format!(
        "domain: d\ndescriptors:\n- key: k\n  rate_limit: {{unit: day, requests_per_unit: {LIMIT}, \
         mode: leased, max_overshoot: {MAX_OVERSHOOT}}}\n"
    );
    std::fs::write(dir.path().join("d.yaml"), limits).unwrap();
    let flags = ["--store-url", &store.url(), "--store-timeout", "20s"].map(str::to_owned);
    let service = Service::start(dir.path(), &flags).unwrap();
    (dir, service)
}

/// Returns `true` if the replica allows one hit.
fn replica_allows(service: &Service) -> bool {
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap().status == 200
}

/// A proxy that decides from its leased hits.
struct LeasingProxy {
    stream: ProxyStream,
    strategy: Option<RateStrategy>,
    balance: LeaseBalance,
    number: u64,
    messages: u64,
}

impl LeasingProxy {
    async fn connect(service: &Service, incarnation: u64) -> Self {
        let channel = service.door().connect().await.unwrap();
        let mut stream = ProxyStream::connect(channel, incarnation).await;
        let rule = stream.rule("d", &[("k", "v")]).await;
        assert_eq!(rule.handling(), Handling::Leased);
        let limit = rule.leased[0].clone();
        let duration = Nanos(limit.duration_us * 1_000);
        let balance = LeaseBalance::new(LeaseSizing::Learned, duration, max_lease(LIMIT));
        Self { stream, strategy: limit.strategy, balance, number: 0, messages: 0 }
    }

    async fn allows(&mut self, clock: &Clock) -> bool {
        let now = clock.now();
        match self.balance.spend(now, Hits(1)) {
            SpendResult::Spent(_) => return true,
            SpendResult::Denied { .. } => return false,
            SpendResult::NeedsStore => {}
        }
        self.number += 1;
        let request = self.balance.borrow(now, MessageNumber(self.number), Hits(1)).unwrap();
        let message = to_message(request);
        self.messages += 1;
        let Borrowed::Applied(reply) = self.stream.borrow(message, self.strategy.clone()).await
        else {
            panic!("not applied")
        };
        let decision = reply.decision.as_ref().unwrap().verdict();
        self.balance.settle(clock.now(), &from_reply(self.number, &reply));
        decision == CounterVerdict::Allow
    }

    /// Sends a borrow for the counter of each number, then reads all replies.
    async fn borrow_at_once(&mut self, numbers: RangeInclusive<u64>) {
        for number in numbers.clone() {
            let counter = Some(counter_of(&number.to_string(), self.strategy.clone()));
            let message = Message::Borrow(BorrowMessage { counter, ..borrow(number, 1, 5) });
            let id = 100 + number;
            self.stream.send(ProxyMessage { id, message: Some(message) }).await;
        }
        let mut ids = Vec::new();
        for _ in numbers.clone() {
            ids.push(self.stream.next().await.unwrap().unwrap().id);
        }
        ids.sort_unstable();
        assert_eq!(ids, numbers.map(|number| 100 + number).collect::<Vec<_>>());
    }
}

/// The store calls for leases.
fn lease_calls(service: &Service) -> u64 {
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    let name = "sluicegate_lease_calls_total ";
    let count = page.lines().find_map(|line| line.strip_prefix(name));
    count.unwrap().parse().unwrap()
}

fn to_message(request: BorrowRequest) -> BorrowMessage {
    BorrowMessage {
        counter: None,
        number: request.number.0,
        hits: request.hits.0,
        wanted: request.wanted.0,
        demand: request.demand.0,
        balance: request.balance.0,
        returned: request.returned.0,
        last_lease: request.last_lease.0,
    }
}

fn from_reply(number: u64, reply: &api::BorrowReply) -> BorrowReply {
    let decision = reply.decision.as_ref().unwrap();
    let headroom = Headroom {
        remaining: Hits(decision.remaining),
        reset_after: Nanos(decision.reset_after_us * 1_000),
    };
    let retry_after = Nanos(decision.retry_after_us * 1_000);
    BorrowReply {
        number: MessageNumber(number),
        decision: match decision.verdict() {
            CounterVerdict::Allow => CounterDecision::Allow(headroom),
            CounterVerdict::Deny => CounterDecision::Deny { retry_after, headroom },
            other => panic!("{other:?}"),
        },
        granted: Hits(reply.granted),
        kept: Hits(reply.kept),
        outstanding_elsewhere: Hits(reply.outstanding_elsewhere),
        valid_for: Nanos(reply.valid_for_us * 1_000),
    }
}

#[tokio::test]
async fn proxies_and_replica_together_keep_limit_and_overshoot() {
    for_a_day_with_a_minute_left();
    let store = Redis::start();
    let (_limits, service) = start(&store);
    let clock = Clock::system();
    let mut one = LeasingProxy::connect(&service, 7).await;
    let mut two = LeasingProxy::connect(&service, 8).await;
    let mut allowed = [0, 0, 0];
    for _ in 0..600 {
        allowed[0] += usize::from(one.allows(&clock).await);
        allowed[1] += usize::from(two.allows(&clock).await);
        allowed[2] += usize::from(replica_allows(&service));
    }
    let sum: usize = allowed.iter().sum();
    let limit = usize::try_from(LIMIT).unwrap();
    assert!(sum <= limit + MAX_OVERSHOOT, "{allowed:?}");
    assert!(limit - MAX_OVERSHOOT <= sum, "{allowed:?}");
    let calls = one.messages + two.messages;
    assert!(calls < 600, "{calls} messages for 1,200 requests");
}

#[tokio::test]
async fn messages_that_arrive_together_share_store_calls() {
    let store = Redis::start();
    let (_limits, service) = start(&store);
    let mut proxy = LeasingProxy::connect(&service, 7).await;
    // On a busy machine, the messages of an attempt may arrive one by one.
    let mut used = Vec::new();
    for attempt in 0..10 {
        let before = lease_calls(&service);
        proxy.borrow_at_once(1 + 50 * attempt..=50 * (attempt + 1)).await;
        used.push(lease_calls(&service) - before);
        if used.last().is_some_and(|used| *used <= 25) {
            return;
        }
    }
    panic!("{used:?} calls for 50 messages each");
}

/// With two threads, because the wait for the end blocks one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_page_and_metrics_list_the_proxies() {
    let store = Redis::start();
    let (_limits, service) = start(&store);
    let clock = Clock::system();
    let mut proxy = LeasingProxy::connect(&service, 7).await;
    assert!(proxy.allows(&clock).await);
    let usage = UsageReport { leased_keys: 3, leased_hits: 12, ..UsageReport::default() };
    proxy.stream.send(ProxyMessage { id: 0, message: Some(Message::Usage(usage)) }).await;
    proxy.stream.rule("d", &[("k", "w")]).await;
    let page = http1::get(service.admin, "/fleet", &[]).unwrap().text();
    let page: Value = serde_json::from_str(&page).unwrap();
    let [shown] = &page["proxies"].as_array().unwrap()[..] else { panic!("{page}") };
    assert_eq!(["name", "software"].map(|field| &shown[field]), ["edge-1", "envoy-module/0.1.0"]);
    let numbers = ["incarnation", "leased_keys", "leased_hits", "messages"];
    assert_eq!(numbers.map(|field| shown[field].as_u64()), [7, 3, 12, 4].map(Some));
    assert!(shown["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{shown}");
    let series = |name: &str| {
        let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
        page.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
    };
    assert_eq!(series("sluicegate_lease_proxies").as_deref(), Some(" 1"));
    for (kind, count) in [("hello", 1), ("rule", 2), ("borrow", 1), ("usage", 1), ("check", 0)] {
        let name = format!("sluicegate_proxy_messages_total{{kind=\"{kind}\"}}");
        assert_eq!(series(&name), Some(format!(" {count}")), "{kind}");
    }
    drop(proxy);
    until("the end of the proxy", || match series("sluicegate_lease_proxies") {
        Some(count) if count == " 0" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
}
