//! The simulated fleet: replicas, Envoys, keys, and the messages between replicas and the store.
//!
//! | time | event |
//! |---|---|
//! | 8 to 12 s | messages and CPU time are counted |
//! | 12 s | replicas with high and low demand change places |
//! | 20 to 29 s | no messages between a tenth of the replicas and the store |
//! | 36 to 46 s | rolling update: each second, a tenth of the replicas restarts |
//! | 54 s | failover of the store: 300 ms without replies, and 100 ms of changes lost |
//!
//! Guarantees:
//! - A run depends on the number of replicas, the seed and the flaw only, except CPU times.
//!
//! Not covered:
//! - Clock drift and crashes; see the simulations in `crates/kernel/tests`.

use sluicegate_kernel::coordinator::Grant;
use sluicegate_kernel::lease::{BorrowReply, BorrowRequest, ReplicaIncarnation};
use sluicegate_kernel::units::{Nanos, Share};

use super::dice::Dice;
use super::figures::{CLASSES, Event, Figures, class_of_key};
use super::flaw::Flaw;
use super::replica::Replica;
use super::store::{HOT_KEYS, ShareMessage, Store};

const TICK: Nanos = Nanos(5 * Nanos::MILLI.0);
const SECOND: u64 = 200;
const COUNTED: std::ops::Range<u64> = 8 * SECOND..12 * SECOND;
const FLIP: u64 = 12 * SECOND;
const CUT: u64 = 20 * SECOND;
const HEALED: u64 = 29 * SECOND;
const ROLLING: u64 = 36 * SECOND;
const ROLLED: u64 = 46 * SECOND;
const FAILOVER: u64 = 54 * SECOND;
const END: u64 = 68 * SECOND;
/// A replica drains for this time, and its successor starts a second after the start of the drain.
const DRAIN: u64 = 60;
/// The time without replies in a failover.
const DOWN: u64 = 60;
const ENVOYS: usize = 5;
const KEYS_OF_ENVOY: usize = 60;
/// The largest demand for permits of one replica.
pub const MAX_DEMAND: u64 = 12;

enum Call {
    Lease(u32, ReplicaIncarnation, BorrowRequest),
    Share(ShareMessage),
    Membership,
}

enum Reply {
    Lease(u32, BorrowReply),
    /// The limit, the store's time, and the grant.
    Share(usize, Nanos, Grant),
}

/// The messages that arrive in one tick.
#[derive(Default)]
struct Arrivals {
    calls: [Vec<(usize, Call)>; CLASSES],
    /// The replica, its life, and the reply.
    replies: Vec<(usize, u64, Reply)>,
}

struct Envoy {
    home: usize,
    replica: usize,
    keys: Vec<u32>,
}

pub struct World {
    pub(super) tick: u64,
    dice: Dice,
    pub(super) flaw: Flaw,
    pub(super) store: Store,
    pub(super) replicas: Vec<Replica>,
    envoys: Vec<Envoy>,
    network: [Arrivals; 8],
    /// The hits allowed, by key.
    pub(super) allowed: Vec<u64>,
    /// The event from which the fleet has not converged yet.
    pub(super) pending: Option<(Event, u64)>,
    /// The CPU time of this thread, in nanoseconds.
    cpu_time: fn() -> u64,
    pub(super) figures: Figures,
}

impl World {
    pub fn new(replicas: u32, seed: u64, flaw: Flaw, cpu_time: fn() -> u64) -> Self {
        let store = Store::new(replicas, time(FAILOVER), flaw);
        let mut dice = Dice::new(seed);
        let timing = store.config.timing;
        let count = replicas as usize;
        let most = u64::from(replicas) * 100 - 1;
        let envoy = |at| {
            let keys = (0..KEYS_OF_ENVOY).map(|_| dice.up_to(most) as u32 + HOT_KEYS as u32);
            Envoy { home: at % count, replica: at % count, keys: keys.collect() }
        };
        Self {
            tick: 0,
            flaw,
            allowed: vec![0; store.keys.len()],
            envoys: (0..ENVOYS * count).map(envoy).collect(),
            replicas: (0..count as u64).map(|id| Replica::new(id, 1, timing, flaw)).collect(),
            store,
            network: Default::default(),
            pending: Some((Event::Start, 0)),
            cpu_time,
            figures: Figures::new(replicas),
            dice,
        }
    }

    pub fn run(mut self) -> Figures {
        while self.tick < END {
            self.tick += 1;
            self.play_schedule();
            self.deliver();
            if self.tick.is_multiple_of(2) {
                self.poll();
                self.measure_shares();
            }
            self.check_keys();
            self.send_memberships();
            if self.tick.is_multiple_of(SECOND) {
                self.measure_leases();
                self.figures.end_second();
            }
        }
        self.figures.unconverged = self.pending.map(|(event, _)| event);
        self.figures
    }

    pub(super) fn now(&self) -> Nanos {
        time(self.tick)
    }

    fn play_schedule(&mut self) {
        let tenth = self.replicas.len() / 10;
        match self.tick {
            FLIP => self.expect(Event::Flip),
            CUT | HEALED => {
                self.replicas[..tenth]
                    .iter_mut()
                    .for_each(|replica| replica.is_cut = !replica.is_cut);
                self.expect(if self.tick == CUT { Event::Partition } else { Event::Healing });
            }
            ROLLED => self.expect(Event::RollingUpdate),
            FAILOVER => {
                self.store.fail_over(self.now());
                self.expect(Event::Failover);
            }
            _ => {}
        }
        if (ROLLING..ROLLED + SECOND).contains(&self.tick) {
            self.roll();
        }
    }

    fn expect(&mut self, event: Event) {
        if let Some((missed, _)) = self.pending.replace((event, self.tick)) {
            self.figures.unconverged = Some(missed);
        }
    }

    /// Restarts the replicas of one batch a second.
    fn roll(&mut self) {
        let (batch, phase) = ((self.tick - ROLLING) / SECOND, (self.tick - ROLLING) % SECOND);
        for at in (0..self.replicas.len()).filter(|at| *at as u64 % 10 == batch) {
            match phase {
                0 => self.drain(at),
                DRAIN => self.stop(at),
                _ => {}
            }
        }
        for at in (0..self.replicas.len()).filter(|at| *at as u64 % 10 + 1 == batch) {
            if phase == 0 {
                let (id, life) = (self.replicas[at].id, self.replicas[at].life + 1);
                self.replicas[at] = Replica::new(id, life, self.store.config.timing, self.flaw);
                self.envoys
                    .iter_mut()
                    .filter(|envoy| envoy.home == at)
                    .for_each(|envoy| envoy.replica = at);
            }
        }
    }

    fn drain(&mut self, at: usize) {
        let count = self.replicas.len();
        for envoy in self.envoys.iter_mut().filter(|envoy| envoy.replica == at) {
            let other = self.dice.up_to(count as u64 - 1) as usize;
            envoy.replica = if other % 10 == at % 10 { (other + 1) % count } else { other };
        }
        let member = self.replicas[at].member();
        for (key, message) in self.replicas[at].return_leases(time(self.tick)) {
            self.call(at, class_of_key(key), Call::Lease(key, member, message));
        }
        self.replicas[at].is_draining = true;
    }

    fn stop(&mut self, at: usize) {
        self.replicas[at].is_on = false;
        for limit in 0..2 {
            let requests = &mut self.replicas[at].requests[limit];
            let in_flight = Share(std::mem::take(&mut requests.in_flight));
            let heartbeat = requests.client.last_heartbeat(time(self.tick), in_flight);
            self.call(at, 2 + limit, Call::Share(ShareMessage { limit, heartbeat, under: None }));
        }
    }

    fn call(&mut self, from: usize, class: usize, call: Call) {
        if !self.is_lost(from) {
            let at = self.arrival();
            self.network[at].calls[class].push((from, call));
        }
    }

    fn arrival(&mut self) -> usize {
        ((self.tick + 1 + self.dice.up_to(1)) % 8) as usize
    }

    /// One message in a thousand is lost, and all in a partition or while no store runs.
    fn is_lost(&mut self, replica: usize) -> bool {
        let is_down = (FAILOVER..FAILOVER + DOWN).contains(&self.tick);
        is_down || self.replicas[replica].is_cut || self.dice.once_in(1_000)
    }

    fn deliver(&mut self) {
        let arrivals = std::mem::take(&mut self.network[(self.tick % 8) as usize]);
        for (replica, life, reply) in arrivals.replies {
            self.apply_reply(replica, life, &reply);
        }
        for (class, calls) in arrivals.calls.into_iter().enumerate() {
            if calls.is_empty() {
                continue;
            }
            let started = (self.cpu_time)();
            let replies: Vec<_> = calls.iter().map(|(_, call)| self.apply_call(call)).collect();
            let cpu = (self.cpu_time)() - started;
            let is_counted = COUNTED.contains(&self.tick);
            self.figures.record_calls(is_counted, class, calls.len() as u64, cpu);
            for ((from, _), reply) in calls.iter().zip(replies) {
                self.send_reply(*from, reply);
            }
        }
    }

    fn apply_call(&mut self, call: &Call) -> Option<Reply> {
        let now = self.now();
        match call {
            Call::Lease(key, member, message) => {
                let reply = self.store.apply_lease(now, *key as usize, *member, message)?;
                Some(Reply::Lease(*key, reply))
            }
            Call::Share(message) => {
                let grant = self.store.apply_share(now, message)?;
                Some(Reply::Share(message.limit, now, grant))
            }
            Call::Membership => {
                if COUNTED.contains(&self.tick) {
                    self.figures.listed += self.store.apply_membership() as u64;
                }
                None
            }
        }
    }

    /// Sends a reply; one in two hundred arrives twice.
    fn send_reply(&mut self, to: usize, reply: Option<Reply>) {
        let Some(reply) = reply.filter(|_| !self.is_lost(to)) else { return };
        let (at, life) = (self.arrival(), self.replicas[to].life);
        if let (Reply::Lease(key, copy), true) = (&reply, self.dice.once_in(200)) {
            self.network[(at + 2) % 8].replies.push((to, life, Reply::Lease(*key, *copy)));
        }
        self.network[at].replies.push((to, life, reply));
    }

    fn apply_reply(&mut self, to: usize, life: u64, reply: &Reply) {
        let (now, replica) = (time(self.tick), &mut self.replicas[to]);
        if !replica.is_on || replica.life != life {
            return;
        }
        match reply {
            Reply::Lease(key, reply) => {
                self.allowed[*key as usize] += replica.settle(now, *key, reply);
            }
            Reply::Share(limit, at, grant) => replica.apply_grant(now, *limit, *at, grant),
        }
    }

    fn poll(&mut self) {
        let (now, poll) = (self.now(), (self.tick / 2) as usize);
        let is_flipped = FLIP <= self.tick;
        for at in 0..self.replicas.len() {
            let replica = &mut self.replicas[at];
            if !replica.is_on {
                continue;
            }
            let is_high = at.is_multiple_of(2) != is_flipped;
            let scarce = if is_high { MAX_DEMAND } else { MAX_DEMAND / 2 };
            let demands = if replica.is_draining { [0, 0] } else { [2, scarce] };
            replica
                .requests
                .iter_mut()
                .zip(demands)
                .for_each(|(requests, demand)| requests.demand = demand);
            let heartbeats = replica.poll(now, poll);
            let under = replica.under(now);
            for (limit, heartbeat) in heartbeats.into_iter().enumerate() {
                let Some(heartbeat) = heartbeat else { continue };
                self.call(at, 2 + limit, Call::Share(ShareMessage { limit, heartbeat, under }));
            }
        }
    }

    /// Each Envoy sends 60 checks a second for its keys, and 4 for hot keys.
    fn check_keys(&mut self) {
        let phase = (self.tick % 20) as usize;
        for at in (phase..self.envoys.len()).step_by(20) {
            let mut keys = [0_u32; 7];
            for key in &mut keys[1..] {
                *key = self.envoys[at].keys[self.dice.up_to(KEYS_OF_ENVOY as u64 - 1) as usize];
            }
            keys[0] = self.dice.up_to(HOT_KEYS as u64 - 1) as u32;
            let first = usize::from(4 <= self.dice.up_to(9));
            for key in &keys[first..] {
                self.check(self.envoys[at].replica, *key);
            }
        }
    }

    fn check(&mut self, at: usize, key: u32) {
        let (now, replica) = (time(self.tick), &mut self.replicas[at]);
        if !replica.is_on || replica.is_draining {
            return;
        }
        let (allowed, message) = replica.check(now, key, &self.store.keys[key as usize]);
        let member = replica.member();
        self.allowed[key as usize] += allowed;
        if let Some(message) = message {
            self.call(at, class_of_key(key), Call::Lease(key, member, message));
        }
    }

    /// Each replica sends a membership heartbeat once a second.
    fn send_memberships(&mut self) {
        let phase = (self.tick % SECOND) as usize;
        for at in (phase..self.replicas.len()).step_by(SECOND as usize) {
            if self.replicas[at].is_on {
                self.call(at, CLASSES - 1, Call::Membership);
            }
        }
    }
}

/// The simulated time of a tick.
pub fn time(tick: u64) -> Nanos {
    Nanos(tick * TICK.0)
}
