//! Five leasing processes with wrong clocks, killed, stopped and resumed at random.
//!
//! Guarantees:
//! - The fleet never allows more than the limit plus `max_overshoot`.
//! - The oracle that verifies this finds violations in two deliberately broken designs.
//!
//! The oracle reads the decisions from the service logs (`telemetry.log.level: trace`). Each decision
//! happened between two logged clock readings: at the check and at the reply. The oracle counts a
//! decision in an interval that contains both readings. A lease balance decides within microseconds
//! of the first reading. `SLUICEGATE_RUNS` sets the number of seeds.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sluicegate::clock::SHIFT_VARIABLE;

use super::wait_until_ready;
use crate::support::dice::{Dice, seed};
use crate::support::http1;
use crate::support::proxy::{Proxy, Upstream};
use crate::support::resp::Client;
use crate::support::service::Service;
use crate::support::store_server::{StoreKind, StoreServer};
use crate::support::waiting::{Ends, PATIENCE, now};

const REPLICAS: usize = 5;

/// The number of fleets that run at once.
const AT_ONCE: usize = 2;

/// Hits per window of the fixed window limit, and the burst of the GCRA limit.
const LIMIT: u64 = 100;

/// Hits per second of the GCRA limit. In phases of low demand, its debt drains while leases exist.
const RATE: u64 = 200;

/// The `max_overshoot` of the GCRA limit, in hits.
const BUDGET: u64 = 10;

/// The smallest number of faults of a run.
const MIN_FAULTS: u64 = 8;

/// The smallest number of checks that callers see allowed in a run. Fewer prove nothing.
const MIN_ALLOWED: u64 = 100;

/// The store timeouts of the replicas. The short ones pass while a replica is stopped, or while the
/// machine is busy.
const DEADLINES: [&str; REPLICAS] = ["200ms", "200ms", "5s", "5s", "5s"];

/// The text in `lease_table.lua` that bounds a lease by the replica's part of `max_overshoot`, and by the
/// part that no replica has borrowed.
const BOUND: &[u8] = b"(product - product % all) / all - its_balance,
            budget - outstanding - its_balance";

/// The broken replacement of `BOUND`: it bounds each lease by the whole `max_overshoot`.
const BOUND_OF_EACH: &[u8] = b"budget - its_balance,
            budget - its_balance                                       ";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Design {
    Sound,
    /// A broken store that bounds the lease of each replica, but not their sum.
    BoundsEach,
    /// A broken store that loses its state repeatedly, so no guarantee applies.
    Forgets,
}

/// Hits that were allowed between the instants `asked` and `answered`, in microseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    asked: u64,
    answered: u64,
    hits: u64,
}

#[derive(Debug, Default)]
struct Log {
    windows: Vec<Admitted>,
    rate: Vec<Admitted>,
    disturbed: u64,
}

struct LeasingProcess {
    service: Service,
    clock_error_ms: i64,
}

struct LeasingFleet {
    store: StoreServer,
    /// The proxy between the replicas and the store.
    proxy: Option<Proxy>,
    limits: tempfile::TempDir,
    replicas: [Mutex<Option<LeasingProcess>>; REPLICAS],
    addresses: [RwLock<Option<SocketAddr>>; REPLICAS],
    disturbed: AtomicU64,
    /// The number of checks that callers saw allowed.
    allowed: AtomicU64,
    is_over: AtomicBool,
    log: Mutex<Log>,
}

#[test]
fn faults_never_exceed_the_limit_plus_max_overshoot() {
    assert_bound_during_faults(StoreKind::Redis, 10);
}

/// Asserts the bound for `default_runs` seeds, or for `SLUICEGATE_RUNS`.
#[expect(clippy::print_stdout, reason = "the table is what this is run for")]
pub fn assert_bound_during_faults(kind: StoreKind, default_runs: u64) {
    let (mut runs, mut all, mut disturbed, mut most) = (0, 0, 0, 0);
    for (seed, log) in runs_at_once(kind, &seeds(default_runs).collect::<Vec<_>>()) {
        assert_eq!(windows_above_limit(&log.windows), 0, "SLUICEGATE_SEED={seed}: windows");
        assert_eq!(intervals_above_rate(&log.rate), 0, "SLUICEGATE_SEED={seed}: rate");
        let admitted = log.windows.len() + log.rate.len();
        assert!(
            50 < admitted,
            "SLUICEGATE_SEED={seed}: {admitted} admitted is no proof of anything"
        );
        (runs, all, disturbed) = (runs + 1, all + admitted, disturbed + log.disturbed);
        most = most.max(max_excess(&log.rate));
    }
    println!(
        "the design: {runs} runs, {disturbed} killed or stopped, {all} questions admitted, at most {most} hits \
         above the rate where {BUDGET} may be, 0 violations"
    );
}

#[test]
fn oracle_detects_a_per_replica_lease_bound() {
    expect_violations(Design::BoundsEach);
}

#[test]
fn oracle_detects_a_store_that_loses_state() {
    expect_violations(Design::Forgets);
}

#[expect(clippy::print_stdout, reason = "the table is what this is run for")]
fn expect_violations(design: Design) {
    let (mut found, mut runs, mut most, seed) = (0, 0, 0, seed());
    for run_seed in (0..60).map(|i| seed.wrapping_add(i)) {
        let log = run(StoreKind::Redis, run_seed, design);
        found += windows_above_limit(&log.windows) + intervals_above_rate(&log.rate);
        (runs, most) = (runs + 1, most.max(max_excess(&log.rate)));
        if 0 < found {
            break;
        }
    }
    println!(
        "{design:?}: {runs} runs, {found} violations, at most {most} hits above the rate where {BUDGET} may be, \
         SLUICEGATE_SEED={seed}"
    );
    assert!(0 < found, "SLUICEGATE_SEED={seed}: no violation in {runs} runs");
}

fn seeds(default_runs: u64) -> impl Iterator<Item = u64> {
    let runs = std::env::var("SLUICEGATE_RUNS").map_or(default_runs, |runs| runs.parse().unwrap());
    let first = seed();
    (0..runs).map(move |run| first.wrapping_add(run))
}

/// Runs the sound design with each seed, [`AT_ONCE`] of them at once: a fleet mostly waits.
fn runs_at_once(kind: StoreKind, seeds: &[u64]) -> Vec<(u64, Log)> {
    let mut logs = Vec::new();
    for seeds in seeds.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let runs = seeds
                .iter()
                .map(|&seed| (seed, scope.spawn(move || run(kind, seed, Design::Sound))))
                .collect::<Vec<_>>();
            let ended = runs.into_iter().map(|(seed, run)| (seed, run.join().unwrap()));
            logs.extend(ended);
        });
    }
    logs
}

fn run(kind: StoreKind, seed: u64, design: Design) -> Log {
    let mut dice = Dice::new(seed);
    let fleet = LeasingFleet::start(kind, &mut dice, design);
    std::thread::scope(|scope| {
        let _ends = Ends(&fleet.is_over);
        for at in 0..REPLICAS {
            let (fleet, dice) = (&fleet, Dice::new(dice.roll()));
            scope.spawn(move || fleet.send_checks(at, dice));
        }
        let phases = dice.roll();
        if design == Design::Forgets {
            let fleet = &fleet;
            scope.spawn(move || fleet.flush_repeatedly());
        }
        fleet.disturb(&mut Dice::new(phases));
    });
    (0..REPLICAS).for_each(|at| fleet.kill(at));
    let disturbed = fleet.disturbed.load(Relaxed);
    Log { disturbed, ..fleet.log.into_inner().unwrap() }
}

impl LeasingFleet {
    fn start(kind: StoreKind, dice: &mut Dice, design: Design) -> Self {
        let limits = tempfile::tempdir().unwrap();
        let text = format!(
            "domain: d\ndescriptors:\n\
             - key: windows\n  rate_limit: {{unit: second, requests_per_unit: {LIMIT}, mode: leased, max_overshoot: 0}}\n\
             - key: rate\n  rate_limit: {{per: 100ms, requests_per_unit: {}, burst: {LIMIT}, strategy: gcra, \
             mode: leased, max_overshoot: {BUDGET}}}\n",
            RATE / 10
        );
        std::fs::write(limits.path().join("d.yaml"), text).unwrap();
        let store = StoreServer::start(kind);
        let before = Upstream::Unix(store.socket());
        let proxy =
            (design == Design::BoundsEach).then(|| Proxy::rewriting(before, BOUND, BOUND_OF_EACH));
        let fleet = Self {
            store,
            proxy,
            limits,
            replicas: Default::default(),
            addresses: Default::default(),
            disturbed: AtomicU64::new(0),
            allowed: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            log: Mutex::default(),
        };
        std::thread::scope(|scope| {
            for at in 0..REPLICAS {
                let (fleet, mut dice) = (&fleet, Dice::new(dice.roll()));
                scope.spawn(move || fleet.start_replica(at, &mut dice));
            }
        });
        fleet
    }

    /// Starts a replica with a clock error of up to one hour.
    fn start_replica(&self, replica: usize, dice: &mut Dice) {
        let clock_error_ms = i64::try_from(dice.up_to(7_200_000)).unwrap() - 3_600_000;
        let proxy = self.proxy.as_ref().map(|proxy| self.store.url_of_proxy(proxy.address()));
        let url = proxy.unwrap_or_else(|| self.store.url());
        let flags = ["--store-url", &url, "--store-timeout", DEADLINES[replica]];
        let flags =
            [&flags[..], &["--telemetry-log-level", "trace", "--telemetry-log-format", "json"]]
                .concat();
        let flags: Vec<_> = flags.into_iter().map(str::to_owned).collect();
        let shift = [(SHIFT_VARIABLE, &*clock_error_ms.to_string())];
        let service = Service::start_under(self.limits.path(), &flags, &shift).unwrap();
        wait_until_ready(&service);
        *self.addresses[replica].write().unwrap() = Some(service.http);
        *self.replicas[replica].lock().unwrap() = Some(LeasingProcess { service, clock_error_ms });
    }

    /// Kills a replica and keeps its log.
    fn kill(&self, replica: usize) {
        *self.addresses[replica].write().unwrap() = None;
        let Some(mut replica) = self.replicas[replica].lock().unwrap().take() else { return };
        replica.service.kill();
        let mut log = self.log.lock().unwrap();
        for line in replica.service.log().lines().filter(|line| line.contains("\"decided\"")) {
            // The last line may be incomplete.
            let Ok(line) = serde_json::from_str::<serde_json::Value>(line) else { continue };
            let number = |name: &str| line[name].as_u64().unwrap();
            let at =
                |name| number(name).checked_add_signed(-1_000 * replica.clock_error_ms).unwrap();
            if line["admitted"] == true {
                let (asked, answered) = (at("asked_us"), at("answered_us"));
                let admitted = Admitted { asked, answered, hits: number("hits") };
                let is_rate = line["rule"].as_str().unwrap().contains("rate");
                if is_rate { &mut log.rate } else { &mut log.windows }.push(admitted);
            }
        }
    }

    fn disturb(&self, dice: &mut Dice) {
        let began = now();
        while self.disturbed.load(Relaxed) < MIN_FAULTS || self.allowed.load(Relaxed) < MIN_ALLOWED
        {
            assert!(began.elapsed() < PATIENCE * 5, "too few checks are allowed");
            let at = usize::try_from(dice.up_to(REPLICAS as u64 - 1)).unwrap();
            pause(50 + dice.up_to(250));
            self.disturbed.fetch_add(1, Relaxed);
            if dice.once_in(4) {
                self.kill(at);
                self.start_replica(at, dice);
            } else {
                let length = 50 + dice.up_to(1_500);
                self.send_signal(at, "STOP");
                pause(length);
                self.send_signal(at, "CONT");
            }
        }
    }

    fn send_signal(&self, replica: usize, signal: &str) {
        let replica = self.replicas[replica].lock().unwrap_or_else(PoisonError::into_inner);
        replica.as_ref().unwrap().service.signal(signal);
    }

    /// Sends checks to one replica, at a low rate and then at full speed.
    fn send_checks(&self, replica: usize, mut dice: Dice) {
        while !self.is_over.load(Relaxed) {
            // Demand is low at all replicas at the same time, so the GCRA debt drains while leases
            // exist. Then demand exceeds the limit.
            let is_quiet = micros() / 250_000 % 10 < 7;
            if is_quiet {
                pause(30 + dice.up_to(70));
            }
            let Some(address) = *self.addresses[replica].read().unwrap() else {
                pause(5);
                continue;
            };
            let (key, hits) = (dice.pick(&["windows", "rate"]), 1 + dice.up_to(4));
            if is_allowed(address, key, hits) {
                self.allowed.fetch_add(1, Relaxed);
            }
        }
    }

    /// Drops all counters and all leases repeatedly.
    fn flush_repeatedly(&self) {
        let mut client = Client::connect(&self.store.socket()).unwrap();
        while !self.is_over.load(Relaxed) {
            client.call(&["FLUSHALL"]);
            pause(200);
        }
    }
}

/// Sends a check. The log contains the decision, and a killed replica sends no reply.
fn is_allowed(address: SocketAddr, key: &str, hits: u64) -> bool {
    let body = format!(
        r#"{{"domain":"d","hitsAddend":{hits},"descriptors":[{{"entries":[{{"key":"{key}","value":"v"}}]}}]}}"#
    );
    let reply = http1::call(address, "POST", "/json", &[], Some(body.as_bytes()));
    reply.is_ok_and(|reply| reply.status == 200)
}

fn windows_above_limit(log: &[Admitted]) -> usize {
    let second = |at: u64| at / 1_000_000;
    let mut sums = std::collections::HashMap::<u64, u64>::new();
    for one in log.iter().filter(|one| second(one.asked) == second(one.answered)) {
        *sums.entry(second(one.asked)).or_default() += one.hits;
    }
    sums.values().filter(|sum| LIMIT < **sum).count()
}

/// Counts disjoint intervals that allowed more than the limit plus `BUDGET`.
fn intervals_above_rate(log: &[Admitted]) -> usize {
    let (mut found, mut after) = (0, 0);
    for (began, ended, above) in intervals(log) {
        if after < began && BUDGET < above {
            (found, after) = (found + 1, ended);
        }
    }
    found
}

fn max_excess(log: &[Admitted]) -> u64 {
    intervals(log).map(|(.., above)| above).max().unwrap_or(0)
}

/// Returns each interval from one decision to another as (start, end, hits above the limit), sorted
/// by end.
fn intervals(log: &[Admitted]) -> impl Iterator<Item = (u64, u64, u64)> {
    let mut log = log.to_vec();
    log.sort_unstable_by_key(|one| one.answered);
    (0..log.len()).flat_map(move |last| {
        let ended = log[last].answered;
        let mut within = log[..=last].to_vec();
        within.sort_unstable_by_key(|one| std::cmp::Reverse(one.asked));
        let mut sum = 0;
        within.into_iter().map(move |one| {
            sum += one.hits;
            let law = LIMIT + (ended - one.asked) * RATE / 1_000_000;
            (one.asked, ended, sum.saturating_sub(law))
        })
    })
}

#[expect(clippy::disallowed_methods, reason = "the rule is about the service's own clock")]
fn micros() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

/// Sleeps in real time, because the faults of this test need it.
fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}
