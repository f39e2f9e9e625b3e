//! What heartbeats of ceilings cost the Redis: 1,000 ceilings of 20 replicas, all of whose reports change each second, or one in
//! twenty. By what the Redis says of itself (`INFO cpu`), so that it is the same whatever else the machine does.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, clippy::cast_precision_loss)]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

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
use std::time::{Duration, Instant};

use sluicegate::backend::heartbeat::{Beat, MOST_BEATS, Round};
use sluicegate::backend::redis::HEARTBEAT;
use sluicegate::backend::redis::codec::heartbeat::{pack, read};
use sluicegate::kernel::coordinator::life::Record;
use sluicegate::kernel::coordinator::message::Holding;
use sluicegate::kernel::coordinator::{Heartbeat, Law, Reply, Terms};
use sluicegate::kernel::units::{Incarnation, MemberId, Nanos, Share};

const CEILINGS: u64 = 1_000;
const REPLICAS: u64 = 20;
const CEILING: Share = Share(400);
const ROUNDS: u64 = 5;

fn main() {
    let mut fleet = Fleet::start();
    for _ in 0..20 {
        fleet.second(1, false);
    }
    for (what, every, bound) in [("all changing", 1, 400.0), ("5 % changing", 20, 40.0)] {
        let (before, beats) = (fleet.cpu(), fleet.number);
        for _ in 0..ROUNDS {
            fleet.second(every, true);
        }
        let (took, beats) = (fleet.cpu() - before, (fleet.number - beats) as f64);
        let (millis, each) = (took * 1e3 / ROUNDS as f64, took * 1e6 / beats);
        println!("{what}: {millis:.0} ms a second (bound {bound}), {each:.1} us a heartbeat");
    }
}

struct Fleet {
    redis: Child,
    _dir: tempfile::TempDir,
    client: resp::Client,
    sha: String,
    now: Nanos,
    number: u64,
    life: Option<Incarnation>,
    holds: HashMap<(u64, u64), Holding>,
    dice: u64,
}

impl Fleet {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("redis.sock");
        let redis = redis(dir.path(), &socket);
        let patience = Instant::now();
        let mut client = loop {
            match resp::Client::connect(&socket) {
                Ok(client) => break client,
                Err(why) => assert!(patience.elapsed() < Duration::from_secs(20), "{why}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let sha = client.call(&["SCRIPT", "LOAD", HEARTBEAT]).text();
        let (now, holds) = (Nanos(1_763_632_345_000_000_000), HashMap::new());
        Self { redis, _dir: dir, client, sha, now, number: 0, life: None, holds, dice: 42 }
    }

    /// Every replica speaks once, of one in `every` of its ceilings.
    fn second(&mut self, every: u64, changing: bool) {
        for replica in 1..=REPLICAS {
            let all: Vec<u64> =
                (0..CEILINGS).filter(|at| (at + self.now.0).is_multiple_of(every)).collect();
            for some in all.chunks(MOST_BEATS) {
                self.round(replica, some, changing);
            }
            self.now = self.now.plus(Nanos(Nanos::SECOND.0 / REPLICAS + 1));
        }
    }

    fn round(&mut self, replica: u64, ceilings: &[u64], changing: bool) {
        let beats = ceilings.iter().map(|at| self.beat(replica, *at, changing)).collect();
        let (member, life) = (MemberId(replica), Incarnation(1));
        let record = Record { member, life, under: self.life };
        let round = Round { record, longest: Nanos::from_secs(15), leaves: false, beats };
        let packed = pack(&round, b"", "store", Some(self.now));
        let count = packed.keys.len().to_string().into_bytes();
        let head = [b"EVALSHA".to_vec(), self.sha.clone().into_bytes(), count];
        let parts: Vec<_> = head.into_iter().chain(packed.keys).chain(packed.args).collect();
        let answer = read(&round, &self.client.call(&parts).ints()).unwrap();
        self.life = Some(answer.life);
        for (at, reply) in ceilings.iter().zip(answer.replies) {
            let Some(Reply::Grant(grant)) = reply else { panic!("{reply:?}") };
            self.holds.insert((replica, *at), grant.into());
        }
    }

    fn beat(&mut self, replica: u64, ceiling: u64, changing: bool) -> Beat {
        let [heartbeat, term, max_duration] = [1, 5, 10].map(Nanos::from_secs);
        let terms = Terms::new(heartbeat, term, max_duration, 1_000).unwrap();
        self.number += 1;
        let (in_flight, wanted) = if changing { (self.roll(20), self.roll(40)) } else { (3, 3) };
        let said = Heartbeat {
            member: MemberId(replica),
            life: Incarnation(1),
            number: self.number,
            holds: self.holds.get(&(replica, ceiling)).copied(),
            in_flight: Share(in_flight),
            wanted: Share(wanted),
            vote: None,
            leaves: false,
        };
        let law = Law::new(terms, Share(1), CEILING, CEILING).unwrap();
        Beat { bucket: ceiling.to_string().into_bytes().into(), law, said }
    }

    fn roll(&mut self, most: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.dice >> 33) % (most + 1)
    }

    /// Seconds.
    fn cpu(&mut self) -> f64 {
        let info = self.client.call(&["INFO", "cpu"]).text();
        let of = |name: &str| -> f64 {
            info.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
        };
        of("used_cpu_user:") + of("used_cpu_sys:")
    }
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
