//! Leased limits in the whole service: what they cost the server and the Redis, and how much of a limit is used.
//!
//! A server that leases from a Redis against one that counts in its own memory; 1,000 keys, 128 in flight. A
//! row is one limit and one kind of hits: the server's CPU a question against memory's, measured before and
//! after it, the Redis' script calls, the messages in them, as many as there must be, the Redis' CPU a decision, what
//! it takes idle among it and apart, and the share of what the law admitted and was asked for that was admitted.
//! Leases learn from demand, so a server is warmed up for as long as it is measured.
//!
//! There must be a message for each key in a term, and one for each time that its admitted hits came to the
//! budget and the largest question: no message can bring more. Of 10,000 and more the budget is above a hundred hits, and the bounds of the
//! head hold; of 100 it is 10, a decision takes one call at most, and beside the share stands that of `strict`, which
//! was asked the same questions.

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
/// Percent of a limit that may be out.
const OVERSHOOT: u64 = 10;
/// What a lease is good for, in seconds, of a limit a second or a minute.
const TERM: f64 = 30.0;

/// Hits of a question.
#[derive(Clone, Copy, Debug)]
enum Cost {
    One,
    /// 1 of half of the questions, 2 of a quarter, and so on to 64.
    HeavyTailed,
}

/// What a turn came to, for each question.
struct Turn {
    cpu: f64,
    calls: f64,
    messages: f64,
    redis: f64,
    took: f64,
    /// Hits in all.
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
    let memory = Server::start(plain.path(), &["--backend", "memory"]);
    let flags = ["--backend", &store.url(), "--backend-deadline", "10s"];
    let leased = Server::start(leasing.path(), &flags);
    let turns = |server: &Server, turns: usize| -> Vec<Turn> {
        (0..turns).map(|_| turn(store, client, server, cost)).collect()
    };
    // In one go, so that what was learned is not forgotten meanwhile; and memory before and after, so that
    // what else the machine does falls on both.
    let before = turns(&memory, TURNS);
    // What it does once a second whoever asks.
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

/// Script calls since the Redis began, whoever made them.
fn scripts(store: &Store) -> f64 {
    let mut client = resp::Client::connect(&store.socket()).unwrap();
    let stats = client.call(&["INFO", "commandstats"]).text();
    let of = |name: &str| {
        let rest = stats.split(&format!("cmdstat_{name}:calls=")).nth(1);
        rest.map_or(0.0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    };
    of("evalsha") + of("eval")
}

/// Messages that the server has sent, each about one key.
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
    // What it takes the Redis to tell its counts stays outside.
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

/// Hits of [`ASKED`] questions, many asked at one time, and how many of them were admitted.
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
