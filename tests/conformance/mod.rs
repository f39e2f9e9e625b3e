//! Tests common to all stores, for every strategy.
//!
//! Add a new store in `stores`, and a store for leases in `leasing`.
//!
//! Redis uses its own clock, so assertions about an instant are valid only within the current day.

pub(crate) mod budgets;
mod capacity;
mod charge_modes;
mod concurrency;
mod concurrent_budgets;
mod leases;
mod leasing_store;
mod on_excess;

use std::cell::{Cell, RefCell};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use sluicegate::kernel::decision::{Cost, Enforcement};
use sluicegate::kernel::key::{CounterKey, KeyStrategy};
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::sliding_log::SlidingLog;
use sluicegate::kernel::rate::sliding_window::SlidingWindow;
use sluicegate::kernel::rate::{CounterDecision, Strategy};
use sluicegate::kernel::units::{Hits, Nanos, Unit};
use sluicegate::store::file::{FileStore, FileStoreOptions, SavedTime, SyncMode, WriterThread};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::postgres::{PostgresOptions, PostgresStore};
use sluicegate::store::redis::{self, RedisStore};
use sluicegate::store::{
    Charge, ChargeMode, ChargeOutcome, Charges, CounterStore, Outcomes, Placement, StoreReply,
};
use tokio::task::JoinSet;

use crate::support;
use crate::support::cluster::Cluster;
use crate::support::waiting::{for_a_day_with_a_minute_left, until};
use leasing_store::LeasingStore;

/// 2026-01-01T00:00:00Z, the start of a day.
const NEW_YEAR: Nanos = Nanos::from_secs(1_767_225_600);
const DAY: Nanos = Nanos::from_secs(86_400);

/// Runs asynchronous store calls.
static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()
});

/// Servers and connections of one test.
struct Stores {
    redis: support::redis::Redis,
    cluster: Arc<Cluster>,
    postgres: Arc<support::postgres::Postgres>,
    client_count: Cell<u32>,
    /// Connection tasks. They end with the test, because they would otherwise reconnect until all
    /// tests end.
    connections: RefCell<JoinSet<()>>,
    /// The directories of the file stores, and the threads that write there. The threads end with the
    /// test, because they would otherwise write every millisecond until all tests end.
    writers: RefCell<Vec<(WriterThread, tempfile::TempDir)>>,
}

/// The cluster of the running tests.
static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());

/// Concurrent tests share the cluster, because it starts slowly.
fn cluster() -> Arc<Cluster> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let cluster = Arc::new(Cluster::start());
        *shared = Arc::downgrade(&cluster);
        cluster
    })
}

impl Stores {
    fn start() -> Self {
        for_a_day_with_a_minute_left();
        Self {
            redis: support::redis::Redis::start(),
            cluster: cluster(),
            postgres: support::postgres::shared(),
            client_count: Cell::new(0),
            connections: RefCell::default(),
            writers: RefCell::default(),
        }
    }

    /// One empty store of every kind.
    fn stores(&self) -> [Box<dyn CounterStore>; 6] {
        let cluster = redis::RedisTopology::Cluster(self.cluster.addresses());
        [
            Box::new(MemoryStore::new(1_000, WhenFull::Deny, [7; 16])),
            Box::new(self.file(SyncMode::Every(Duration::from_millis(1)))),
            Box::new(self.file(SyncMode::Always)),
            Box::new(self.redis()),
            Box::new(self.store_at(cluster)),
            Box::new(self.postgres()),
        ]
    }

    /// Replicas that lease from their own empty stores.
    fn leasing(&self) -> [LeasingStore; 3] {
        [
            LeasingStore::with_memory(),
            LeasingStore::new(self.redis()),
            LeasingStore::new(self.postgres()),
        ]
    }

    fn postgres(&self) -> PostgresStore {
        self.postgres_at(self.next_prefix())
    }

    /// A replica's store, whose counters and budgets are those of all stores with this prefix.
    fn postgres_at(&self, key_prefix: String) -> PostgresStore {
        let (postgres, connections) = PostgresStore::new(PostgresOptions {
            key_prefix,
            call_timeout: support::postgres::PATIENT,
            jitter_seed: 7,
            connections: 2,
            ..self.postgres.options()
        });
        self.connections.borrow_mut().spawn_on(connections, RUNTIME.handle());
        wait_connected(&postgres);
        postgres
    }

    /// Returns a unique key prefix, which makes the store empty: concurrent tests share a store.
    fn next_prefix(&self) -> String {
        let number = self.client_count.replace(self.client_count.get() + 1);
        format!("{:?}{number}", std::thread::current().id())
    }

    fn file(&self, sync: SyncMode) -> FileStore {
        let directory = tempfile::tempdir().unwrap();
        let options = FileStoreOptions {
            directory: directory.path().to_owned(),
            sync,
            deadline: Duration::from_secs(20),
            max_keys: 1_000,
            when_full: WhenFull::Deny,
            secret: [7; 16],
        };
        let file = FileStore::open(&options, NEW_YEAR).unwrap();
        let writer = file.writer.spawn(|| SavedTime { store: NEW_YEAR, wall: NEW_YEAR }).unwrap();
        self.writers.borrow_mut().push((writer, directory));
        file.store
    }

    fn redis(&self) -> RedisStore {
        self.store_at(redis::RedisTopology::Unix(self.redis.socket()))
    }

    fn store_at(&self, topology: redis::RedisTopology) -> RedisStore {
        let (redis, connection) = RedisStore::new(redis::RedisOptions {
            key_prefix: self.next_prefix(),
            call_timeout: Duration::from_secs(20),
            jitter_seed: 7,
            ..redis::RedisOptions::new(topology)
        });
        self.connections.borrow_mut().spawn_on(connection, RUNTIME.handle());
        wait_connected(&redis);
        redis
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        for (writer, _directory) in self.writers.take() {
            writer.close();
        }
    }
}

fn wait_connected(store: &impl CounterStore) {
    let answers = || store.current_failure().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
    until("the store is connected", answers).unwrap();
}

/// Runs `property` on every empty store and strategy, with `limit` per day.
/// The balances of stores with leases must cover some charges.
fn on_every_backend(limit: u32, property: impl Fn(&dyn CounterStore, Strategy)) {
    let stores = Stores::start();
    for strategy in strategies(limit).into_iter().chain([calendar(limit)]) {
        for store in stores.stores() {
            for_a_day_with_a_minute_left();
            property(&*store, strategy);
        }
        for leasing in stores.leasing() {
            for_a_day_with_a_minute_left();
            property(&leasing, strategy);
            leasing.assert_used_balances(strategy);
        }
    }
}

/// Runs `property` on every store, without leases.
fn on_every_store(limit: u32, property: impl Fn(&dyn CounterStore, Strategy)) {
    let stores = Stores::start();
    for strategy in strategies(limit).into_iter().chain([calendar(limit)]) {
        for store in stores.stores() {
            for_a_day_with_a_minute_left();
            property(&*store, strategy);
        }
    }
}

fn strategies(limit: u32) -> [Strategy; 4] {
    [
        Strategy::Gcra(Gcra::new(limit, DAY, limit).unwrap()),
        Strategy::FixedWindow(FixedWindow::new(limit, Windows::Every(DAY)).unwrap()),
        Strategy::SlidingWindow(SlidingWindow::new(limit, DAY).unwrap()),
        Strategy::SlidingLog(SlidingLog::new(limit, DAY).unwrap()),
    ]
}

/// `limit` in one calendar window that contains the time of every clock.
fn calendar(limit: u32) -> Strategy {
    // The window lasts from the first second of 1970 to the end of 2099.
    let starts = [0, 1, 4_102_444_800, 8_204_889_600].map(Nanos::from_secs);
    Strategy::FixedWindow(FixedWindow::new(limit, Windows::Calendar { starts }).unwrap())
}

fn charge(name: &str, strategy: Strategy, hits: u64) -> Charge {
    let counting = match strategy {
        Strategy::Gcra(_) => KeyStrategy::Gcra,
        Strategy::FixedWindow(window) => match window.windows() {
            Windows::Every(_) => KeyStrategy::FixedWindow(DAY),
            Windows::Calendar { .. } => KeyStrategy::Calendar(Unit::Year),
        },
        Strategy::SlidingWindow(_) => KeyStrategy::SlidingWindow(DAY),
        Strategy::SlidingLog(_) => KeyStrategy::SlidingLog,
    };
    Charge {
        key: CounterKey::unique("d", [("k", name)].into_iter(), counting),
        // A common hash tag puts atomic charges into one slot.
        placement: Placement::by_domain("d"),
        strategy,
        cost: Cost::Charge(Hits(hits)),
        standing: Enforcement::default(),
        per_second: false,
    }
}

fn each(charges: impl IntoIterator<Item = Charge>) -> Charges {
    Charges { list: charges.into_iter().collect(), mode: ChargeMode::Each }
}

fn all_or_nothing(charges: impl IntoIterator<Item = Charge>) -> Charges {
    let rule = ChargeMode::AllOrNothing { quota_for_all: false, quota_cannot_deny: false };
    Charges { list: charges.into_iter().collect(), mode: rule }
}

fn execute(store: &dyn CounterStore, now: Nanos, charges: &Charges) -> Outcomes {
    match store.charge(now, charges) {
        StoreReply::Ready(outcomes) => outcomes,
        StoreReply::Pending(reply) => RUNTIME.block_on(reply),
    }
}

fn is_allowed(outcome: ChargeOutcome) -> bool {
    matches!(outcome, ChargeOutcome::Decided(CounterDecision::Allow(_)))
}

/// The remaining hits of `name`.
fn remaining(store: &dyn CounterStore, now: Nanos, name: &str, strategy: Strategy) -> u64 {
    match execute(store, now, &each([charge(name, strategy, 0)]))[0] {
        ChargeOutcome::Decided(CounterDecision::Allow(room)) => room.remaining.0,
        other => panic!("a peek was answered {other:?}"),
    }
}
