//! Compares the Lua script of share rounds with the coordinator in the kernel crate.

mod large_fleets;

use std::collections::HashMap;

use sluicegate::kernel::coordinator::aggregate::{LimitFactor, VoteAggregate};
use sluicegate::kernel::coordinator::incarnation::IncarnationRecord;
use sluicegate::kernel::coordinator::message::GrantInUse;
use sluicegate::kernel::coordinator::split::SplitMode;
use sluicegate::kernel::coordinator::{
    CoordinatorConfig, Grant, Heartbeat, HeartbeatReply, ShareTiming,
};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::units::{Generation, Incarnation, Nanos, ReplicaId, Share};
use sluicegate::store::heartbeat::{BucketKey, ShareReport, ShareRound, ShareRoundReply};
use sluicegate::store::memory::coordinators::Coordinators;
use sluicegate::store::redis::HEARTBEAT_SCRIPT;
use sluicegate::store::redis::codec::heartbeat::{incarnation_key, pack, read, state_key};

use super::{integers, keys::micros};
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;
use crate::support::resp::{Client, Value};

const START: Nanos = Nanos(1_763_632_345_678_912_000);
const TRACES: usize = 250;
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
        split: dice.pick(&[SplitMode::Demand, SplitMode::Demand, SplitMode::Equal]),
        ..CoordinatorConfig::new(terms, Share(min), Share(start), Share(max)).unwrap()
    }
}

/// The grants for one limit to one replica, and the replica's last heartbeat.
#[derive(Clone, Debug, Default)]
struct GrantHistory {
    number: u64,
    grants: Vec<Grant>,
    last: Option<Heartbeat>,
}

/// Generates random share rounds of replicas that lose, repeat and delay messages.
struct TraceGenerator {
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

impl TraceGenerator {
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
            vote: dice.once_in(2).then(|| {
                LimitFactor(u32::try_from(dice.up_to(3 << 16)).unwrap() / dice.pick(&[1, 2, 100]))
            }),
            is_leaving: dice.once_in(25 * calm),
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
struct Tally([u32; 9]);

impl Tally {
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
    let (mut tally, mut beats, mut early) = (Tally::default(), 0, 0);
    for number in 0..TRACES {
        let mut generator = TraceGenerator::new(Dice::new(seed ^ (number as u64) << 32));
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
            early += u32::from(settled_early(wanted));
            beats += round.reports.len();
        }
    }
    println!("{beats} heartbeats: {tally:?}, {early} rounds in a life that was settled early");
    assert!(30 < early, "{early} rounds");
    assert!(100_000 <= beats, "{beats} heartbeats");
    assert!(tally.0[..8].iter().all(|count| 100 < *count), "{tally:?}");
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
        vote: None,
        is_leaving: false,
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

#[test]
fn new_store_grants_only_shares_that_replicas_report() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let heard = reporter.send(&join_round(1));
    let [Some(HeartbeatReply::Grant(grant))] = heard.replies[..] else { panic!("{heard:?}") };
    assert_eq!((grant.share, grant.is_recovering, grant.fair_share), (Share(0), true, Share(8)));
    assert_eq!(grant.coordinator_incarnation, heard.incarnation);
}

/// A leaving replica may be the first to call a store without state, before replicas with shares
/// report.
#[test]
fn leaving_replica_does_not_end_the_recovery() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let mut coordinators = Coordinators::default();
    let leaves = ShareRound {
        longest_use: Nanos(0),
        is_leaving: true,
        reports: Vec::new(),
        ..join_round(1)
    };
    for (seconds, round) in [(0, &leaves), (1, &leaves), (2, &join_round(2))] {
        let at = START.plus(Nanos::from_secs(seconds));
        let heard = reporter.send_at(round, Some(at));
        assert_eq!(heard, coordinators.apply_round(at, "a", round));
        for reply in heard.replies.iter().flatten() {
            let HeartbeatReply::Grant(grant) = reply else { panic!("{heard:?}") };
            assert!(grant.is_recovering, "{grant:?}");
        }
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

/// A restored state may lack replicas that joined after it was saved and that have shares.
#[test]
fn store_that_lost_recent_replies_starts_recovery() {
    let is_recovering = |answered| is_recovering(false, (25_000, 1, answered));
    assert!(!is_recovering(Some(16_000)), "nothing is missing");
    assert!(!is_recovering(Some(19_000)), "the last moment may be missing after a failover");
    assert!(is_recovering(Some(19_001)));
    assert!(is_recovering(Some(24_999)));
    assert!(!is_recovering(None), "one that was never answered shows nothing");
}

/// A replica that left is not in the restored membership. If it got a later reply, that reply is
/// lost.
#[test]
fn reply_to_a_former_replica_reveals_lost_state() {
    assert!(!is_recovering(true, (25_000, 1, Some(16_000))), "it left, and nobody else came");
    assert!(is_recovering(true, (25_000, 1, Some(24_000))));
}

/// All replicas of the restored membership have expired or left. Replicas that joined later may be
/// missing in it, whatever the incarnation of the first caller.
#[test]
fn store_without_live_replicas_starts_recovery() {
    for (life, leaves) in [(1, false), (2, false), (2, true)] {
        for from in [28_000, 31_000, 600_000] {
            assert!(is_recovering(leaves, (from, life, None)), "life {life} at {from} ms");
        }
    }
    assert!(
        !is_recovering(false, (27_999, 1, Some(16_000))),
        "away for as long as a replica may be"
    );
    assert!(!is_recovering(true, (27_999, 2, None)), "nobody was left, and one came");
    assert!(is_recovering(false, (27_999, 2, None)), "one was there, and has not spoken");
}

#[test]
fn call_without_a_store_name_keeps_the_incarnation() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let mut coordinators = Coordinators::default();
    let mut life = |replica: u64, store: &str| {
        let (round, at) = (join_round(replica), START.plus(Nanos::from_secs(replica)));
        reporter.queue(&round, "test:", store, Some(at));
        reporter.client.flush();
        let heard = reporter.receive(&round);
        assert_eq!(heard, coordinators.apply_round(at, store, &round), "{store}");
        heard.incarnation
    };
    let first = life(1, "a");
    assert_eq!([life(2, ""), life(3, "a"), life(4, "")], [first; 3], "it is one store");
    let second = life(5, "b");
    assert_ne!(second, first, "it was started anew");
    assert_eq!([life(6, ""), life(7, "b")], [second; 2]);
}

#[test]
fn command_in_fleet_docs_ends_the_recovery() {
    let docs = include_str!("../../docs/fleet.md");
    let script = docs.split_once("EVAL \"").unwrap().1.split_once("\" 1 '").unwrap().0;
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let lives = incarnation_key(b"test:");
    let eval = [b"EVAL".to_vec(), script.as_bytes().to_vec(), b"1".to_vec(), lives];
    assert_eq!(reporter.client.call(&eval).text(), "nobody has spoken yet");
    reporter.send(&join_round(1));
    assert_eq!(reporter.client.call(&eval).text(), "settled");
    let heard = reporter.send(&join_round(2));
    let [Some(HeartbeatReply::Grant(grant))] = heard.replies[..] else { panic!("{heard:?}") };
    // The grant is half of the limit: each of two replicas demands one permit, and the rest is
    // split evenly.
    assert_eq!((grant.share, grant.is_recovering), (Share(4), false));
}

/// Sends `round`. Returns the shortest and longest remaining TTL of each key afterwards, in
/// milliseconds, because the store's clock is read before and after.
fn expires<const N: usize>(
    reporter: &mut Reporter,
    round: &ShareRound,
    keys: [Vec<u8>; N],
) -> [(u64, u64); N] {
    let millis = |reporter: &mut Reporter| micros(&reporter.client.call(&["TIME"])) / 1_000;
    let before = millis(reporter);
    reporter.send(round);
    // The script rounds an expiry up.
    let after = millis(reporter) + 3;
    keys.map(|key| {
        let at = reporter.client.call(&[b"PEXPIRETIME".to_vec(), key]);
        let at = u64::try_from(at.int()).unwrap();
        (at - after, at - before)
    })
}

fn adaptive(mut round: ShareRound) -> ShareRound {
    for beat in &mut round.reports {
        beat.law = CoordinatorConfig::new(beat.law.timing, Share(1), Share(8), Share(8)).unwrap();
    }
    round
}

#[test]
fn state_outlives_share_use_by_one_minute_adaptive_ten() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let in_use = 5_000 + 10_000;
    for (round, kept) in [(join_round(1), 60_000), (adaptive(join_round(1)), 600_000)] {
        let mut round = round;
        round.reports[0].bucket = bucket(kept);
        let key = state_key(&bucket(kept), b"test:");
        let [(least, most)] = expires(&mut reporter, &round, [key]);
        let kept = in_use + kept;
        assert!(kept <= most && least <= kept + 60_000, "{kept}: {least} to {most}");
    }
    let month = 30 * 86_400 * 1_000;
    let [(least, most)] = expires(&mut reporter, &join_round(1), [incarnation_key(b"test:")]);
    assert!(least <= month && month <= most, "{least} to {most}");
}

/// The number of descriptor values is unbounded, so the states of unused limits must expire.
#[test]
fn state_of_unused_limit_lives_one_minute_adaptive_ten() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let mut after = |round: fn(u64) -> ShareRound, number: u64, in_flight: u64| {
        let key = state_key(&bucket(0), b"test:");
        let mut leaves = round(number);
        leaves.reports[0].heartbeat.number = number;
        leaves.reports[0].heartbeat.is_leaving = 1 < number;
        leaves.reports[0].heartbeat.in_flight = Share(in_flight);
        (leaves.record.replica, leaves.reports[0].heartbeat.replica) = (ReplicaId(1), ReplicaId(1));
        expires(&mut reporter, &leaves, [key])[0]
    };
    after(join_round, 1, 0);
    let (_, most) = after(join_round, 2, 1);
    assert!(75_000 <= most, "what it leaves in flight is in use: {most}");
    let (least, most) = after(join_round, 3, 0);
    assert!(least <= 60_000 && 60_000 <= most, "{least} to {most}");
    // The delayed report is superseded, which is not a sign of lost state.
    let (_, most) = after(join_round, 1, 0);
    assert!(60_000 <= most, "{most}");
    let (_, most) = after(|number| adaptive(join_round(number)), 4, 0);
    assert!(615_000 <= most, "{most}");
}

/// The share state is kept until requests of the earlier `max_duration` have ended; see
/// `docs/fleet.md`.
#[test]
fn share_state_outlives_requests_of_an_earlier_longer_max_duration() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let mut round = join_round(1);
    round.reports[0].law.timing = terms(600);
    reporter.send(&round);
    // Sets the stored end of use to 0, as if it had passed.
    let key = state_key(&bucket(0), b"test:");
    let get = [b"HGET".to_vec(), key.clone(), b"head".to_vec()];
    let Value::Text(mut head) = reporter.client.call(&get) else { panic!("no head") };
    head[50..58].copy_from_slice(&0_f64.to_le_bytes());
    reporter.client.call(&[b"HSET".to_vec(), key.clone(), b"head".to_vec(), head]);
    round.reports[0].law.timing = terms(10);
    round.reports[0].heartbeat.number = 2;
    let [(least, most)] = expires(&mut reporter, &round, [key]);
    // Share lifetime, the earlier `max_duration`, and one minute, in milliseconds.
    let kept = 5_000 + 600_000 + 60_000;
    assert!(kept <= most && least <= kept + 60_000, "{least} to {most}");
}

/// One share round reports for many limits, and the state of each limit has its own expiry.
#[test]
fn expiry_of_coordinator_state_is_extended_only_when_too_early() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let mut round = join_round(1);
    round.reports.push(ShareReport { bucket: bucket(1), ..round.reports[0].clone() });
    let mut expiries = |round: &ShareRound| {
        reporter.send(round);
        [0, 1].map(|number| {
            let key = state_key(&bucket(number), b"test:");
            reporter.client.call(&[b"PEXPIRETIME".to_vec(), key]).int()
        })
    };
    let first = expiries(&round);
    // The second limit's heartbeat repeats its number, so it is superseded and changes no state.
    round.reports[0].law.timing = terms(60);
    round.reports[0].heartbeat.number = 2;
    assert_eq!(expiries(&round), first, "50 s later is within the minute");
    round.reports[0].law.timing = terms(120);
    round.reports[0].heartbeat.number = 3;
    let last = expiries(&round);
    assert!((110_000..125_000).contains(&(last[0] - first[0])), "{first:?} {last:?}");
    assert_eq!(last[1], first[1]);
}

#[test]
fn leaving_idle_replica_deletes_its_share_state() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let mut seats = |round: &ShareRound| {
        reporter.send(round);
        // Counts share states: all fields of the hash except `head`.
        reporter.client.call(&[b"HLEN".to_vec(), state_key(&bucket(0), b"test:")]).int() - 1
    };
    assert_eq!([seats(&join_round(1)), seats(&join_round(2))], [1, 2]);
    let mut leaves = join_round(2);
    leaves.reports[0].heartbeat.number = 2;
    leaves.reports[0].heartbeat.is_leaving = true;
    assert_eq!(seats(&leaves), 1);
}

#[test]
fn foreign_value_stays_and_other_limits_succeed() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let key = state_key(&bucket(0), b"test:");
    let words = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect::<Vec<_>>();
    // Foreign values: a string, as in earlier versions, and hashes that are no coordinator state.
    let one_string = [0; 56 + 80];
    let short = [0; 121];
    let (mut long, mut seats) = ([0; 122 + 4], [0; 122]);
    long[0] = 2;
    seats[0] = 1;
    // A head and a share state in an earlier layout, whose share states had no end of use.
    let mut earlier = [0; 121 + 4];
    earlier[0] = 1;
    let foreign: [&[&[u8]]; 8] = [
        &[b"SET", &key, b"x"],
        &[b"SET", &key, &one_string],
        &[b"RPUSH", &key, b"x"],
        &[b"HSET", &key, b"x", b"y"],
        &[b"HSET", &key, b"head", &short],
        &[b"HSET", &key, b"head", &long],
        &[b"HSET", &key, b"head", &seats],
        &[b"HSET", &key, b"head", &earlier, &[1; 16], &[0; 80]],
    ];
    for (number, put) in foreign.into_iter().enumerate() {
        reporter.client.call(&words(&[b"DEL", &key]));
        reporter.client.call(&words(put));
        let dumped = reporter.client.call(&words(&[b"DUMP", &key]));
        let mut round = join_round(1);
        round.reports.push(ShareReport { bucket: bucket(1), ..round.reports[0].clone() });
        round.reports[1].heartbeat.number = number as u64 + 1;
        let heard = reporter.send(&round);
        assert!(
            matches!(heard.replies[..], [None, Some(HeartbeatReply::Grant(_))]),
            "{number}: {heard:?}"
        );
        assert_eq!(reporter.client.call(&words(&[b"DUMP", &key])), dumped, "{number}");
    }
}

#[test]
fn corrupt_sums_never_exceed_the_limit() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    reporter.send(&join_round(1));
    reporter.send(&join_round(2));
    let key = state_key(&bucket(0), b"test:");
    let get = [b"HGET".to_vec(), key.clone(), b"head".to_vec()];
    let Value::Text(mut sums) = reporter.client.call(&get) else { panic!("no head") };
    // Corrupts the stored need of all other replicas to 1e15, above the limit of eight permits.
    sums[86..94].copy_from_slice(&1e15_f64.to_le_bytes());
    reporter.client.call(&[b"HSET".to_vec(), key, b"head".to_vec(), sums]);
    let mut again = join_round(1);
    again.reports[0].heartbeat.number = 2;
    let heard = reporter.send(&again);
    let [Some(HeartbeatReply::Grant(grant))] = heard.replies[..] else { panic!("{heard:?}") };
    assert!(grant.share <= grant.limit, "{grant:?}");
}

#[test]
fn impossible_reply_of_the_heartbeat_script_is_rejected() {
    let round = join_round(1);
    for reply in [[7, 9, 0, 7, 1, 0, 8, 8, 1, 1], [7, 9, 1, 0, 0, 0, 0, 0, 0, 0]] {
        assert!(read(&round, &reply).unwrap().replies[0].is_some(), "{reply:?}");
    }
    let unreadable = read(&round, &[7, 9, 6, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(unreadable.replies, [None]);
    for reply in [
        &[][..],
        &[7],
        &[7, 9],
        &[7, 0, 7, 1, 0, 8, 8, 1, 1],
        &[7, 9, 0, 7, 1, 0, 8, 8, 1],
        &[7, 9, 0, 7, 1, 0, 8, 8, 1, 1, 0],
        &[7, 9, 0, 7, 1, -1, 8, 8, 1, 1],
        &[7, 9, 0, 7, 1, 0, 8, 8, 1, 2],
        &[7, 9, 1, 0, 1, 0, 0, 0, 0, 0],
        &[7, 9, 6, 0, 1, 0, 0, 0, 0, 0],
        &[7, 9, 7, 0, 0, 0, 0, 0, 0, 0],
        &[7, 9, 0, 7, 1, (1 << 53) + 1, 8, 8, 1, 1],
    ] {
        assert!(read(&round, reply).is_err(), "{reply:?}");
    }
}
