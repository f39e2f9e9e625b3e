//! Leased limits in the whole service: server CPU, Redis CPU, and the used share of a limit.
//!
//! A server that leases from Redis is compared with a server that counts in memory. The load is
//! 1,000 keys with 128 checks in flight. Lease sizes follow demand, so a server warms up for as
//! long as it is measured.
//!
//! A row is one limit and one distribution of hits. Its columns:
//! - `memory`, `leased`, `ratio`: server CPU per check in microseconds. Memory is measured before
//!   and after the leased server.
//! - `calls`, `messages`: script calls and lease messages per check.
//! - `forced`: the fewest messages per check that are possible.
//! - `Redis us`, `idle`: Redis CPU per check, and the idle part of it.
//! - `decisions`: decisions per second.
//! - `used`: hits allowed, divided by the smaller of hits earned and hits requested.
//! - `strict`: `used` of an unleased limit with the same checks, for 100 requests per unit only.
//!
//! A key needs one message per lease term. It needs one more each time its allowed hits reach the
//! budget plus the largest check, because a message cannot bring more.
//!
//! The header's bounds apply to 10,000 requests per unit and more, where the budget exceeds a
//! hundred hits. With 100 requests the budget is 10 hits, and the bound is one call per decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;

use super::{
    CONNECTIONS, Channel, IN_FLIGHT, KEYS, RateLimitServiceClient, Runtime, Server, Store, median,
    question, resp, tokio,
};

const ASKED: u64 = 60_000;
const TURNS: usize = 5;
/// `max_overshoot` in percent of the limit.
const OVERSHOOT: u64 = 10;
/// Lifetime of a lease in seconds, for limits per second and per minute.
const TERM: f64 = 30.0;

/// Hits per check.
#[derive(Clone, Copy, Debug)]
enum Cost {
    One,
    /// 1 hit in half of the checks, 2 hits in a quarter, and so on up to 64.
    HeavyTailed,
}

/// Results of a turn: averages per check, and totals from `took` on.
struct Turn {
    cpu: f64,
    calls: f64,
    messages: f64,
    redis: f64,
    took: f64,
    /// Hits requested.
    asked: f64,
    admitted: f64,
}

pub(crate) fn run(store: &Store) {
    let client = tokio(1);
    println!(
        "{:<28} {:>7} {:>7} {:>6} {:>8} {:>9} {:>9} {:>9} {:>7} {:>9} {:>6} {:>6}",
        "leased",
        "memory",
        "leased",
        "ratio",
        "calls",
        "messages",
        "forced",
        "Redis us",
        "idle",
        "decisions",
        "used",
        "strict"
    );
    println!("{:<28} {:>22} {:>8} {:>29} {:>17}", "bound", "1.10", "0.02", "0.1", "a second");
    for unit in ["second", "minute"] {
        for requests in [100, 10_000, 1_000_000] {
            for cost in [Cost::One, Cost::HeavyTailed] {
                row(store, &client, unit, requests, cost);
            }
        }
    }
}

fn row(store: &Store, client: &Runtime, unit: &str, requests: u64, cost: Cost) {
    resp::Client::connect(&store.socket()).unwrap().call(&["FLUSHALL"]);
    let limits = |mode: &str| {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "domain: shop\ndescriptors:\n- key: api_key\n  rate_limit: {{requests_per_unit: {requests}, \
             unit: {unit}, strategy: gcra{mode}}}\n"
        );
        std::fs::write(dir.path().join("shop.yaml"), text).unwrap();
        dir
    };
    let (plain, leasing) =
        (limits(""), limits(&format!(", mode: leased, max_overshoot: {OVERSHOOT}%")));
    let memory = Server::start(plain.path(), &["--store-url", "memory"]);
    let flags = ["--store-url", &store.url(), "--store-timeout", "10s"];
    let leased = Server::start(leasing.path(), &flags);
    let turns = |server: &Server, turns: usize| -> Vec<Turn> {
        (0..turns).map(|_| turn(store, client, server, cost)).collect()
    };
    // Without a pause between the turns, so that learned lease sizes stay valid. Memory is measured
    // before and after, so that other load on the machine affects both.
    let before = turns(&memory, TURNS);
    // Redis has work once a second even without clients.
    let (idle, began) = (store.cpu_micros(), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let idle = (store.cpu_micros() - idle) / began.elapsed().as_secs_f64();
    let warm = turns(&leased, TURNS);
    let its = turns(&leased, TURNS);
    let after = turns(&memory, TURNS);
    drop(leased);
    let of = |turns: &[Turn], what: fn(&Turn) -> f64| median(turns.iter().map(what));
    let both = median(before.iter().chain(&after).map(|turn| turn.cpu));
    let (took, hits) = (of(&its, |turn| turn.took), of(&its, |turn| turn.admitted));
    let budget = (requests * OVERSHOOT / 100) as f64;
    let forced =
        (hits / (budget + f64::from(cost.largest()))).max(KEYS as f64 * took / TERM) / ASKED as f64;
    let used = |turns: &[Turn]| {
        let sum = |what: fn(&Turn) -> f64| turns.iter().map(what).sum::<f64>();
        let period = if unit == "second" { 1.0 } else { 60.0 };
        let earned = (KEYS * requests) as f64 * (1.0 + sum(|turn| turn.took) / period);
        sum(|turn| turn.admitted) / earned.min(sum(|turn| turn.asked))
    };
    let strict = if requests == 100 {
        resp::Client::connect(&store.socket()).unwrap().call(&["FLUSHALL"]);
        let strict = Server::start(plain.path(), &flags);
        format!("{:.3}", used(&turns(&strict, 2 * TURNS)))
    } else {
        String::new()
    };
    println!(
        "{:<28} {both:>7.2} {:>7.2} {:>6.2} {:>8.4} {:>9.4} {forced:>9.4} {:>9.3} {:>7.3} {:>9.0} {:>6.3} {strict:>6}",
        format!("{requests} a {unit}, {}", cost.name()),
        of(&its, |turn| turn.cpu),
        of(&its, |turn| turn.cpu) / both,
        of(&its, |turn| turn.calls),
        of(&its, |turn| turn.messages),
        of(&its, |turn| turn.redis),
        idle * took / ASKED as f64,
        ASKED as f64 / took,
        used(&warm.into_iter().chain(its).collect::<Vec<_>>()),
    );
}

/// Script calls since Redis started, from all clients.
fn scripts(store: &Store) -> f64 {
    let mut client = resp::Client::connect(&store.socket()).unwrap();
    let stats = client.call(&["INFO", "commandstats"]).text();
    let of = |name: &str| {
        let rest = stats.split(&format!("cmdstat_{name}:calls=")).nth(1);
        rest.map_or(0.0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    };
    of("evalsha") + of("eval")
}

/// Lease messages sent by the server. Each one is about one key.
fn messages(server: &Server) -> f64 {
    server.metric("sluicegate_lease_messages_total") as f64
}

impl Cost {
    const fn name(self) -> &'static str {
        match self {
            Self::One => "1 hit",
            Self::HeavyTailed => "heavy-tailed",
        }
    }

    const fn largest(self) -> u32 {
        match self {
            Self::One => 1,
            Self::HeavyTailed => 64,
        }
    }

    fn hits(self, number: u64) -> u32 {
        let rolled = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let rolled = (rolled ^ rolled >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        match self {
            Self::One => 1,
            Self::HeavyTailed => 1 << rolled.leading_zeros().min(6),
        }
    }
}

fn turn(store: &Store, client: &Runtime, server: &Server, cost: Cost) -> Turn {
    // Outside of the CPU measurement, because INFO itself costs Redis CPU.
    let (calls, said) = (scripts(store), messages(server));
    let (cpu, redis) = (server.cpu_ticks(), store.cpu_micros());
    let began = Instant::now();
    let (asked, admitted) = client.block_on(ask_all(server, cost));
    let took = began.elapsed().as_secs_f64();
    let (cpu, redis) = (server.cpu_ticks() - cpu, store.cpu_micros() - redis);
    let (calls, said) = (scripts(store) - calls, messages(server) - said);
    let each = |all: f64| all / ASKED as f64;
    Turn {
        cpu: each(cpu as f64 * 10_000.0),
        calls: each(calls),
        messages: each(said),
        redis: each(redis),
        took,
        asked: asked as f64,
        admitted: admitted as f64,
    }
}

/// Sends [`ASKED`] checks, many in flight, and returns the hits requested and allowed.
async fn ask_all(server: &Server, cost: Cost) -> (u64, u64) {
    let counter = || Arc::new(AtomicU64::new(0));
    let (left, all, admitted) = (Arc::new(AtomicU64::new(ASKED)), counter(), counter());
    let ask = |mut client: RateLimitServiceClient<Channel>| {
        let (left, all, admitted) = (Arc::clone(&left), Arc::clone(&all), Arc::clone(&admitted));
        ::tokio::spawn(async move {
            while let Ok(number) = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
                let mut asked = question(number.wrapping_mul(2_654_435_761) % KEYS);
                asked.hits_addend = cost.hits(number);
                let hits = u64::from(asked.hits_addend);
                all.fetch_add(hits, Relaxed);
                let answer = client.should_rate_limit(asked).await.unwrap().into_inner();
                let passed = answer.overall_code == Code::Ok as i32;
                admitted.fetch_add(if passed { hits } else { 0 }, Relaxed);
            }
        })
    };
    let mut asking = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = server.client().await;
        asking.extend((0..IN_FLIGHT / CONNECTIONS).map(|_| ask(client.clone())));
    }
    for asked in asking {
        asked.await.unwrap();
    }
    (all.load(Relaxed), admitted.load(Relaxed))
}
