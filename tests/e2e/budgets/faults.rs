//! Proof that budgets hold while clients, Envoy, a replica and the store are killed.
//!
//! A period is three seconds, as if a month were compressed. The laws are in [`prove`].
#![expect(clippy::print_stdout, reason = "the figures are part of the proof")]

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tempfile::TempDir;

use super::monitor::{Ledger, Monitor, Seen};
use super::provider::{Provider, USED};
use super::traffic::{Traffic, send};
use super::{limits_directory, serve};
use crate::e2e::envoy::{Envoy, Shipped, WhenDown, configured, replace_once};
use crate::support::dice::seed;
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::until;

const CLIENTS: u64 = 200;

/// The amount of the organization in each period.
pub(super) const AMOUNT: u64 = 10_000;

/// The amount of each of its two models in each period.
pub(super) const MODEL_AMOUNT: u64 = 6_000;

/// The tokens that a request reserves: few more than the [`USED`] ones, so that each lost charge shows.
const HELD: u64 = 125;

/// After this time, a hold without a settle expires.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Complete replies between two faults.
const REPLIES: u64 = 60;

/// Requests in flight when something is killed. So the kill hits requests at each step.
const IN_FLIGHT: u64 = 10;

const LIMITS: &str = "
domain: llm
colocate: org
usage: {estimate: max_tokens, at_most: 125 tokens, time_limit: 10s, on_expiry: charge}
descriptors:
- key: org
  budget: {amount: 10k tokens, per: 3s}
  descriptors:
  - {key: model, budget: {amount: 6k tokens, per: 3s}}
- key: afterwards
  rate_limit: {unit: year, requests_per_unit: 10000, on_excess: charge}
";

/// Redis keeps every write that it has acknowledged.
const DURABLE: [&str; 6] = ["--port", "0", "--appendonly", "yes", "--appendfsync", "always"];

/// A fleet of two replicas that share a Redis, behind an Envoy.
struct Fleet {
    way: Shipped,
    limits: TempDir,
    store: Redis,
    killed: Service,
    /// The replica that serves reads. It is never killed.
    steady: Service,
    provider: Provider,
    envoy: Envoy,
}

impl Fleet {
    fn start(way: Shipped) -> Self {
        let (limits, store) = (limits_directory(LIMITS), Redis::start_with(&DURABLE[2..]));
        let replica = || start_replica(&limits, &store, "0");
        let (killed, steady, provider) = (replica(), replica(), Provider::start());
        let envoy = start_envoy(way, &provider, [&killed, &steady]);
        Self { way, limits, store, killed, steady, provider, envoy }
    }

    fn kill_envoy(&mut self, traffic: &Traffic) {
        self.envoy.kill();
        self.envoy = start_envoy(self.way, &self.provider, [&self.killed, &self.steady]);
        traffic.set_ingress(self.envoy.ingress);
    }

    fn kill_replica(&mut self) {
        self.killed.kill();
        let port = self.killed.grpc.port().to_string();
        self.killed = start_replica(&self.limits, &self.store, &port);
    }

    fn kill_store(&mut self) {
        self.store.kill();
        self.store.launch(&DURABLE);
    }

    /// Waits until Envoy has no request and no settle.
    fn wait_until_idle(&self) {
        for gauge in ["http.ingress.downstream_rq_active", "cluster.sluicegate.upstream_rq_active"]
        {
            until(gauge, || match self.envoy.counter(gauge) {
                0 => Ok(()),
                active => Err(active.to_string()),
            })
            .unwrap();
        }
    }
}

fn start_replica(limits: &TempDir, store: &Redis, port: &str) -> Service {
    let store = store.url();
    // The timeout is for a busy machine. A killed store closes its connections, and is noticed at once.
    let flags = ["--listen-grpc-port", port, "--store-timeout", "9s", "--store-url", &store];
    serve(limits.path(), &flags)
}

fn start_envoy(way: Shipped, provider: &Provider, replicas: [&Service; 2]) -> Envoy {
    let replicas = replicas.map(|replica| replica.grpc);
    let mut text = configured(way, provider.address, &replicas, WhenDown::Deny);
    if let Shipped::Budgets = way {
        replace_once(&mut text, ROUTE, &[AFTERWARDS, ROUTE].concat());
    }
    Envoy::start_with(text, replicas.len())
}

const ROUTE: &str = "                        - match: {prefix: /, headers:";

/// A route that counts afterwards: a check of 0 hits, then the tokens of the reply.
const AFTERWARDS: &str = r#"                        - match: {prefix: /burst}
                          route: {cluster: upstream, timeout: 600s}
                          typed_per_filter_config:
                            sluicegate.settle:
                              "@type": type.googleapis.com/envoy.config.route.v3.FilterConfig
                              disabled: true
                            sluicegate.reserve:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              rate_limits:
                                - actions: [{request_headers: {header_name: x-org, descriptor_key: afterwards}}]
                                  hits_addend: {number: 0}
                                - actions: [{request_headers: {header_name: x-org, descriptor_key: afterwards}}]
                                  hits_addend: {format: "%DYNAMIC_METADATA(io.envoy.ai_gateway:llm_input_token)%"}
                                  apply_on_stream_done: true
                                - actions: [{request_headers: {header_name: x-org, descriptor_key: afterwards}}]
                                  hits_addend: {format: "%DYNAMIC_METADATA(io.envoy.ai_gateway:llm_output_token)%"}
                                  apply_on_stream_done: true
"#;

/// Sends all clients at once to the route that counts afterwards. Returns the tokens that the provider
/// served. Each check passes, because the provider replies to none before all have arrived.
fn burst_counted_afterwards(fleet: &Fleet) -> u64 {
    let record = &fleet.provider.record;
    let before = record.served.load(SeqCst);
    record.burst.store(record.arrived.load(SeqCst) + CLIENTS, SeqCst);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ingress = fleet.envoy.ingress;
    let replies = (0..CLIENTS).map(|_| send(ingress, "large", "/burst"));
    let replies = runtime.block_on(futures_util::future::join_all(replies));
    for reply in replies {
        let reply = reply.unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}\n{}", fleet.steady.log());
    }
    let served = record.served.load(SeqCst) - before;
    until("a denial", || {
        match http1::get(ingress, "/burst", &[("x-org", "acme")]).unwrap().status {
            429 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .unwrap();
    served
}

/// Kills each part twice, with many requests at different steps.
fn kill_each_part(fleet: &mut Fleet, traffic: &Traffic, seen: &Seen) {
    for _ in 0..2 {
        for part in 0..3 {
            traffic.wait_for_replies(REPLIES);
            seen.wait_for_holds(IN_FLIGHT);
            match part {
                0 => fleet.kill_replica(),
                1 => fleet.kill_store(),
                _ => fleet.kill_envoy(traffic),
            }
        }
    }
    traffic.wait_for_replies(REPLIES);
}

/// Proves these laws, with estimates that are upper bounds of the costs:
///
/// - In each read, settled and held amounts together are at most the amount, and the excess is 0.
/// - In each period, the settled amount is at most the amount.
/// - All periods together settled at least the tokens that the provider served, and at most the
///   estimate for each request that reached Envoy. The difference is the price of lost usage:
///   aborted replies and expired holds are charged their estimate.
/// - In each period, the organization settled as much as its models together.
/// - No hold is left one second after the time limit of the last request.
fn prove(way: Shipped) {
    let mut fleet = Fleet::start(way);
    if let Shipped::Budgets = way {
        let served = burst_counted_afterwards(&fleet);
        println!(
            "counting afterwards: {served} tokens served of {AMOUNT}, {CLIENTS} clients at once"
        );
        assert_eq!(served, CLIENTS * USED);
        assert!(AMOUNT < served, "counting afterwards must overshoot");
    }
    let before = fleet.provider.record.served.load(SeqCst);
    let monitor = Monitor::start(&fleet.steady);
    let seed = seed();
    let mut traffic = Traffic::start(CLIENTS, fleet.envoy.ingress, seed);
    kill_each_part(&mut fleet, &traffic, monitor.seen());
    traffic.stop();
    fleet.wait_until_idle();
    std::thread::sleep(TIME_LIMIT + Duration::from_secs(1));
    let ledger = monitor.stop();
    let served = fleet.provider.record.served.load(SeqCst) - before;
    report(way, seed, &ledger, served, &traffic);
    assert_eq!(ledger.open_holds, 0, "seed {seed}: {ledger:?}");
    assert_laws(&ledger, served);
}

fn assert_laws(ledger: &Ledger, served: u64) {
    assert_eq!(ledger.violations, Vec::<String>::new());
    let settled: u64 = ledger.periods.values().map(|period| period.org).sum();
    assert!(served <= settled, "{served} served: {ledger:?}");
    for period in ledger.periods.values() {
        assert!(period.org <= AMOUNT, "{ledger:?}");
        assert!(period.models.iter().all(|settled| *settled <= MODEL_AMOUNT), "{ledger:?}");
        assert_eq!(period.org, period.models.iter().sum::<u64>(), "{ledger:?}");
    }
}

fn report(way: Shipped, seed: u64, ledger: &Ledger, served: u64, traffic: &Traffic) {
    let settled: u64 = ledger.periods.values().map(|period| period.org).sum();
    let most = ledger.periods.values().map(|period| period.org).max();
    println!(
        "{way:?}: seed {seed}: {served} tokens served, {settled} settled in {} periods, at most \
         {most:?} of {AMOUNT}; {} expired holds, {} reads; {:?}",
        ledger.periods.len(),
        ledger.expired,
        ledger.reads,
        traffic.counts()
    );
    let counts = traffic.counts();
    let sent = [&counts.completed, &counts.left, &counts.denied, &counts.failed];
    let sent: u64 = sent.iter().map(|count| count.load(SeqCst)).sum();
    assert!(settled <= sent * HELD, "{settled} settled for {sent} requests");
}

#[test]
fn rate_limit_filters_never_exceed_a_budget_through_crashes() {
    prove(Shipped::Budgets);
}

#[test]
fn ext_proc_never_exceeds_a_budget_through_crashes() {
    prove(Shipped::BudgetsExtProc);
}
