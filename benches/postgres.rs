//! The cost of a PostgreSQL store against a bare statement, and of leases from it.
//!
//! `cargo bench --bench postgres` starts a server with unlogged tables on a Unix socket. The bare
//! statement is a prepared `INSERT … ON CONFLICT DO UPDATE` that adds one hit to each key of a
//! batch. Its batches are as large as those of the store. Rounds of both alternate.
//!
//! - Server CPU: of all processes of PostgreSQL.
//! - Latency: of one call after the other, in this process.
//! - Leases: CPU of a service process, against the same service with the memory store.
#![allow(missing_docs, unreachable_pub, clippy::print_stdout, clippy::unwrap_used)]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

#[path = "support/charges.rs"]
#[allow(dead_code, reason = "made for another bench, too")]
mod charges;
#[path = "../tests/support/namespace.rs"]
#[allow(dead_code, reason = "made for the tests, which use the rest")]
mod namespace;
#[path = "../tests/support/postgres.rs"]
#[allow(
    dead_code,
    clippy::expect_used,
    clippy::let_underscore_must_use,
    reason = "made for the tests, which use the rest"
)]
mod postgres;
#[path = "support/service.rs"]
#[allow(dead_code, reason = "made for another bench, too")]
mod service;
#[path = "../tests/support/signals.rs"]
#[allow(dead_code, reason = "made for the tests, which use the rest")]
mod signals;
#[path = "../tests/support/waiting.rs"]
#[allow(dead_code, reason = "made for the tests, which use the rest")]
mod waiting;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use charges::{Way, asked};
use postgres::Postgres;
use service::{Server, on_processor, tokio};
use sluicegate::kernel::units::Nanos;
use sluicegate::store::postgres::{Durability, PostgresOptions, PostgresStore};
use sluicegate::store::{ChargeOutcome, CounterStore as _, StoreReply};

const KEYS: u64 = 1_000;
const IN_FLIGHT: u64 = 128;
const CONNECTIONS: u64 = 4;
const CHECKS: u64 = 40_000;
const ROUNDS: usize = 5;
const SERIAL_CALLS: usize = 2_000;
/// Rounds in which leases grow to their size.
const WARM_UP: usize = 12;

const BARE_TABLE: &str = "CREATE UNLOGGED TABLE bare (key bytea PRIMARY KEY, hits bigint NOT NULL) \
                          WITH (fillfactor = 60)";
const BARE: &str = "INSERT INTO bare (key, hits) SELECT key, 1 FROM unnest($1::bytea[]) AS key \
                    ON CONFLICT (key) DO UPDATE SET hits = bare.hits + 1";

fn main() {
    let server = Postgres::start_empty();
    server.migrate(Durability::Unlogged);
    server.sql(BARE_TABLE);
    let runtime = tokio(2);
    println!("{:<44} {:>9} {:>9} {:>7} {:>6}", "postgres", "bare", "store", "ratio", "bound");
    for way in [Way::Gcra, Way::FixedWindow] {
        runtime.block_on(server_cpu(&server, way));
    }
    runtime.block_on(latency(&server));
    leases(&server);
}

fn row(name: &str, bare: f64, store: f64, bound: &str) {
    println!("{name:<44} {bare:>9.2} {store:>9.2} {:>7.2} {bound:>6}", store / bare);
}

async fn connect(server: &Postgres, connections: usize) -> Arc<PostgresStore> {
    let (store, task) = PostgresStore::new(PostgresOptions {
        call_timeout: postgres::PATIENT,
        connections,
        ..server.options()
    });
    ::tokio::spawn(task);
    while store.current_failure().is_some() {
        ::tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    Arc::new(store)
}

async fn charge(store: &PostgresStore, number: u64, way: Way) {
    let charges = asked(number % KEYS, way);
    let StoreReply::Pending(reply) = store.charge(Nanos(0), &charges) else { panic!() };
    assert!(matches!(reply.await[0], ChargeOutcome::Decided(_)));
}

/// CPU nanoseconds of all processes of the server.
fn cpu(server: &Postgres) -> u64 {
    let schedstat = |id| std::path::PathBuf::from(format!("/proc/{id}/schedstat"));
    server
        .processes()
        .map(schedstat)
        .filter(|path| path.exists())
        .map(|path| on_processor(&path))
        .sum()
}

fn commits(server: &Postgres) -> u64 {
    let count = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'";
    server.sql("SELECT pg_stat_clear_snapshot()");
    server.sql(count).parse().unwrap()
}

async fn server_cpu(server: &Postgres, way: Way) {
    let store = connect(server, CONNECTIONS as usize).await;
    charge_all(&store, way).await;
    ::tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let before = commits(server);
    charge_all(&store, way).await;
    // Sessions report their statistics at most once a second.
    ::tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let batch = (CHECKS as f64 / (commits(server) - before) as f64).round().max(1.0) as u64;
    let clients = bare_clients(server).await;
    bare_all(&clients, batch).await;
    let (mut bare, mut own) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let began = cpu(server);
        bare_all(&clients, batch).await;
        let between = cpu(server);
        charge_all(&store, way).await;
        bare.push((between - began) as f64 / CHECKS as f64 / 1e3);
        own.push((cpu(server) - between) as f64 / CHECKS as f64 / 1e3);
    }
    let name = format!("server CPU a check, us, {way:?}, batches of {batch}");
    row(&name, median(bare), median(own), "1.5");
}

async fn charge_all(store: &Arc<PostgresStore>, way: Way) {
    let left = Arc::new(AtomicU64::new(CHECKS));
    let caller = |_| {
        let (store, left) = (Arc::clone(store), Arc::clone(&left));
        ::tokio::spawn(async move {
            while let Ok(number) = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
                charge(&store, number, way).await;
            }
        })
    };
    for task in (0..IN_FLIGHT).map(caller).collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

struct BareClient {
    client: tokio_postgres::Client,
    statement: tokio_postgres::Statement,
}

async fn bare_clients(server: &Postgres) -> Vec<Arc<BareClient>> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let (client, connection) =
            server.options().server.connect(tokio_postgres::NoTls).await.unwrap();
        ::tokio::spawn(connection);
        let statement = client.prepare(BARE).await.unwrap();
        clients.push(Arc::new(BareClient { client, statement }));
    }
    clients
}

impl BareClient {
    async fn add(&self, numbers: impl Iterator<Item = u64>) {
        let mut keys: Vec<u64> = numbers.map(|number| number % KEYS).collect();
        keys.sort_unstable();
        keys.dedup();
        let keys: Vec<Vec<u8>> =
            keys.iter().map(|key| format!("shop-api_key-client-{key:04}").into_bytes()).collect();
        self.client.execute(&self.statement, &[&keys]).await.unwrap();
    }
}

async fn bare_all(clients: &[Arc<BareClient>], batch: u64) {
    let left = Arc::new(AtomicU64::new(CHECKS / batch));
    let worker = |client: &Arc<BareClient>| {
        let (client, left) = (Arc::clone(client), Arc::clone(&left));
        ::tokio::spawn(async move {
            while let Ok(number) = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
                client.add(number * batch..(number + 1) * batch).await;
            }
        })
    };
    for task in clients.iter().map(worker).collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

async fn latency(server: &Postgres) {
    let (store, clients) = (connect(server, 1).await, bare_clients(server).await);
    for number in 0..KEYS {
        charge(&store, number, Way::Gcra).await;
    }
    let (mut bare, mut own) = (Vec::new(), Vec::new());
    for number in 0..SERIAL_CALLS as u64 {
        let began = Instant::now();
        clients[0].add(std::iter::once(number)).await;
        let between = Instant::now();
        charge(&store, number, Way::Gcra).await;
        bare.push((between - began).as_secs_f64() * 1e6);
        own.push(between.elapsed().as_secs_f64() * 1e6);
    }
    row("one call in flight, p50, us", median(bare), median(own), "1.4");
}

fn leases(server: &Postgres) {
    let limits = |mode: &str| {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "domain: shop\ndescriptors:\n- key: api_key\n  rate_limit: {{requests_per_unit: 1000000, \
             unit: minute, strategy: gcra{mode}}}\n"
        );
        std::fs::write(dir.path().join("shop.yaml"), text).unwrap();
        dir
    };
    let (plain, leasing) = (limits(""), limits(", mode: leased, max_overshoot: 10%"));
    let start = |limits: &tempfile::TempDir, url: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        command.args(service::ARGUMENTS).arg("--limits-paths").arg(limits.path());
        command.args(["--store-timeout", "10s", "--store-url", url]);
        Server::start(&mut command)
    };
    let (memory, leased) = (start(&plain, "memory"), start(&leasing, &server.url()));
    let client = tokio(1);
    let measure = |server: &Server| client.block_on(server.cpu_per_call_over(KEYS, CHECKS)) / 1e3;
    measure(&memory);
    for _ in 0..WARM_UP {
        measure(&leased);
    }
    let calls = || -> u64 {
        std::thread::sleep(std::time::Duration::from_secs(2));
        commits(server)
    };
    let before = calls();
    let turns: Vec<(f64, f64)> =
        (0..ROUNDS).map(|_| (measure(&memory), measure(&leased))).collect();
    let calls = (calls() - before) as f64 / (ROUNDS as u64 * CHECKS) as f64;
    let memory = median(turns.iter().map(|turn| turn.0).collect());
    row(
        "leased, service CPU, us; bare: memory",
        memory,
        median(turns.iter().map(|t| t.1).collect()),
        "1.10",
    );
    println!("{:<44} {:>19.4} {:>14}", "leased, transactions a decision", calls, "0.02");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
