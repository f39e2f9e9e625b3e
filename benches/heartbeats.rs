//! Redis CPU of heartbeats for 1,000 shared concurrency limits and 20 replicas.
//!
//! `cargo bench --bench heartbeats` measures three loads:
//! - All reports change each heartbeat.
//! - One report in twenty changes each heartbeat.
//! - All limits are in use, and unchanged reports are renewed.
//! - All reports change, and the limits have classes and fair parts: each report has a curve of its
//!   customers.
//!
//! Redis reports its own CPU time (`INFO cpu`), so other load on the machine does not affect it.
//!
//! The second part measures the effect on other clients of that Redis. A client charges one hit to
//! one key by a script call, a millisecond after each reply. Turns with and without heartbeats
//! alternate, so other load on the machine affects both.
//!
//! The third part, alone with `cargo bench --bench heartbeats -- hostile`, measures the time of the script for
//! a fleet beside a peer that has filled its bounds ([`MAX_PEER_STREAMS`] and [`MAX_PEER_RECORDS`]),
//! and without it, in the same run. Only the calls of the fleet count.
//!
//! Heartbeats are spread as in a fleet. Each limit is due at its own instant of the heartbeat
//! period ([`ShareTiming::period`], 0.9 s). Each replica looks for due limits twenty times per period, at
//! its own instants. It sends a changed report at the next of them.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, clippy::cast_precision_loss)]
#![allow(clippy::cast_possible_truncation)]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

#[path = "support/charges.rs"]
#[allow(dead_code, reason = "other benches use the rest")]
mod charges;
#[path = "../tests/support/resp.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    reason = "made for the tests, which use the rest"
)]
mod resp;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use sluicegate::engine::proxies::{MAX_PEER_RECORDS, MAX_PEER_STREAMS};
use sluicegate::kernel::concurrency::ClassParts;
use sluicegate::kernel::coordinator::demand_curve::CustomerDemand;
use sluicegate::kernel::coordinator::incarnation::IncarnationRecord;
use sluicegate::kernel::coordinator::message::GrantInUse;
use sluicegate::kernel::coordinator::{
    CoordinatorConfig, DemandCurve, Heartbeat, HeartbeatReply, ShareTiming,
};
use sluicegate::kernel::units::{Incarnation, Nanos, ReplicaId, Share};
use sluicegate::store::heartbeat::{ShareReport, ShareRound, reports_per_round};
use sluicegate::store::redis::codec::decode_doubles;
use sluicegate::store::redis::codec::heartbeat::{pack, read};
use sluicegate::store::redis::{CHARGE_SCRIPT, HEARTBEAT_SCRIPT};

const CEILINGS: u64 = 1_000;
const REPLICAS: u64 = 20;
const CEILING: Share = Share(400);
const ROUNDS: u64 = 5;
/// Times per heartbeat period that a replica looks for due limits.
const LOOKS: u64 = 20;
/// An unchanged share is renewed when half of its lifetime is over.
const RENEWED: Duration = Duration::from_millis(2_500);
/// Heartbeats per turn; a turn without heartbeats takes as long.
const BESIDE: u32 = 4;
const TURNS: usize = 5;
/// Pause between a reply and the next charge.
const REST: Duration = Duration::from_millis(1);

fn main() {
    if std::env::args().any(|arg| arg == "hostile") {
        return beside_hostile_peer();
    }
    let mut fleet = Fleet::start();
    for _ in 0..20 {
        fleet.heartbeat(1, false);
    }
    let (seats, period) = ((CEILINGS * REPLICAS) as f64, period().as_secs_f64());
    for (what, every, bound) in [("all changing", 1, 400.0), ("5 % changing", 20, 40.0)] {
        let each = fleet.cost(every, true);
        let millis = each * 1e3 * seats / every as f64 / period;
        let each = each * 1e6;
        println!("{what}: {millis:.0} ms a second (bound {bound}), {each:.1} us a heartbeat");
    }
    fleet.heartbeat(1, false);
    let each = fleet.cost(1, false);
    let (millis, each) = (each * 1e3 * seats / RENEWED.as_secs_f64(), each * 1e6);
    println!("all in use as before: {millis:.0} ms a second (no bound), {each:.1} us a heartbeat");
    fleet.replicas.iter_mut().for_each(|replica| replica.has_customers = true);
    fleet.heartbeat(1, true);
    let each = fleet.cost(1, true);
    let (millis, each) = (each * 1e3 * seats / period, each * 1e6);
    println!(
        "with classes and fair parts: {millis:.0} ms a second (no bound), {each:.1} us a heartbeat"
    );
    fleet.replicas.iter_mut().for_each(|replica| replica.has_customers = false);
    fleet.heartbeat(1, true);
    for (what, every) in [("5 % changing", 20), ("all changing", 1)] {
        beside(&mut fleet, what, every);
    }
    beside_hostile_peer();
}

/// Prints the latency of a charge with and without concurrent heartbeats.
fn beside(fleet: &mut Fleet, what: &str, every: u64) {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        without.push(p99(&fleet.charges_while(|_| {
            std::thread::sleep(period() * BESIDE);
        })));
        with.push(p99(&fleet.charges_while(|fleet| {
            (0..BESIDE).for_each(|_| fleet.paced_heartbeat(every));
        })));
    }
    with.sort_by(f64::total_cmp);
    without.sort_by(f64::total_cmp);
    let (with, without) = (with[TURNS / 2], without[TURNS / 2]);
    let rise = with - without;
    println!(
        "p99 of a charge beside {what}: {with:.2} ms, without {without:.2} ms: {rise:.2} more (bound 1)"
    );
}

/// Prints the time of the script without and beside a peer that has filled its bounds.
///
/// The peer has all its shares in limits of its own, then in 64 of the limits of the fleet.
fn beside_hostile_peer() {
    let mut fleet = Fleet::start();
    let streams = MAX_PEER_STREAMS as u64;
    let per_stream = MAX_PEER_RECORDS as u64 / streams;
    for _ in 0..5 {
        fleet.heartbeat(1, true);
    }
    for (what, first) in [("in limits of its own", CEILINGS), ("in limits of the fleet", 0)] {
        let members = REPLICAS + 1..=REPLICAS + streams;
        let peer = members.map(|member| Replica::new(member, &socket(&fleet.dir)));
        let (mut peer, limits): (Vec<_>, _) = (peer.collect(), first..first + per_stream);
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            alone.push(fleet.script_time());
            for replica in &mut peer {
                replica.report(fleet.now, &limits.clone().collect::<Vec<_>>(), true);
            }
            beside.push(fleet.script_time());
            // Longer than a share and its requests last.
            fleet.now = fleet.now.plus(Nanos::from_secs(60));
            fleet.heartbeat(1, true);
        }
        let [alone, beside] = [alone, beside].map(|mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[TURNS / 2]
        });
        println!(
            "script beside a hostile peer, {what}: {beside:.0} us a call, alone {alone:.0} us: {:.2} times (bound 2)",
            beside / alone
        );
    }
}

fn terms() -> ShareTiming {
    let [heartbeat, term, max_duration] = [1, 5, 10].map(Nanos::from_secs);
    ShareTiming::new(heartbeat, term, max_duration, 1_000).unwrap()
}

/// Time between two heartbeats.
fn period() -> Duration {
    Duration::from_nanos(terms().period().0)
}

/// The 99th percentile in milliseconds.
fn p99(took: &[Duration]) -> f64 {
    let mut took = took.to_vec();
    took.sort_unstable();
    took[took.len() * 99 / 100].as_secs_f64() * 1e3
}

struct Fleet {
    redis: Child,
    dir: tempfile::TempDir,
    replicas: Vec<Replica>,
    now: Nanos,
}

impl Fleet {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let redis = redis(dir.path(), &socket(&dir));
        let patience = Instant::now();
        while resp::Client::connect(&socket(&dir)).is_err() {
            assert!(patience.elapsed() < Duration::from_secs(20), "redis does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        let replicas = (1..=REPLICAS).map(|member| Replica::new(member, &socket(&dir))).collect();
        Self { redis, dir, replicas, now: Nanos(1_763_632_345_000_000_000) }
    }

    /// Redis CPU seconds per report, if one in `every` limits is reported.
    fn cost(&mut self, every: u64, changing: bool) -> f64 {
        let before = self.cpu();
        (0..ROUNDS).for_each(|_| self.heartbeat(every, changing));
        (self.cpu() - before) / (CEILINGS / every * REPLICAS * ROUNDS) as f64
    }

    /// Each replica reports one in `every` of its limits once.
    fn heartbeat(&mut self, every: u64, changing: bool) {
        let turn = self.now.0;
        for look in 0..LOOKS {
            for replica in &mut self.replicas {
                replica.speak(self.now, Due { turn, every, look }, changing);
                self.now = self.now.plus(Nanos(terms().period().0 / REPLICAS / LOOKS + 1));
            }
        }
    }

    /// The same in real time, with all replicas in parallel.
    fn paced_heartbeat(&mut self, every: u64) {
        let (began, now) = (Instant::now(), self.now);
        std::thread::scope(|scope| {
            for replica in &mut self.replicas {
                scope.spawn(move || {
                    for look in 0..LOOKS {
                        let step = look * REPLICAS + replica.member.0 - 1;
                        let later = Nanos(terms().period().0 * step / (REPLICAS * LOOKS));
                        let wait = Duration::from_nanos(later.0).saturating_sub(began.elapsed());
                        std::thread::sleep(wait);
                        replica.speak(now.plus(later), Due { turn: now.0, every, look }, true);
                    }
                });
            }
        });
        std::thread::sleep(period().saturating_sub(began.elapsed()));
        self.now = now.plus(terms().period());
    }

    /// Latencies of consecutive charges while `what` runs.
    fn charges_while(&mut self, what: impl FnOnce(&mut Self)) -> Vec<Duration> {
        let mut client = resp::Client::connect(&socket(&self.dir)).unwrap();
        let sha = client.call(&["SCRIPT", "LOAD", CHARGE_SCRIPT]).text();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let asker = scope.spawn(|| {
                let mut took = Vec::new();
                while !ended.load(Relaxed) {
                    let call = charges::evalsha(&sha, took.len() as u64 % CEILINGS);
                    let began = Instant::now();
                    client.call(&call).text();
                    took.push(began.elapsed());
                    std::thread::sleep(REST);
                }
                took
            });
            what(self);
            ended.store(true, Relaxed);
            asker.join().unwrap()
        })
    }

    /// The time of a script call of one heartbeat of the fleet, in microseconds.
    fn script_time(&mut self) -> f64 {
        let before = self.script_calls();
        self.heartbeat(1, true);
        let after = self.script_calls();
        (after.1 - before.1) / (after.0 - before.0)
    }

    /// The number of script calls of Redis, and their time in microseconds.
    fn script_calls(&mut self) -> (f64, f64) {
        let info = self.replicas[0].client.call(&["INFO", "commandstats"]).text();
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let of = |name: &str| -> f64 {
            let mut fields = line.unwrap().split(',');
            fields.find_map(|field| field.strip_prefix(name)).unwrap().parse().unwrap()
        };
        (of("calls="), of("usec="))
    }

    /// Redis CPU time in seconds.
    fn cpu(&mut self) -> f64 {
        let info = self.replicas[0].client.call(&["INFO", "cpu"]).text();
        let of = |name: &str| -> f64 {
            info.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
        };
        of("used_cpu_user:") + of("used_cpu_sys:")
    }
}

/// Selects the limits to report.
#[derive(Clone, Copy)]
struct Due {
    turn: u64,
    every: u64,
    look: u64,
}

impl Due {
    fn includes(self, ceiling: u64) -> bool {
        // A pseudo-random instant, the same for all replicas.
        let dice = ceiling.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        dice % LOOKS == self.look && (ceiling + self.turn).is_multiple_of(self.every)
    }
}

struct Replica {
    member: ReplicaId,
    client: resp::Client,
    sha: String,
    number: u64,
    life: Option<Incarnation>,
    holds: HashMap<u64, GrantInUse>,
    dice: u64,
    has_customers: bool,
}

impl Replica {
    fn new(member: u64, socket: &Path) -> Self {
        let mut client = resp::Client::connect(socket).unwrap();
        let sha = client.call(&["SCRIPT", "LOAD", HEARTBEAT_SCRIPT]).text();
        let (holds, dice) = (HashMap::new(), 42 + member);
        Self {
            member: ReplicaId(member),
            client,
            sha,
            number: 0,
            life: None,
            holds,
            dice,
            has_customers: false,
        }
    }

    /// Reports the due limits, in as many rounds as a real replica needs.
    fn speak(&mut self, now: Nanos, due: Due, changing: bool) {
        let all: Vec<u64> = (0..CEILINGS).filter(|at| due.includes(*at)).collect();
        self.report(now, &all, changing);
    }

    fn report(&mut self, now: Nanos, ceilings: &[u64], changing: bool) {
        for some in ceilings.chunks(reports_per_round(std::iter::repeat(REPLICAS))) {
            self.round(now, some, changing);
        }
    }

    fn round(&mut self, now: Nanos, ceilings: &[u64], changing: bool) {
        let beats = ceilings.iter().map(|at| self.beat(*at, changing)).collect();
        let record = IncarnationRecord {
            replica: self.member,
            incarnation: Incarnation(1),
            coordinator_incarnation: self.life,
        };
        let round = ShareRound {
            record,
            last_reply_at: None,
            longest_use: Nanos::from_secs(15),
            is_leaving: false,
            reports: beats,
        };
        let packed = pack(&round, b"", "store", Some(now));
        let count = packed.keys.len().to_string().into_bytes();
        let head = [b"EVALSHA".to_vec(), self.sha.clone().into_bytes(), count];
        let parts: Vec<_> = head.into_iter().chain(packed.keys).chain(packed.args).collect();
        let resp::Value::Text(reply) = self.client.call(&parts) else { panic!("no text") };
        let answer = read(&round, &decode_doubles(&reply).unwrap()).unwrap();
        self.life = Some(answer.incarnation);
        for (at, reply) in ceilings.iter().zip(answer.replies) {
            let Some(HeartbeatReply::Grant(grant)) = reply else { panic!("{reply:?}") };
            self.holds.insert(*at, grant.into());
        }
    }

    fn beat(&mut self, ceiling: u64, changing: bool) -> ShareReport {
        self.number += 1;
        let (in_flight, wanted) = if changing { (self.roll(20), self.roll(40)) } else { (3, 3) };
        let curve = if self.has_customers { self.curve() } else { DemandCurve::EMPTY };
        let said = Heartbeat {
            replica: self.member,
            incarnation: Incarnation(1),
            number: self.number,
            grant_in_use: self.holds.get(&ceiling).copied(),
            in_flight: Share(in_flight),
            demand: Share(wanted),
            curve,
            vote: None,
            is_leaving: false,
            is_claimed: false,
        };
        let law = CoordinatorConfig::new(terms(), Share(1), CEILING, CEILING).unwrap();
        let law = CoordinatorConfig { classes: ClassParts::new(&[100, 80, 50]).unwrap(), ..law };
        ShareReport { bucket: ceiling.to_string().into_bytes().into(), law, heartbeat: said }
    }

    /// The curve of 30 customers in three classes.
    fn curve(&mut self) -> DemandCurve {
        let customer = |number: u64| CustomerDemand {
            class: (number % 3) as u8,
            demand: 16 * self.roll(9) as u32,
            weight: 1,
        };
        DemandCurve::of_customers(&mut (0..30).map(customer).collect())
    }

    fn roll(&mut self, most: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.dice >> 33) % (most + 1)
    }
}

fn socket(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("redis.sock")
}

impl Drop for Fleet {
    fn drop(&mut self) {
        drop(self.redis.kill());
        drop(self.redis.wait());
    }
}

fn redis(dir: &Path, socket: &PathBuf) -> Child {
    Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
        .arg(socket)
        .current_dir(dir)
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("REDIS IS MISSING: no redis-server here: {error}"))
}
