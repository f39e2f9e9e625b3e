//! What every backend must do, whatever it counts with. A store joins by one line in `stores`, and one that is leased from
//! by one in `leasing`.
//!
//! A shared store has its own clock: what is said of an instant holds for it within the present day.

mod charging;
mod concurrency;
mod leasing;
mod lending;
mod room;

use std::cell::{Cell, RefCell};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use sluicegate::backend::lease::{Lent, Message};
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::backend::redis::{self, Redis};
use sluicegate::backend::{Backend, Charge, Charges, Home, Outcome, Outcomes, Reply, Rule};
use sluicegate::kernel::decision::{Cost, Standing};
use sluicegate::kernel::key::{CounterKey, Counting};
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::sliding_log::SlidingLog;
use sluicegate::kernel::rate::sliding_window::SlidingWindow;
use sluicegate::kernel::rate::{Step, Strategy};
use sluicegate::kernel::units::{Hits, Nanos, Unit};
use tokio::task::JoinSet;

use crate::support;
use crate::support::cluster::Cluster;
use crate::waiting::{for_a_day_with_a_minute_left, until};
use leasing::Leasing;

/// 2026-01-01T00:00:00Z, the start of a day.
const NEW_YEAR: Nanos = Nanos::from_secs(1_767_225_600);
const DAY: Nanos = Nanos::from_secs(86_400);

/// Where backends that wait are waited for.
static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()
});

/// What the backends of one test live on.
struct Stores {
    redis: support::redis::Redis,
    cluster: Arc<Cluster>,
    given: Cell<u32>,
    /// What keeps them connected, which ends with the test: else it would seek what is gone to the end of all tests.
    connections: RefCell<JoinSet<()>>,
}

/// Every counter at home by itself: those of one question are in several slots.
#[derive(Debug)]
struct Apart(Redis);

impl Backend for Apart {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> Reply<'a, Outcomes> {
        let apart = |charge: &Charge| Charge { home: Home::Itself, ..charge.clone() };
        let list = charges.list.iter().map(apart).collect();
        let charges = Charges { list, rule: charges.rule };
        Reply::Later(Box::pin(async move {
            match self.0.charge(now, &charges) {
                Reply::Now(outcomes) => outcomes,
                Reply::Later(reply) => reply.await,
            }
        }))
    }

    fn borrow<'a>(&'a self, now: Nanos, message: &'a Message) -> Reply<'a, Lent> {
        let message = Message { home: Home::Itself, ..message.clone() };
        Reply::Later(Box::pin(async move {
            match self.0.borrow(now, &message) {
                Reply::Now(lent) => lent,
                Reply::Later(reply) => reply.await,
            }
        }))
    }
}

/// The Cluster of the tests that run just now.
static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());

/// Tests that run at one time share it: it takes a while to come up.
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
            given: Cell::new(0),
            connections: RefCell::default(),
        }
    }

    /// One of every kind, each empty.
    fn stores(&self) -> [Box<dyn Backend>; 4] {
        let cluster = || self.at(redis::Place::Cluster(self.cluster.addresses()));
        [
            Box::new(Memory::new(1_000, WhenFull::Deny, [7; 16])),
            Box::new(self.redis()),
            Box::new(cluster()),
            Box::new(Apart(cluster())),
        ]
    }

    /// Members that lease from an empty store of their own.
    fn leasing(&self) -> [Leasing; 2] {
        [Leasing::over_memory(), Leasing::over(self.redis())]
    }

    fn redis(&self) -> Redis {
        self.at(redis::Place::Unix(self.redis.socket()))
    }

    /// Keys of its own make it empty.
    fn at(&self, place: redis::Place) -> Redis {
        let number = self.given.replace(self.given.get() + 1);
        let (redis, connection) = Redis::new(redis::Options {
            // Tests that run at one time may share a store.
            key_prefix: format!("{:?}{number}", std::thread::current().id()),
            deadline: Duration::from_secs(20),
            jitter: 7,
            ..redis::Options::at(place)
        });
        self.connections.borrow_mut().spawn_on(connection, RUNTIME.handle());
        let answers = || redis.trouble().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
        until("redis is connected", answers).unwrap();
        redis
    }
}

/// Holds `law` against every backend, empty, with every strategy at `limit` per day. Where that may be leased with
/// `max_overshoot: 0`, the law has to be put to a balance, too.
fn on_every_backend(limit: u32, law: impl Fn(&dyn Backend, Strategy)) {
    let stores = Stores::start();
    for strategy in strategies(limit).into_iter().chain([calendar(limit)]) {
        for store in stores.stores() {
            law(&*store, strategy);
        }
        for leasing in stores.leasing() {
            law(&leasing, strategy);
            leasing.has_answered_from_balances(strategy);
        }
    }
}

/// The same against what counts by itself.
fn on_every_store(limit: u32, law: impl Fn(&dyn Backend, Strategy)) {
    let stores = Stores::start();
    for strategy in strategies(limit).into_iter().chain([calendar(limit)]) {
        for store in stores.stores() {
            law(&*store, strategy);
        }
    }
}

/// Every strategy at `limit` per day.
fn strategies(limit: u32) -> [Strategy; 4] {
    [
        Strategy::Gcra(Gcra::new(limit, DAY, limit).unwrap()),
        Strategy::FixedWindow(FixedWindow::new(limit, Windows::Every(DAY)).unwrap()),
        Strategy::SlidingWindow(SlidingWindow::new(limit, DAY).unwrap()),
        Strategy::SlidingLog(SlidingLog::new(limit, DAY).unwrap()),
    ]
}

/// `limit` in one window of a calendar, which every clock is within.
fn calendar(limit: u32) -> Strategy {
    // From the first second of 1970 to the end of the century; what is before and after is never asked of.
    let starts = [0, 1, 4_102_444_800, 8_204_889_600].map(Nanos::from_secs);
    Strategy::FixedWindow(FixedWindow::new(limit, Windows::Calendar { starts }).unwrap())
}

fn charge(name: &str, strategy: Strategy, hits: u64) -> Charge {
    let counting = match strategy {
        Strategy::Gcra(_) => Counting::Gcra,
        Strategy::FixedWindow(window) => match window.windows() {
            Windows::Every(_) => Counting::FixedWindow(DAY),
            Windows::Calendar { .. } => Counting::Calendar(Unit::Year),
        },
        Strategy::SlidingWindow(_) => Counting::SlidingWindow(DAY),
        Strategy::SlidingLog(_) => Counting::SlidingLog,
    };
    Charge {
        key: CounterKey::injective("d", [("k", name)].into_iter(), counting),
        // What is charged as one in one step lives in one place; `Apart` undoes it.
        home: Home::of_all("d"),
        strategy,
        cost: Cost::Charge(Hits(hits)),
        standing: Standing::default(),
        per_second: false,
    }
}

fn each(charges: impl IntoIterator<Item = Charge>) -> Charges {
    Charges { list: charges.into_iter().collect(), rule: Rule::Each }
}

fn all_or_nothing(charges: impl IntoIterator<Item = Charge>) -> Charges {
    let rule = Rule::AllOrNothing { quota_for_all: false, rescued: false };
    Charges { list: charges.into_iter().collect(), rule }
}

fn ask(backend: &dyn Backend, now: Nanos, charges: &Charges) -> Outcomes {
    match backend.charge(now, charges) {
        Reply::Now(outcomes) => outcomes,
        Reply::Later(reply) => RUNTIME.block_on(reply),
    }
}

fn admits(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Stepped(Step::Admit(_)))
}

/// What `strategy` has left for `name`.
fn remaining(backend: &dyn Backend, now: Nanos, name: &str, strategy: Strategy) -> u64 {
    match ask(backend, now, &each([charge(name, strategy, 0)]))[0] {
        Outcome::Stepped(Step::Admit(room)) => room.remaining.0,
        other => panic!("a peek was answered {other:?}"),
    }
}
