//! The cost of the file store: server CPU against the memory store, and a restart with a million counters.

use std::path::Path;
use std::time::{Duration, Instant};

use sluicegate::clock::Clock;
use sluicegate::kernel::decision::{Cost, Enforcement};
use sluicegate::kernel::key::{CounterKey, KeyStrategy};
use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::file::{FileStore, FileStoreOptions, SavedTime, SyncMode};
use sluicegate::store::memory::WhenFull;
use sluicegate::store::{Charge, Charges, CounterStore as _, Placement, StoreReply};

use super::{LIMITS, Server, TURNS, cpu_per_question, median, question, row, tokio};

const LIVE: u64 = 1_000_000;
const DAY: Nanos = Nanos::from_secs(86_400);

pub(crate) fn run() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("shop.yaml"), LIMITS).unwrap();
    server(dir.path());
    restart(dir.path());
}

fn url(directory: &Path) -> String {
    format!("file://{}", directory.display())
}

/// Server CPU per check, compared with the memory store.
fn server(limits: &Path) {
    let data = tempfile::tempdir().unwrap();
    let memory = Server::start(limits, &["--store-url", "memory"]);
    let file = Server::start(limits, &["--store-url", &url(data.path())]);
    let client = tokio(1);
    let cost = |server: &Server| client.block_on(cpu_per_question(server));
    cost(&memory);
    cost(&file);
    let turns: Vec<(f64, f64)> = (0..TURNS).map(|_| (cost(&file), cost(&memory))).collect();
    row("server CPU a question, memory", median(turns.iter().map(|turn| turn.1)), "us", "");
    row(
        "server CPU a question, file, sync 10ms",
        median(turns.iter().map(|turn| turn.0)),
        "us",
        "",
    );
    let ratio = median(turns.iter().map(|turn| turn.0 / turn.1));
    row("  ratio, 128 in flight over 4 connections", ratio, "", "1.10");
}

/// Time from the start of the process to its first answer, with a million live counters, after a crash.
fn restart(limits: &Path) {
    let (crashed, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = FileStoreOptions {
        directory: data.path().to_owned(),
        sync: SyncMode::Every(Duration::from_millis(10)),
        deadline: Duration::ZERO,
        max_keys: 2_000_000,
        when_full: WhenFull::Deny,
        secret: [7; 16],
    };
    let clock = Clock::system();
    let mut file = FileStore::open(&options, clock.wall()).unwrap();
    let time = || SavedTime { store: clock.now(), wall: clock.wall() };
    // Twice, so that the journal has changes of counters that are in the snapshots, too.
    for _ in 0..2 {
        for number in 0..LIVE {
            charge(&file.store, clock.now(), number);
            if number % 10_000 == 0 {
                file.writer.write_changes(&time).unwrap();
            }
        }
    }
    file.writer.write_changes(&time).unwrap();
    // A copy of the open file is like the file after a crash.
    let (open, copy) = (data.path().join("counters.redb"), crashed.path().join("counters.redb"));
    let bytes = std::fs::copy(&open, &copy).unwrap();
    row("file with a million counters", bytes as f64 / 1e6, "MB", "");
    let client = tokio(1);
    let mut times = Vec::new();
    for _ in 0..3 {
        std::fs::copy(&open, &copy).unwrap();
        let began = Instant::now();
        let server = Server::start(limits, &["--store-url", &url(crashed.path())]);
        client
            .block_on(async { server.client().await.should_rate_limit(question(0)).await })
            .unwrap();
        times.push(began.elapsed().as_secs_f64());
        assert!(server.metric("sluicegate_memory_keys") >= LIVE, "counters are missing");
    }
    row("crash to first answer, a million counters", median(times.into_iter()), "s", "2");
}

fn charge(store: &FileStore, now: Nanos, number: u64) {
    let name = format!("client-{number}");
    let charge = Charge {
        key: CounterKey::unique("d", [("k", &*name)].into_iter(), KeyStrategy::Gcra),
        placement: Placement::ByKey,
        strategy: Strategy::Gcra(Gcra::new(1_000, DAY, 1_000).unwrap()),
        cost: Cost::Charge(Hits(100)),
        standing: Enforcement::default(),
        per_second: false,
    };
    let charges = Charges { list: [charge].into_iter().collect(), ..Charges::default() };
    let StoreReply::Ready(outcomes) = store.charge(now, &charges) else { panic!("it waits") };
    assert!(!outcomes[0].is_denial());
}
