//! Compares the Lua script of share rounds with the coordinator in the kernel crate.

mod corrupt_state;
mod data_loss;
mod expiry;
mod large_fleets;

use std::collections::HashMap;

use sluicegate::kernel::concurrency::ClassParts;
use sluicegate::kernel::coordinator::aggregate::{LimitFactor, VoteAggregate};
use sluicegate::kernel::coordinator::demand_curve::CustomerDemand;
use sluicegate::kernel::coordinator::incarnation::IncarnationRecord;
use sluicegate::kernel::coordinator::message::GrantInUse;
use sluicegate::kernel::coordinator::{
    CoordinatorConfig, DemandCurve, Grant, Heartbeat, HeartbeatReply, ShareTiming,
};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::units::{Generation, Incarnation, Nanos, ReplicaId, Share};
use sluicegate::store::heartbeat::{BucketKey, ShareReport, ShareRound, ShareRoundReply};
use sluicegate::store::memory::coordinators::Coordinators;
use sluicegate::store::redis::HEARTBEAT_SCRIPT;
use sluicegate::store::redis::codec::heartbeat::{pack, read};

use super::{integers, traces};
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;
use crate::support::resp::{Client, Value};

const START: Nanos = Nanos(1_763_632_345_678_912_000);

const TRACES: u64 = 90;

const STEPS: usize = 290;

const CEILINGS: u64 = 3;

const REPLICAS: u64 = 5;

struct Reporter {
    client: Client,
    sha: String,
}

impl Reporter {
    fn new(redis: &Redis) -> Self {
        let mut client = redis.connect();
        let sha = client.call(&["SCRIPT", "LOAD", HEARTBEAT_SCRIPT]).text();
        Self { client, sha }
    }

    fn queue(&mut self, round: &ShareRound, prefix: &str, store: &str, at: Option<Nanos>) {
        let packed = pack(round, prefix.as_bytes(), store, at);
        let count = packed.keys.len().to_string();
        let head = [b"EVALSHA".to_vec(), self.sha.clone().into_bytes(), count.into_bytes()];
        let parts: Vec<_> = head.into_iter().chain(packed.keys).chain(packed.args).collect();
        self.client.queue(&parts);
    }

    fn receive(&mut self, round: &ShareRound) -> ShareRoundReply {
        match self.client.receive() {
            reply @ Value::Text(_) => read(round, &integers(&reply)).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn send(&mut self, round: &ShareRound) -> ShareRoundReply {
        self.send_at(round, None)
    }

    fn send_at(&mut self, round: &ShareRound, at: Option<Nanos>) -> ShareRoundReply {
        self.queue(round, "test:", "a", at);
        self.client.flush();
        self.receive(round)
    }
}

fn bucket(number: u64) -> BucketKey {
    let number = number.to_string();
    CounterKey::concurrency_bucket("d", [("ceiling", &*number)].into_iter()).as_bytes().into()
}

fn terms(max_duration: u64) -> ShareTiming {
    terms_of(5, max_duration)
}

fn terms_of(term: u64, max_duration: u64) -> ShareTiming {
    let [heartbeat, term, max_duration] = [1, term, max_duration].map(Nanos::from_secs);
    ShareTiming::new(heartbeat, term, max_duration, 1_000).unwrap()
}

fn any_terms(dice: &mut Dice) -> ShareTiming {
    terms_of(dice.pick(&[3, 5, 5, 5, 9]), dice.pick(&[0, 1, 10, 60]))
}

fn law(dice: &mut Dice) -> CoordinatorConfig {
    let terms = any_terms(dice);
    let max = dice.pick(&[1, 2, 4, 7, 64, 1_000, 1 << 24]);
    let min = 1 + dice.up_to(max - 1) / dice.pick(&[1, 4, max]);
    let start = min + dice.up_to(max - min);
    CoordinatorConfig {
        aggregate: dice.pick(&[VoteAggregate::Median, VoteAggregate::Min]),
        classes: ClassParts::new(dice.pick(&[&[100][..], &[100, 50], &[90, 90, 7, 1]])).unwrap(),
        ..CoordinatorConfig::new(terms, Share(min), Share(start), Share(max)).unwrap()
    }
}

/// Returns a curve of few or many customers, in more classes than some limits have.
fn any_curve(dice: &mut Dice) -> DemandCurve {
    let [most, classes] = [dice.pick(&[1, 4, 40]), dice.pick(&[1, 2, 5])];
    let customer = |number: u64| {
        let most = 1 << dice.pick(&[4, 9, 26]);
        CustomerDemand {
            class: u8::try_from(number % classes).unwrap(),
            demand: u32::try_from(dice.up_to(most)).unwrap(),
            weight: dice.pick(&[1, 1, 3, 1_000]),
        }
    };
    DemandCurve::of_customers(&mut (0..=most).map(customer).collect())
}

/// The grants for one limit to one replica, and the replica's last heartbeat.
#[derive(Clone, Debug, Default)]
struct GrantHistory {
    number: u64,
    grants: Vec<Grant>,
    last: Option<Heartbeat>,
}

/// Generates random share rounds of replicas that lose, repeat and delay messages.
struct HeartbeatTrace {
    dice: Dice,
    now: Nanos,
    store: &'static str,
    laws: Vec<CoordinatorConfig>,
    coordinators: Coordinators,
    lives: Vec<u64>,
    histories: HashMap<(u64, u64, u64), GrantHistory>,
    life: Option<Incarnation>,
    /// The instant of the store's last reply to each replica and incarnation.
    answered: HashMap<(u64, u64), Nanos>,
    /// The factor by which delays, departures and configuration changes are rarer in this trace.
    calm: u64,
}

impl HeartbeatTrace {
    fn new(mut dice: Dice) -> Self {
        let calm = dice.pick(&[1, 1, 8]);
        let laws = (0..CEILINGS).map(|_| law(&mut dice)).collect();
        let lives = (1..=REPLICAS).collect();
        let (coordinators, histories, answered) = Default::default();
        let (now, store, life) = (START, "a", None);
        Self { dice, now, store, laws, coordinators, lives, histories, life, answered, calm }
    }

    fn wait(&mut self) {
        let millis = match self.dice.up_to(20) {
            _ if self.calm != 1 && !self.dice.once_in(20) => self.dice.up_to(200),
            0..=5 => 0,
            6 => self.dice.pick(&[1_000, 2_000, 5_000, 15_000]),
            7..=15 => self.dice.up_to(400),
            16..=18 => self.dice.up_to(3_000),
            19 => self.dice.up_to(9_000),
            _ => self.dice.up_to(80_000),
        };
        let micros = if self.dice.once_in(2) { 0 } else { self.dice.up_to(9) };
        self.now = self.now.plus(Nanos(millis * Nanos::MILLI.0 + micros * 1_000));
        if self.dice.once_in(40 * self.calm) {
            self.now = Nanos(self.now.0 - self.dice.up_to(3_000) * Nanos::MILLI.0);
        }
    }

    fn change(&mut self) {
        if self.dice.once_in(120 * self.calm) {
            self.store = self.dice.pick(&["a", "b", ""]);
        }
        if self.dice.once_in(60 * self.calm) {
            let at = usize::try_from(self.dice.up_to(CEILINGS - 1)).unwrap();
            self.laws[at] = law(&mut self.dice);
        }
        // Timing changes more often than the rest, to test requests that continue under an old
        // timing.
        if self.dice.once_in(20 * self.calm) {
            let at = usize::try_from(self.dice.up_to(CEILINGS - 1)).unwrap();
            self.laws[at].timing = any_terms(&mut self.dice);
        }
        if self.dice.once_in(40 * self.calm) {
            let at = usize::try_from(self.dice.up_to(REPLICAS - 1)).unwrap();
            self.lives[at] += self.dice.up_to(2);
        }
    }

    fn beat(&mut self, ceiling: u64, replica: u64, life: u64) -> ShareReport {
        let law = self.laws[usize::try_from(ceiling).unwrap()];
        let (dice, calm) = (&mut self.dice, self.calm);
        let history = self.histories.entry((ceiling, replica, life)).or_default();
        let bucket = bucket(ceiling);
        if let Some(said) = history.last.filter(|_| dice.once_in(10)) {
            // Repeats the last heartbeat.
            return ShareReport { bucket, law, heartbeat: said };
        }
        history.number += dice.up_to(3).min(1) + u64::from(dice.once_in(9));
        let newest = history.grants.len().saturating_sub(1);
        let which = if dice.once_in(6) { dice.up_to(3) } else { 0 };
        let which = newest.saturating_sub(usize::try_from(which).unwrap());
        let mut holds = history.grants.get(which).copied().map(GrantInUse::from);
        if dice.once_in(12 * calm) {
            holds = None;
        } else if let Some(holds) = holds.as_mut().filter(|_| dice.once_in(300)) {
            holds.generation = Generation(holds.generation.0 + 1_000);
        }
        let most = law.max.0.min(40);
        let any = |dice: &mut Dice| match dice.up_to(5) {
            0 | 1 => 0,
            2 => 1,
            3 => most,
            _ => dice.up_to(most),
        };
        let said = Heartbeat {
            replica: ReplicaId(replica + (1 << 52)),
            incarnation: Incarnation(life),
            number: history.number,
            grant_in_use: holds,
            in_flight: Share(any(dice) / dice.pick(&[1, 4])),
            demand: Share(if dice.once_in(8) { 1 << 24 } else { any(dice) }),
            curve: if dice.once_in(2) { any_curve(dice) } else { DemandCurve::EMPTY },
            vote: dice.once_in(2).then(|| {
                LimitFactor(u32::try_from(dice.up_to(3 << 16)).unwrap() / dice.pick(&[1, 2, 100]))
            }),
            is_leaving: dice.once_in(25 * calm),
            is_claimed: dice.once_in(4),
        };
        history.last = Some(said);
        ShareReport { bucket, law, heartbeat: said }
    }

    fn round(&mut self) -> ShareRound {
        let replica = self.dice.up_to(REPLICAS - 1);
        let mut life = self.lives[usize::try_from(replica).unwrap()];
        life -= u64::from(1 < life && self.dice.once_in(20));
        let first = self.dice.up_to(CEILINGS - 1);
        let count = self.dice.up_to(CEILINGS);
        let beats: Vec<ShareReport> =
            (0..count).map(|at| self.beat((first + at) % CEILINGS, replica, life)).collect();
        let believes = self.life.filter(|_| !self.dice.once_in(10));
        let earlier = Nanos(self.dice.pick(&[0, 0, 1, 4_000]) * Nanos::MILLI.0);
        let answered = self.answered.get(&(replica, life)).filter(|_| !self.dice.once_in(4));
        ShareRound {
            record: IncarnationRecord {
                replica: ReplicaId(replica),
                incarnation: Incarnation(life),
                coordinator_incarnation: believes,
            },
            last_reply_at: answered.map(|at| Nanos(at.0 - earlier.0)),
            longest_use: Nanos::from_secs(self.dice.pick(&[5, 6, 15, 65])),
            is_leaving: self.dice.once_in(15 * self.calm),
            reports: beats,
        }
    }

    fn step(&mut self) -> (ShareRound, &'static str, Nanos, ShareRoundReply) {
        self.wait();
        self.change();
        let round = self.round();
        let heard = self.coordinators.apply_round(self.now, self.store, &round);
        self.life = Some(heard.incarnation);
        self.answered
            .insert((round.record.replica.0, round.record.incarnation.0), heard.store_time);
        for (beat, reply) in round.reports.iter().zip(&heard.replies) {
            let name = (beat.heartbeat.replica.0 - (1 << 52), beat.heartbeat.incarnation.0);
            let ceiling = (0..CEILINGS).find(|at| bucket(*at) == beat.bucket).unwrap();
            if let Some(HeartbeatReply::Grant(grant)) = reply {
                self.histories.entry((ceiling, name.0, name.1)).or_default().grants.push(*grant);
            }
        }
        (round, self.store, self.now, heard)
    }
}

#[derive(Debug, Default)]
struct HeartbeatCounts([u64; 9]);

impl HeartbeatCounts {
    fn count(&mut self, reply: &HeartbeatReply) {
        self.0[match reply {
            HeartbeatReply::Grant(grant) if grant.share == Share(0) => 0,
            HeartbeatReply::Grant(grant) if grant.is_recovering => 1,
            HeartbeatReply::Grant(grant) if grant.share < grant.fair_share => 2,
            HeartbeatReply::Grant(_) => 3,
            HeartbeatReply::Left => 4,
            HeartbeatReply::Stale => 5,
            HeartbeatReply::Superseded => 6,
            HeartbeatReply::StateLost => 7,
            HeartbeatReply::TooManyReplicas => 8,
        }] += 1;
    }
}

/// Returns `true` if the store's recovery ended early: less than 3 s, the shortest share lifetime
/// here, after the store's incarnation began. Its number is that instant in microseconds.
fn settled_early(reply: &ShareRoundReply) -> bool {
    let is_young = reply.store_time.0 / Nanos::MICRO.0 < reply.incarnation.0 + 3_000_000;
    let is_sure = |reply: &HeartbeatReply| matches!(reply, HeartbeatReply::Grant(grant) if !grant.is_recovering);
    is_young && reply.replies.iter().flatten().any(is_sure)
}

#[test]
fn heartbeat_script_matches_the_kernel() {
    let (redis, seed) = (Redis::start(), seed());
    let mut reporter = Reporter::new(&redis);
    let (mut tally, mut beats, mut early) = (HeartbeatCounts::default(), 0, 0);
    for number in 0..traces(TRACES) {
        let mut generator = HeartbeatTrace::new(Dice::new(seed ^ number << 32));
        let prefix = format!("{number}:");
        let trace: Vec<_> = (0..STEPS).map(|_| generator.step()).collect();
        for (round, store, now, _) in &trace {
            reporter.queue(round, &prefix, store, Some(*now));
        }
        reporter.client.flush();
        for (step, (round, store, now, wanted)) in trace.iter().enumerate() {
            let said = reporter.receive(round);
            let place = format!("SLUICEGATE_SEED={seed}, trace {number}, step {step}");
            assert_eq!(said, *wanted, "{place}: {round:?} to {store} at {now}");
            wanted.replies.iter().flatten().for_each(|reply| tally.count(reply));
            early += u64::from(settled_early(wanted));
            beats += round.reports.len() as u64;
        }
    }
    println!("{beats} heartbeats: {tally:?}, {early} rounds in a life that was settled early");
    assert!(traces(5) < early, "{early} rounds");
    assert!(traces(36_000) <= beats, "{beats} heartbeats");
    assert!(tally.0[..8].iter().all(|count| traces(15) < *count), "{tally:?}");
}

fn join_round(replica: u64) -> ShareRound {
    let member = ReplicaId(replica);
    let life = Incarnation(1);
    let said = Heartbeat {
        replica: member,
        incarnation: life,
        number: 1,
        grant_in_use: None,
        in_flight: Share(0),
        demand: Share(1),
        curve: DemandCurve::EMPTY,
        vote: None,
        is_leaving: false,
        is_claimed: false,
    };
    let law = CoordinatorConfig::new(terms(10), Share(8), Share(8), Share(8)).unwrap();
    ShareRound {
        record: IncarnationRecord {
            replica: member,
            incarnation: life,
            coordinator_incarnation: None,
        },
        last_reply_at: None,
        longest_use: terms(10).longest_use(),
        is_leaving: false,
        reports: vec![ShareReport { bucket: bucket(0), law, heartbeat: said }],
    }
}

/// A report: milliseconds since the first one, the replica's incarnation, and the time of its last
/// reply.
type ReportTimes = (u64, u64, Option<u64>);

/// Returns `true` if a store is recovering after a failover changed its name. Before, incarnation 1
/// reports at 0 and 16 s, and with `leaves` leaves at 16 s. Afterwards, incarnation `life` reports
/// at `from` and one second later. A share and its requests last up to 15 s.
fn is_recovering(leaves: bool, (from, life, last_reply): ReportTimes) -> bool {
    let redis = Redis::start();
    let (mut reporter, mut coordinators) = (Reporter::new(&redis), Coordinators::default());
    let (mut under, mut is_recovering) = (None, None);
    let before = [("a", (0, 1, None), false), ("a", (16_000, 1, Some(0)), leaves)];
    let after =
        [("b", (from, life, last_reply), false), ("b", (from + 1_000, life, Some(from)), false)];
    for (number, (store, (millis, life, answered), leaves)) in
        (1..).zip(before.into_iter().chain(after))
    {
        let after_start = |millis| START.plus(Nanos(millis * Nanos::MILLI.0));
        let (mut round, at) = (join_round(1), after_start(millis));
        round.record = IncarnationRecord {
            incarnation: Incarnation(life),
            coordinator_incarnation: under,
            ..round.record
        };
        (round.last_reply_at, round.is_leaving) = (answered.map(after_start), leaves);
        let said = &mut round.reports[0].heartbeat;
        (said.incarnation, said.number, said.is_leaving) = (Incarnation(life), number, leaves);
        reporter.queue(&round, "test:", store, Some(at));
        reporter.client.flush();
        let heard = reporter.receive(&round);
        assert_eq!(heard, coordinators.apply_round(at, store, &round), "at {millis} ms");
        under = Some(heard.incarnation);
        is_recovering = heard.replies[0]
            .as_ref()
            .map(|reply| matches!(reply, HeartbeatReply::Grant(g) if g.is_recovering));
    }
    is_recovering.unwrap()
}
