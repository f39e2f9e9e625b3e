//! Five processes that lease from one Redis, killed, stopped and woken at random, with clocks that do not
//! agree: what they admit between them is held against the law.
//!
//! An admission is known to lie between when its question was sent and when the answer was there, so it
//! counts only where the whole of that does. `SLUICEGATE_RUNS` says how many seeds are tried.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sluicegate::clock::SHIFT;

use super::{Store, wait_until_whole};
use crate::http1;
use crate::service::Service;
use crate::support::dice::{Dice, seed};
use crate::support::resp::Client;
use crate::waiting::now;

const REPLICAS: usize = 5;
const LIMIT: u64 = 100;
/// 10 %, for the limit that is not coupled to windows.
const BUDGET: u64 = 10;
const RUN: Duration = Duration::from_secs(6);

/// What the store does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Design {
    Sound,
    /// It loses its state now and then, beside which nothing is promised.
    Forgets,
}

/// Hits that were admitted at some instant between these, in microseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    sent: u64,
    received: u64,
    hits: u64,
}

/// A fleet under way.
struct Fleet {
    store: Store,
    limits: tempfile::TempDir,
    services: [Mutex<Option<Service>>; REPLICAS],
    addresses: [RwLock<Option<SocketAddr>>; REPLICAS],
    is_over: AtomicBool,
}

#[test]
fn a_fleet_that_is_killed_stopped_and_woken_admits_no_more_than_the_law_and_what_may_be_out() {
    for seed in seeds() {
        let (windows, rate) = run(seed, Design::Sound);
        assert_eq!(above_windows(&windows), 0, "SLUICEGATE_SEED={seed}: windows");
        assert_eq!(above_rate(&rate), 0, "SLUICEGATE_SEED={seed}: rate");
        let all = windows.len() + rate.len();
        assert!(50 < all, "SLUICEGATE_SEED={seed}: {all} admitted is no proof of anything");
    }
}

#[test]
fn the_same_fleet_over_a_store_that_loses_its_state_is_found_above_the_law() {
    let (mut found, seed) = (0, seed());
    for run_seed in (0..20).map(|i| seed.wrapping_add(i)) {
        let (windows, rate) = run(run_seed, Design::Forgets);
        found += above_windows(&windows) + above_rate(&rate);
        if 10 <= found {
            break;
        }
    }
    println!("a store that forgets: {found} violations, SLUICEGATE_SEED={seed}");
    assert!(10 <= found, "SLUICEGATE_SEED={seed}: {found} violations");
}

fn seeds() -> impl Iterator<Item = u64> {
    let runs = std::env::var("SLUICEGATE_RUNS").map_or(20, |runs| runs.parse().unwrap());
    let first = seed();
    (0..runs).map(move |run| first.wrapping_add(run))
}

/// What was admitted, of windows and of the rate.
fn run(seed: u64, design: Design) -> (Vec<Admitted>, Vec<Admitted>) {
    let mut dice = Dice::new(seed);
    let fleet = Fleet::start(&mut dice);
    let logs: Vec<_> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..REPLICAS)
            .map(|at| {
                let (fleet, dice) = (&fleet, Dice::new(dice.roll()));
                scope.spawn(move || fleet.ask_on(at, dice))
            })
            .collect();
        let phases = dice.roll();
        if design == Design::Forgets {
            let fleet = &fleet;
            scope.spawn(move || fleet.forget_on());
        }
        fleet.disturb(&mut Dice::new(phases));
        asking.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let mut all = (Vec::new(), Vec::new());
    for (windows, rate) in logs {
        all.0.extend(windows);
        all.1.extend(rate);
    }
    all
}

impl Fleet {
    fn start(dice: &mut Dice) -> Self {
        let limits = tempfile::tempdir().unwrap();
        let text = format!(
            "domain: d\ndescriptors:\n\
             - key: windows\n  rate_limit: {{unit: second, requests_per_unit: {LIMIT}, mode: leased, max_overshoot: 0}}\n\
             - key: rate\n  rate_limit: {{unit: second, requests_per_unit: {LIMIT}, strategy: gcra, mode: leased, \
             max_overshoot: {BUDGET}}}\n"
        );
        std::fs::write(limits.path().join("d.yaml"), text).unwrap();
        let fleet = Self {
            store: Store::running(),
            limits,
            services: Default::default(),
            addresses: Default::default(),
            is_over: AtomicBool::new(false),
        };
        for at in 0..REPLICAS {
            fleet.begin(at, dice);
        }
        fleet
    }

    /// Starts a replica whose clock is up to an hour wrong.
    fn begin(&self, at: usize, dice: &mut Dice) {
        let wrong = i64::try_from(dice.up_to(7_200_000)).unwrap() - 3_600_000;
        let flags =
            ["--backend", &self.store.url(), "--backend-deadline", "200ms", "--log-level", "error"];
        let flags = flags.map(str::to_owned);
        let service =
            Service::start_under(self.limits.path(), &flags, &[(SHIFT, &wrong.to_string())])
                .unwrap();
        wait_until_whole(&service);
        *self.addresses[at].write().unwrap() = Some(service.http);
        *self.services[at].lock().unwrap() = Some(service);
    }

    /// Kills, stops and wakes, until the run is over.
    fn disturb(&self, dice: &mut Dice) {
        let began = now();
        while began.elapsed() < RUN {
            let at = usize::try_from(dice.up_to(REPLICAS as u64 - 1)).unwrap();
            pause(50 + dice.up_to(250));
            if dice.once_in(4) {
                *self.addresses[at].write().unwrap() = None;
                drop(self.services[at].lock().unwrap().take());
                self.begin(at, dice);
            } else {
                let length = 50 + dice.up_to(1_500);
                self.tell(at, "STOP");
                pause(length);
                self.tell(at, "CONT");
            }
        }
        self.is_over.store(true, Relaxed);
    }

    fn tell(&self, at: usize, signal: &str) {
        let service = self.services[at].lock().unwrap_or_else(PoisonError::into_inner);
        service.as_ref().unwrap().signal(signal);
    }

    /// Asks one replica, a little for a while and then all it can.
    fn ask_on(&self, at: usize, mut dice: Dice) -> (Vec<Admitted>, Vec<Admitted>) {
        let mut logs = (Vec::new(), Vec::new());
        while !self.is_over.load(Relaxed) {
            // All are asked for little at the same time, while leases are held and the debt drains, and
            // then for more than there is.
            let is_quiet = micros() / 250_000 % 10 < 7;
            if is_quiet {
                pause(60 + dice.up_to(140));
            }
            let Some(address) = *self.addresses[at].read().unwrap() else {
                pause(5);
                continue;
            };
            let (key, hits) = (dice.pick(&["windows", "rate"]), 1 + dice.up_to(4));
            let sent = micros();
            if passes(address, key, hits) {
                let log = if key == "rate" { &mut logs.1 } else { &mut logs.0 };
                log.push(Admitted { sent, received: micros(), hits });
            }
        }
        logs
    }

    /// Drops all counters and all lists of who holds what, again and again.
    fn forget_on(&self) {
        let mut client = Client::connect(&self.store.socket()).unwrap();
        while !self.is_over.load(Relaxed) {
            client.call(&["FLUSHALL"]);
            pause(200);
        }
    }
}

fn passes(address: SocketAddr, key: &str, hits: u64) -> bool {
    let body = format!(
        r#"{{"domain":"d","hitsAddend":{hits},"descriptors":[{{"entries":[{{"key":"{key}","value":"v"}}]}}]}}"#
    );
    let reply = http1::call(address, "POST", "/json", &[], Some(body.as_bytes()));
    reply.is_ok_and(|reply| reply.status == 200)
}

/// Windows that admitted more than the limit.
fn above_windows(log: &[Admitted]) -> usize {
    let second = |at: u64| at / 1_000_000;
    let mut sums = std::collections::HashMap::<u64, u64>::new();
    for one in log.iter().filter(|one| second(one.sent) == second(one.received)) {
        *sums.entry(second(one.sent)).or_default() += one.hits;
    }
    sums.values().filter(|sum| LIMIT < **sum).count()
}

/// Intervals, none of which overlaps another, that admitted more than the law and the budget.
fn above_rate(log: &[Admitted]) -> usize {
    let mut log = log.to_vec();
    log.sort_unstable_by_key(|one| one.received);
    let (mut found, mut after) = (0, 0);
    for (last, end) in log.iter().enumerate() {
        let mut starts: Vec<_> = log[..=last].iter().filter(|one| after < one.sent).collect();
        starts.sort_unstable_by_key(|one| std::cmp::Reverse(one.sent));
        let mut sum = 0;
        for one in starts {
            sum += one.hits;
            let earned = (end.received - one.sent) * LIMIT / 1_000_000;
            if LIMIT + earned + BUDGET < sum {
                (found, after) = (found + 1, end.received);
                break;
            }
        }
    }
    found
}

#[expect(clippy::disallowed_methods, reason = "the rule is about the service's own clock")]
fn micros() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

/// Lets time pass: what is tested here is what happens in it.
fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}
