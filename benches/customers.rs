//! A table of a million customers in real processes: its first load, changes, and decisions beside a swap.
//!
//! `cargo bench --bench customers`. Needs PostgreSQL. Each figure has its baseline in the same run. Bounds:
//! - PostgreSQL: a replica is ready 8 s after its start.
//! - A changed row decides at three replicas within 2 s if polled, and within 300 ms if notified (p99).
//! - While a million rows are swapped, p99.9 of the decisions is at most 1 ms above a run without.

#![allow(missing_docs, unreachable_pub, clippy::print_stdout, clippy::unwrap_used)]
#![allow(clippy::cast_precision_loss, clippy::expect_used, clippy::let_underscore_must_use)]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

#[path = "../tests/support/dice.rs"]
#[allow(dead_code, reason = "made for the tests, which use the rest")]
mod dice;
#[path = "../tests/support/namespace.rs"]
#[allow(dead_code, reason = "made for the tests, which use the rest")]
mod namespace;
#[path = "../tests/support/ports.rs"]
#[allow(dead_code, reason = "made for the tests, which use the rest")]
mod ports;
#[path = "../tests/support/postgres.rs"]
#[allow(dead_code, reason = "made for the tests, which use the rest")]
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

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use postgres::Postgres;
use serde_json::{Value, json};
use service::{ARGUMENTS, RateLimitClient, Server, check_of_entry, tokio};
use tempfile::TempDir;

const ROWS: usize = 1_000_000;
const REPLICAS: usize = 3;
const CHANGES: usize = 100;
const DECISIONS: usize = 100_000;
/// The swaps during the decisions, and the pause before each next one.
const SWAPS: usize = 5;
const SWAP_PAUSE: Duration = Duration::from_secs(4);

const LIMITS: &str = "domain: shop\ndescriptors:\n- {key: customer, rate_limit: {unit: day, \
                      requests_per_unit: 4000000000, strategy: gcra, from: customers.api}}\n";
const SCHEMA: &str = "CREATE TABLE customers (id text PRIMARY KEY, plan text, api text, \
                      changed_at timestamptz NOT NULL DEFAULT now())";
const QUERY: &str = "SELECT id, plan, api FROM customers";

fn main() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("limits")).unwrap();
    fs::write(dir.path().join("limits/shop.yaml"), LIMITS).unwrap();
    println!("{:<56} {:>12} {:>12} {:>8}", "customers, in ms", "baseline", "figure", "bound");
    let database = database();
    first_load(&dir, &database);
    tokio(2).block_on(changes(&dir, &database, false));
    tokio(2).block_on(changes(&dir, &database, true));
    drop(database);
    tokio(2).block_on(swaps(&dir));
}

fn row(name: &str, baseline: f64, figure: f64, bound: &str) {
    println!("{name:<56} {baseline:>12.3} {figure:>12.3} {bound:>8}");
}

fn database() -> Postgres {
    let database = Postgres::start_empty();
    database.sql(SCHEMA);
    database.sql(&format!(
        "INSERT INTO customers (id, plan, api, changed_at) SELECT 'customer-' || lpad(n::text, 15, '0'), 'plan' || n % 5, \
         CASE WHEN n % 100 = 0 THEN (n / 100 + 1)::text END, now() - interval '1 day' FROM generate_series(0, {ROWS} - 1) n"
    ));
    database.sql("CREATE INDEX ON customers (changed_at)");
    database.sql("ANALYZE customers");
    database
}

fn start(dir: &TempDir, table: &Value) -> Server {
    let mut whole = json!({"name": "customers", "plans": {}});
    for number in 0..5 {
        whole["plans"][format!("plan{number}")] = json!({"api": 4_000_000_000_u32 - number});
    }
    whole.as_object_mut().unwrap().extend(table.as_object().unwrap().clone());
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.args(ARGUMENTS).arg("--store-url=memory");
    command.arg(format!("--limits-paths={}", dir.path().join("limits").display()));
    command.arg(format!("--tables={}", json!([whole])));
    Server::start(&mut command)
}

/// The time until a replica without a copy is ready, beside that of the same query in `psql`.
fn first_load(dir: &TempDir, database: &Postgres) {
    let timed = |work: &dyn Fn()| {
        let begun = Instant::now();
        work();
        milliseconds(begun)
    };
    let query = format!("COPY (SELECT to_jsonb(t) FROM ({QUERY}) t) TO STDOUT");
    let baseline = timed(&|| drop(database.sql(&query)));
    let table = json!({"source": database.url(), "rows": QUERY, "refresh": "1h"});
    let figure = timed(&|| drop(start(dir, &table)));
    row("start with 1 M rows in PostgreSQL (baseline: psql)", baseline, figure, "8000");
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// The time from a changed row to its decision at all replicas: the median, and the 99th percentile.
async fn changes(dir: &TempDir, database: &Postgres, is_notified: bool) {
    let mut table = json!({
        "source": database.url(), "rows": QUERY, "refresh": if is_notified { "1h" } else { "1s" },
        "changes": format!("{QUERY} WHERE changed_at > $1"),
    });
    if is_notified {
        table["notify"] = json!("customers_changed");
    }
    let servers: Vec<_> = (0..REPLICAS).map(|_| start(dir, &table)).collect();
    let mut clients = Vec::new();
    for server in &servers {
        clients.push(server.client().await);
    }
    let mut session = database.session();
    let mut times = Vec::new();
    for number in 0..CHANGES {
        // Each customer is blocked once.
        let id = format!("customer-{:015}", 2 * number + usize::from(is_notified));
        let notify = if is_notified { "NOTIFY customers_changed;" } else { "" };
        let change = format!(
            "UPDATE customers SET api = 'blocked', changed_at = now() WHERE id = '{id}'; {notify} SELECT 1;"
        );
        let begun = Instant::now();
        session.run(&change);
        for client in &mut clients {
            until_denied(client, &id).await;
        }
        times.push(milliseconds(begun));
    }
    times.sort_by(f64::total_cmp);
    let (name, bound) = if is_notified { ("notified", "300") } else { ("polled each 1 s", "2000") };
    let name = format!("a changed row at 3 replicas, {name}: p50, p99");
    row(&name, times[CHANGES / 2], times[CHANGES * 99 / 100], bound);
}

async fn until_denied(client: &mut RateLimitClient, id: &str) {
    loop {
        let reply = client.should_rate_limit(check_of_entry("customer", id)).await.unwrap();
        if reply.into_inner().overall_code == i32::from(Code::OverLimit) {
            return;
        }
        ::tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// p99.9 of decisions without and with swaps of a file of a million rows.
async fn swaps(dir: &TempDir) {
    let file = dir.path().join("customers.csv");
    // Written before, so that only the replica works during the swaps.
    (0..=SWAPS).for_each(|version| write_version(&file, version));
    swap(&file, 0);
    let server = start(dir, &json!({"source": format!("file://{}", file.display())}));
    let mut client = server.client().await;
    measure(&mut client).await;
    let before = measure(&mut client).await;
    let swapping = std::thread::spawn({
        let file = file.clone();
        move || {
            for version in 1..=SWAPS {
                swap(&file, version);
                std::thread::sleep(SWAP_PAUSE);
            }
        }
    });
    let mut worst = [0.0_f64; 2];
    while !swapping.is_finished() {
        let [p50, p999] = measure(&mut client).await;
        worst = [worst[0].max(p50), worst[1].max(p999)];
    }
    row("decisions beside a swap of 1 M rows: p50", before[0], worst[0], "");
    row("decisions beside a swap of 1 M rows: p99.9", before[1], worst[1], "+1");
}

fn swap(file: &Path, version: usize) {
    fs::rename(file.with_extension(version.to_string()), file).unwrap();
}

/// Writes rows of which each tenth differs in each version.
fn write_version(file: &Path, version: usize) {
    let mut text = "id,plan,api\n".to_owned();
    for number in 0..ROWS {
        let own = if number % 10 == 0 { (version + 1).to_string() } else { String::new() };
        writeln!(text, "customer-{number:015},plan{},{own}", number % 5).unwrap();
    }
    fs::write(file.with_extension(version.to_string()), text).unwrap();
}

/// Makes checks one after the other. Returns p50 and p99.9 in milliseconds.
async fn measure(client: &mut RateLimitClient) -> [f64; 2] {
    let mut times = Vec::with_capacity(DECISIONS);
    for number in 0..DECISIONS {
        let check = check_of_entry("customer", &format!("customer-{:015}", number * 7919 % ROWS));
        let begun = Instant::now();
        client.should_rate_limit(check).await.unwrap();
        times.push(milliseconds(begun));
    }
    times.sort_by(f64::total_cmp);
    [times[DECISIONS / 2], times[DECISIONS * 999 / 1_000]]
}
