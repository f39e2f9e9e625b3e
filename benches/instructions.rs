//! Runs checks on one path of the service, so that `scripts/instructions.sh` can count instructions.
//!
//! `instructions PATH CHECKS` with one of these paths:
//! - `memory`: two limits with counters in memory.
//! - `leased`: a limit whose lease balance covers each check.
//! - `redis`: a limit in the Redis at the socket `REDIS_SOCKET`, one call for each check.
//! - `permit`: acquire and release a permit of a concurrency limit.
//! - `budget`: reserve and settle in two budgets in memory.
//! - `fair_10` and `fair_10k`: the end of a request and the next request of its customer, at a limit of
//!   64 whose queue has requests of 10 or 10,000 customers.
//! - `fixed` and `table`: one limit in memory, with a number in its rule, or in a table of 10,000 rows.
//!
//! The clock is manual and all random seeds are fixed, so two runs execute nearly the same
//! instructions.

#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use sluicegate::clock::Clock;
use sluicegate::config::load;
use sluicegate::config::tables::{Amount, Loading, RawRow, Table, TableSpec};

use sluicegate::config::prices::TokenCounts;
use sluicegate::engine::budgets::{BudgetUse, RequestUsage, Reserve};
use sluicegate::engine::{AdmissionOutcome, DecisionPolicy, Engine, PermitLifetime, RequestStart};
use sluicegate::kernel::concurrency::limiter::{
    LimiterConfig, LimiterEffect, LimiterEvent, QueueConfig,
};
use sluicegate::kernel::concurrency::{Limiter, RequestOutcome, Requester};
use sluicegate::kernel::decision::{Check, Cost, Descriptor};
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::redis::{RedisOptions, RedisStore, RedisTopology};
use sluicegate::store::{CounterStore as _, Store};

#[path = "support/remote_memory.rs"]
mod remote_memory;

use remote_memory::RemoteMemory;

const MEMORY: &str = "\
- key: api_key
  rate_limit: {requests_per_unit: 400000000, unit: day}
- key: route
  rate_limit: {requests_per_unit: 400000000, unit: day, strategy: gcra}
";
const LEASED: &str = "\
- key: api_key
  rate_limit: {requests_per_unit: 400000000, unit: day, mode: leased, max_overshoot: 0}
";
const REDIS: &str = "\
- key: api_key
  rate_limit: {requests_per_unit: 400000000, unit: day, strategy: gcra}
";
const PERMIT: &str = "\
- key: upstream
  concurrency: {limit: 64, max_duration: 60s, mode: local}
";

const FIXED: &str = "\
- key: customer
  rate_limit: {requests_per_unit: 400000000, unit: day, strategy: gcra}
";
const TABLE: &str = "\
- key: customer
  rate_limit: {requests_per_unit: 1, unit: day, strategy: gcra, from: customers.api}
";

const BUDGET: &str = "\
- key: api_key
  budget: {amount: 1G tokens, unit: day}
- key: route
  budget: {amount: 1G tokens, unit: day}
";

/// The number of different keys.
const KEYS: usize = 64;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (path, checks) = (arguments.next().unwrap(), arguments.next().unwrap().parse().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        match path.as_str() {
            "memory" => {
                let engine = engine(memory(), MEMORY);
                decide(&engine, &["api_key", "route"], checks).await;
            }
            "leased" => leased(checks).await,
            "redis" => redis(checks).await,
            "permit" => permit(checks).await,
            "fair_10" => fair(10, checks),
            "fair_10k" => fair(10_000, checks),
            "budget" => budget(checks).await,
            "fixed" => decide(&engine(memory(), FIXED), &["customer"], checks).await,
            "table" => {
                let engine = engine(memory(), TABLE);
                engine.publish_tables(Arc::from([Arc::new(customers())]));
                decide(&engine, &["customer"], checks).await;
            }
            other => panic!("no path {other}"),
        }
    });
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(10_000, WhenFull::Deny, [7; 16]))
}

fn engine(store: Arc<dyn Store>, descriptors: &str) -> Engine {
    let engine =
        Engine::new(Clock::manual(Nanos::from_secs(1_000)), store, DecisionPolicy::default());
    let file = format!("domain: shop\ndescriptors:\n{descriptors}");
    let (config, _) = load([("shop.yaml", file.as_bytes())], Revision(1), false).unwrap();
    engine.publish(Arc::new(config));
    engine
}

/// One descriptor for each key.
fn check<'a>(keys: &[&'a str], value: &'a str, hits: u64) -> Check<'a> {
    let descriptor = |&key| Descriptor {
        entries: [(key, value)].into_iter().collect(),
        cost: Cost::Charge(Hits(hits)),
        limit: None,
    };
    Check { domain: "shop", descriptors: keys.iter().map(descriptor).collect() }
}

fn values() -> Vec<String> {
    (0..KEYS).map(|number| format!("client-{number}")).collect()
}

async fn decide(engine: &Engine, keys: &[&str], checks: usize) {
    let values = values();
    for number in 0..checks {
        let decision = engine.decide(&check(keys, &values[number % KEYS], 1)).await;
        std::hint::black_box(decision.unwrap());
    }
}

fn customers() -> Table {
    let plan = [("api".into(), Amount::from_number(400_000_000))];
    let plans = [("gold".into(), plan.into())];
    let spec = Arc::new(TableSpec::new("customers", plans.into(), 10).unwrap());
    let mut loading = Loading::new(spec, None);
    for number in 0..10_000 {
        let id = format!("client-{number}").into();
        let row = RawRow { id, plan: Some("gold".into()), ..RawRow::default() };
        loading.add(Ok(row), &|_, _| Ok(())).unwrap();
    }
    loading.finish().unwrap().0
}

async fn leased(checks: usize) {
    let store = RemoteMemory(MemoryStore::new(10_000, WhenFull::Deny, [7; 16]));
    let engine = engine(Arc::new(store), LEASED);
    for value in values() {
        // Large demand makes the lease far larger than the hits charged below.
        for hits in [1_000_000, 1_000_000, 1, 1] {
            engine.decide(&check(&["api_key"], &value, hits)).await.unwrap();
        }
    }
    decide(&engine, &["api_key"], checks).await;
}

async fn redis(checks: usize) {
    let socket = std::env::var_os("REDIS_SOCKET").unwrap();
    let (store, connection) = RedisStore::new(RedisOptions {
        call_timeout: std::time::Duration::from_secs(60),
        jitter_seed: 7,
        ..RedisOptions::new(RedisTopology::Unix(socket.into()))
    });
    tokio::spawn(connection);
    while store.current_failure().is_some() {
        tokio::task::yield_now().await;
    }
    decide(&engine(Arc::new(store), REDIS), &["api_key"], checks).await;
}

fn fair(customers: u64, turns: usize) {
    let timeout = Nanos::from_secs(3_600);
    let queue = Some(QueueConfig { size: 40_000, timeout });
    let fair_keys = Some(20_000);
    let config = LimiterConfig { queue, fair_keys, ..LimiterConfig::fixed(64) };
    let (mut limiter, now) = (Limiter::new(&config, 0), Nanos::from_secs(1_000));
    let (mut permits, mut waiting) = (VecDeque::new(), HashMap::new());
    let acquire = |limiter: &mut Limiter, waiting: &mut HashMap<_, _>, customer: u64| {
        // The hashes of customers have no order.
        let by = Requester::of_customer(0, customer.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1);
        let event = LimiterEvent::Acquire { lifetime: None, timeout, by };
        match limiter.step(now, event)[..] {
            [LimiterEffect::Admit(permit)] => Some((permit, customer)),
            [LimiterEffect::Queue(ticket)] => {
                waiting.insert(ticket, customer);
                None
            }
            ref other => panic!("{other:?}"),
        }
    };
    for request in 0..(3 * customers).max(80) {
        permits.extend(acquire(&mut limiter, &mut waiting, request % customers + 1));
    }
    for _ in 0..turns {
        let (permit, customer) = permits.pop_front().unwrap();
        let event = LimiterEvent::Release { permit, outcome: RequestOutcome::Success, rtt: None };
        let [LimiterEffect::Wake(ticket, permit)] = limiter.step(now, event)[..] else { panic!() };
        permits.push_back((permit, waiting.remove(&ticket).unwrap()));
        acquire(&mut limiter, &mut waiting, customer);
    }
}

async fn permit(checks: usize) {
    let engine = Arc::new(engine(memory(), PERMIT));
    let values = values();
    for number in 0..checks {
        let check = check(&["upstream"], &values[number % KEYS], 1);
        let AdmissionOutcome::Decided(_, permits) = engine.admit(&check, None).await.unwrap()
        else {
            panic!("the limit is far away")
        };
        permits.release(RequestOutcome::Success, None);
    }
}

async fn budget(checks: usize) {
    let engine = engine(memory(), BUDGET);
    let values = values();
    for number in 0..checks {
        let check = check(&["api_key", "route"], &values[number % KEYS], 1);
        let id = &*format!("request-{number:08}");
        let reserve = Reserve { id, covered: &check, tokens: Some(1_000) };
        let without_permits = &Check { domain: "shop", descriptors: [].into_iter().collect() };
        let budgets = BudgetUse::Reserve(reserve);
        let start = RequestStart { covered: without_permits, budgets };
        let lifetime = PermitLifetime::UntilReleased;
        let admitted = engine.admit_request(start, &check, None, lifetime).await.unwrap();
        assert!(matches!(admitted, AdmissionOutcome::Decided(..)), "the budgets are large");
        let tokens = TokenCounts { any: 700, ..TokenCounts::default() };
        engine.settle(&check, id, RequestUsage::Tokens(tokens), None).await.unwrap();
    }
}
