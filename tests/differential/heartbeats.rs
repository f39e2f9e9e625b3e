//! Heartbeats of ceilings: what the script grants, against the kernel's own coordinator.

mod crowded;

use std::collections::HashMap;

use sluicegate::backend::heartbeat::{Beat, Heard, Name, Round};
use sluicegate::backend::memory::coordinators::Coordinators;
use sluicegate::backend::redis::HEARTBEAT;
use sluicegate::backend::redis::codec::heartbeat::{lives, pack, read, state};
use sluicegate::kernel::coordinator::aggregate::{Aggregate, Ratio};
use sluicegate::kernel::coordinator::life::Record;
use sluicegate::kernel::coordinator::message::Holding;
use sluicegate::kernel::coordinator::split::Split;
use sluicegate::kernel::coordinator::{Grant, Heartbeat, Law, Reply, Terms};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::units::{Generation, Incarnation, MemberId, Nanos, Share};

use super::{integers, store::micros};
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;
use crate::support::resp::{Client, Value};

const START: Nanos = Nanos(1_763_632_345_678_912_000);
/// Together more than 100,000 heartbeats.
const TRACES: usize = 250;
const STEPS: usize = 290;
const CEILINGS: u64 = 3;
const REPLICAS: u64 = 5;

/// A connection that has the script.
struct Speaker {
    client: Client,
    sha: String,
}

impl Speaker {
    fn new(redis: &Redis) -> Self {
        let mut client = redis.connect();
        let sha = client.call(&["SCRIPT", "LOAD", HEARTBEAT]).text();
        Self { client, sha }
    }

    fn queue(&mut self, round: &Round, prefix: &str, store: &str, at: Option<Nanos>) {
        let packed = pack(round, prefix.as_bytes(), store, at);
        let count = packed.keys.len().to_string();
        let head = [b"EVALSHA".to_vec(), self.sha.clone().into_bytes(), count.into_bytes()];
        let parts: Vec<_> = head.into_iter().chain(packed.keys).chain(packed.args).collect();
        self.client.queue(&parts);
    }

    fn heard(&mut self, round: &Round) -> Heard {
        match self.client.receive() {
            reply @ Value::Text(_) => read(round, &integers(&reply)).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn say(&mut self, round: &Round) -> Heard {
        self.say_at(round, None)
    }

    fn say_at(&mut self, round: &Round, at: Option<Nanos>) -> Heard {
        self.queue(round, "test:", "a", at);
        self.client.flush();
        self.heard(round)
    }
}

fn bucket(number: u64) -> Name {
    let number = number.to_string();
    CounterKey::ceiling("d", [("ceiling", &*number)].into_iter()).as_bytes().into()
}

fn terms(max_duration: u64) -> Terms {
    terms_of(5, max_duration)
}

fn terms_of(term: u64, max_duration: u64) -> Terms {
    let [heartbeat, term, max_duration] = [1, term, max_duration].map(Nanos::from_secs);
    Terms::new(heartbeat, term, max_duration, 1_000).unwrap()
}

fn any_terms(dice: &mut Dice) -> Terms {
    terms_of(dice.pick(&[3, 5, 5, 5, 9]), dice.pick(&[0, 1, 10, 60]))
}

fn law(dice: &mut Dice) -> Law {
    let terms = any_terms(dice);
    let max = dice.pick(&[1, 2, 4, 7, 64, 1_000, 1 << 24]);
    let min = 1 + dice.up_to(max - 1) / dice.pick(&[1, 4, max]);
    let start = min + dice.up_to(max - min);
    Law {
        aggregate: dice.pick(&[Aggregate::Median, Aggregate::Min]),
        split: dice.pick(&[Split::Demand, Split::Demand, Split::Equal]),
        ..Law::new(terms, Share(min), Share(start), Share(max)).unwrap()
    }
}

/// What a replica remembers of a ceiling: the grants it got lately, and its last heartbeat.
#[derive(Clone, Debug, Default)]
struct Holder {
    number: u64,
    grants: Vec<Grant>,
    last: Option<Heartbeat>,
}

/// Replicas of which none can be trusted, and their store.
struct World {
    dice: Dice,
    now: Nanos,
    store: &'static str,
    laws: Vec<Law>,
    coordinators: Coordinators,
    lives: Vec<u64>,
    holders: HashMap<(u64, u64, u64), Holder>,
    life: Option<Incarnation>,
    /// When each life of each replica was answered last.
    answered: HashMap<(u64, u64), Nanos>,
    /// How much more seldom than elsewhere somebody is late, leaves or changes.
    calm: u64,
}

impl World {
    fn new(mut dice: Dice) -> Self {
        let calm = dice.pick(&[1, 1, 8]);
        let laws = (0..CEILINGS).map(|_| law(&mut dice)).collect();
        let lives = (1..=REPLICAS).collect();
        let (coordinators, holders, answered) = Default::default();
        let (now, store, life) = (START, "a", None);
        Self { dice, now, store, laws, coordinators, lives, holders, life, answered, calm }
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
        // More often than the rest: what was admitted under those of before goes on.
        if self.dice.once_in(20 * self.calm) {
            let at = usize::try_from(self.dice.up_to(CEILINGS - 1)).unwrap();
            self.laws[at].terms = any_terms(&mut self.dice);
        }
        if self.dice.once_in(40 * self.calm) {
            let at = usize::try_from(self.dice.up_to(REPLICAS - 1)).unwrap();
            self.lives[at] += self.dice.up_to(2);
        }
    }

    fn beat(&mut self, ceiling: u64, replica: u64, life: u64) -> Beat {
        let law = self.laws[usize::try_from(ceiling).unwrap()];
        let (dice, calm) = (&mut self.dice, self.calm);
        let holder = self.holders.entry((ceiling, replica, life)).or_default();
        let bucket = bucket(ceiling);
        if let Some(said) = holder.last.filter(|_| dice.once_in(10)) {
            // Doubled.
            return Beat { bucket, law, said };
        }
        holder.number += dice.up_to(3).min(1) + u64::from(dice.once_in(9));
        let newest = holder.grants.len().saturating_sub(1);
        let which = if dice.once_in(6) { dice.up_to(3) } else { 0 };
        let which = newest.saturating_sub(usize::try_from(which).unwrap());
        let mut holds = holder.grants.get(which).copied().map(Holding::from);
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
            member: MemberId(replica + (1 << 52)),
            life: Incarnation(life),
            number: holder.number,
            holds,
            in_flight: Share(any(dice) / dice.pick(&[1, 4])),
            wanted: Share(if dice.once_in(8) { 1 << 24 } else { any(dice) }),
            vote: dice.once_in(2).then(|| {
                Ratio(u32::try_from(dice.up_to(3 << 16)).unwrap() / dice.pick(&[1, 2, 100]))
            }),
            leaves: dice.once_in(25 * calm),
        };
        holder.last = Some(said);
        Beat { bucket, law, said }
    }

    fn round(&mut self) -> Round {
        let replica = self.dice.up_to(REPLICAS - 1);
        let mut life = self.lives[usize::try_from(replica).unwrap()];
        life -= u64::from(1 < life && self.dice.once_in(20));
        let first = self.dice.up_to(CEILINGS - 1);
        let count = self.dice.up_to(CEILINGS);
        let beats: Vec<Beat> =
            (0..count).map(|at| self.beat((first + at) % CEILINGS, replica, life)).collect();
        let believes = self.life.filter(|_| !self.dice.once_in(10));
        let earlier = Nanos(self.dice.pick(&[0, 0, 1, 4_000]) * Nanos::MILLI.0);
        let answered = self.answered.get(&(replica, life)).filter(|_| !self.dice.once_in(4));
        Round {
            record: Record { member: MemberId(replica), life: Incarnation(life), under: believes },
            answered: answered.map(|at| Nanos(at.0 - earlier.0)),
            longest: Nanos::from_secs(self.dice.pick(&[5, 6, 15, 65])),
            leaves: self.dice.once_in(15 * self.calm),
            beats,
        }
    }

    fn step(&mut self) -> (Round, &'static str, Nanos, Heard) {
        self.wait();
        self.change();
        let round = self.round();
        let heard = self.coordinators.hear(self.now, self.store, &round);
        self.life = Some(heard.life);
        self.answered.insert((round.record.member.0, round.record.life.0), heard.at);
        for (beat, reply) in round.beats.iter().zip(&heard.replies) {
            let name = (beat.said.member.0 - (1 << 52), beat.said.life.0);
            let ceiling = (0..CEILINGS).find(|at| bucket(*at) == beat.bucket).unwrap();
            if let Some(Reply::Grant(grant)) = reply {
                self.holders.entry((ceiling, name.0, name.1)).or_default().grants.push(*grant);
            }
        }
        (round, self.store, self.now, heard)
    }
}

/// How often what was said.
#[derive(Debug, Default)]
struct Tally([u32; 9]);

impl Tally {
    fn count(&mut self, reply: &Reply) {
        self.0[match reply {
            Reply::Grant(grant) if grant.share == Share(0) => 0,
            Reply::Grant(grant) if grant.recovering => 1,
            Reply::Grant(grant) if grant.share < grant.fair => 2,
            Reply::Grant(_) => 3,
            Reply::Left => 4,
            Reply::Late => 5,
            Reply::Superseded => 6,
            Reply::Lost => 7,
            Reply::Full => 8,
        }] += 1;
    }
}

/// Whether a doubt ended before its time: a life is named by its first instant, and no term here is shorter than 3 s.
fn settled_early(heard: &Heard) -> bool {
    let is_young = heard.at.0 / Nanos::MICRO.0 < heard.life.0 + 3_000_000;
    let is_sure = |reply: &Reply| matches!(reply, Reply::Grant(grant) if !grant.recovering);
    is_young && heard.replies.iter().flatten().any(is_sure)
}

#[test]
fn heartbeats_are_answered_as_the_kernel_does() {
    let (redis, seed) = (Redis::start(), seed());
    let mut speaker = Speaker::new(&redis);
    let (mut tally, mut beats, mut early) = (Tally::default(), 0, 0);
    for number in 0..TRACES {
        let mut world = World::new(Dice::new(seed ^ (number as u64) << 32));
        let prefix = format!("{number}:");
        let trace: Vec<_> = (0..STEPS).map(|_| world.step()).collect();
        for (round, store, now, _) in &trace {
            speaker.queue(round, &prefix, store, Some(*now));
        }
        speaker.client.flush();
        for (step, (round, store, now, wanted)) in trace.iter().enumerate() {
            let said = speaker.heard(round);
            let place = format!("SLUICEGATE_SEED={seed}, trace {number}, step {step}");
            assert_eq!(said, *wanted, "{place}: {round:?} to {store} at {now}");
            wanted.replies.iter().flatten().for_each(|reply| tally.count(reply));
            early += u32::from(settled_early(wanted));
            beats += round.beats.len();
        }
    }
    println!("{beats} heartbeats: {tally:?}, {early} rounds in a life that was settled early");
    assert!(30 < early, "{early} rounds");
    assert!(100_000 <= beats, "{beats} heartbeats");
    assert!(tally.0[..8].iter().all(|count| 100 < *count), "{tally:?}");
}

/// A replica that speaks for the first time, at one ceiling.
fn joins(replica: u64) -> Round {
    let member = MemberId(replica);
    let life = Incarnation(1);
    let said = Heartbeat {
        member,
        life,
        number: 1,
        holds: None,
        in_flight: Share(0),
        wanted: Share(1),
        vote: None,
        leaves: false,
    };
    let law = Law::new(terms(10), Share(8), Share(8), Share(8)).unwrap();
    Round {
        record: Record { member, life, under: None },
        answered: None,
        longest: terms(10).longest(),
        leaves: false,
        beats: vec![Beat { bucket: bucket(0), law, said }],
    }
}

#[test]
fn a_new_store_is_in_doubt_and_grants_nothing_that_nobody_proves_to_hold() {
    let redis = Redis::start();
    let mut speaker = Speaker::new(&redis);
    let heard = speaker.say(&joins(1));
    let [Some(Reply::Grant(grant))] = heard.replies[..] else { panic!("{heard:?}") };
    assert_eq!((grant.share, grant.recovering, grant.fair), (Share(0), true, Share(8)));
    assert_eq!(grant.coordinator, heard.life);
}

/// Of a store that has forgotten it may be the first to speak, and those who hold something speak only then.
#[test]
fn who_leaves_vouches_for_nobody() {
    let redis = Redis::start();
    let mut speaker = Speaker::new(&redis);
    let mut coordinators = Coordinators::default();
    let leaves = Round { longest: Nanos(0), leaves: true, beats: Vec::new(), ..joins(1) };
    for (seconds, round) in [(0, &leaves), (1, &leaves), (2, &joins(2))] {
        let at = START.plus(Nanos::from_secs(seconds));
        let heard = speaker.say_at(round, Some(at));
        assert_eq!(heard, coordinators.hear(at, "a", round));
        for reply in heard.replies.iter().flatten() {
            let Reply::Grant(grant) = reply else { panic!("{heard:?}") };
            assert!(grant.recovering, "{grant:?}");
        }
    }
}

/// When, in milliseconds since a replica came, the number of its life, and when it was answered last.
type Said = (u64, u64, Option<u64>);

/// Whether a store is in doubt that a replica of life 1 came to at 0 and spoke to once more at 16 s, perhaps to leave, and that
/// is another one `from` then on. Whoever speaks does so twice, a second apart. The longest terms are 15 s.
fn doubts(leaves: bool, (from, life, answered): Said) -> bool {
    let redis = Redis::start();
    let (mut speaker, mut coordinators) = (Speaker::new(&redis), Coordinators::default());
    let (mut under, mut doubts) = (None, None);
    let before = [("a", (0, 1, None), false), ("a", (16_000, 1, Some(0)), leaves)];
    let after =
        [("b", (from, life, answered), false), ("b", (from + 1_000, life, Some(from)), false)];
    for (number, (store, (millis, life, answered), leaves)) in
        (1..).zip(before.into_iter().chain(after))
    {
        let after_start = |millis| START.plus(Nanos(millis * Nanos::MILLI.0));
        let (mut round, at) = (joins(1), after_start(millis));
        round.record = Record { life: Incarnation(life), under, ..round.record };
        (round.answered, round.leaves) = (answered.map(after_start), leaves);
        let said = &mut round.beats[0].said;
        (said.life, said.number, said.leaves) = (Incarnation(life), number, leaves);
        speaker.queue(&round, "test:", store, Some(at));
        speaker.client.flush();
        let heard = speaker.heard(&round);
        assert_eq!(heard, coordinators.hear(at, store, &round), "at {millis} ms");
        under = Some(heard.life);
        doubts =
            heard.replies[0].as_ref().map(|reply| matches!(reply, Reply::Grant(g) if g.recovering));
    }
    doubts.unwrap()
}

/// Who joined since the state that it began again with is missing in its table, and may hold a share.
#[test]
fn a_store_that_has_answered_later_than_it_remembers_does_not_take_its_table_for_the_fleet() {
    let doubts = |answered| doubts(false, (25_000, 1, answered));
    assert!(!doubts(Some(16_000)), "nothing is missing");
    assert!(!doubts(Some(19_000)), "the last moment may be missing after a failover");
    assert!(doubts(Some(19_001)));
    assert!(doubts(Some(24_999)));
    assert!(!doubts(None), "one that was never answered shows nothing");
}

/// Also one that left in order since, and has no line.
#[test]
fn a_replica_that_left_shows_what_a_store_has_forgotten_as_well() {
    assert!(!doubts(true, (25_000, 1, Some(16_000))), "it left, and nobody else came");
    assert!(doubts(true, (25_000, 1, Some(24_000))));
}

/// Whoever lived then has ended or joined again since, and others may have as well. So it is whoever speaks first.
#[test]
fn a_store_whose_replicas_may_all_be_dead_does_not_take_its_table_for_the_fleet() {
    for (life, leaves) in [(1, false), (2, false), (2, true)] {
        for from in [28_000, 31_000, 600_000] {
            assert!(doubts(leaves, (from, life, None)), "life {life} at {from} ms");
        }
    }
    assert!(!doubts(false, (27_999, 1, Some(16_000))), "away for as long as a replica may be");
    assert!(!doubts(true, (27_999, 2, None)), "nobody was left, and one came");
    assert!(doubts(false, (27_999, 2, None)), "one was there, and has not spoken");
}

#[test]
fn a_replica_that_may_not_know_what_the_store_is_called_begins_no_life_and_ends_none() {
    let redis = Redis::start();
    let mut speaker = Speaker::new(&redis);
    let mut coordinators = Coordinators::default();
    let mut life = |replica: u64, store: &str| {
        let (round, at) = (joins(replica), START.plus(Nanos::from_secs(replica)));
        speaker.queue(&round, "test:", store, Some(at));
        speaker.client.flush();
        let heard = speaker.heard(&round);
        assert_eq!(heard, coordinators.hear(at, store, &round), "{store}");
        heard.life
    };
    let first = life(1, "a");
    assert_eq!([life(2, ""), life(3, "a"), life(4, "")], [first; 3], "it is one store");
    let second = life(5, "b");
    assert_ne!(second, first, "it was started anew");
    assert_eq!([life(6, ""), life(7, "b")], [second; 2]);
}

/// `docs/fleet.md` has it.
#[test]
fn an_operator_who_knows_that_nothing_is_in_flight_can_end_the_doubt_about_a_new_store() {
    let docs = include_str!("../../docs/fleet.md");
    let script = docs.split_once("EVAL \"").unwrap().1.split_once("\" 1 '").unwrap().0;
    let redis = Redis::start();
    let mut speaker = Speaker::new(&redis);
    let lives = lives(b"test:");
    let eval = [b"EVAL".to_vec(), script.as_bytes().to_vec(), b"1".to_vec(), lives];
    assert_eq!(speaker.client.call(&eval).text(), "nobody has spoken yet");
    speaker.say(&joins(1));
    assert_eq!(speaker.client.call(&eval).text(), "settled");
    let heard = speaker.say(&joins(2));
    let [Some(Reply::Grant(grant))] = heard.replies[..] else { panic!("{heard:?}") };
    // Half of it: each wants one, and what is left over is spread.
    assert_eq!((grant.share, grant.recovering), (Share(4), false));
}

/// When each of `keys` expires, in milliseconds after the round that was said, as far as that is known: no sooner and no later.
fn expires<const N: usize>(
    speaker: &mut Speaker,
    round: &Round,
    keys: [Vec<u8>; N],
) -> [(u64, u64); N] {
    let millis = |speaker: &mut Speaker| micros(&speaker.client.call(&["TIME"])) / 1_000;
    let before = millis(speaker);
    speaker.say(round);
    // An expiry is rounded up.
    let after = millis(speaker) + 3;
    keys.map(|key| {
        let at = speaker.client.call(&[b"PEXPIRETIME".to_vec(), key]);
        let at = u64::try_from(at.int()).unwrap();
        (at - after, at - before)
    })
}

/// The same ceiling, inferred.
fn inferred(mut round: Round) -> Round {
    for beat in &mut round.beats {
        beat.law = Law::new(beat.law.terms, Share(1), Share(8), Share(8)).unwrap();
    }
    round
}

#[test]
fn a_state_is_kept_a_minute_or_two_longer_than_it_is_in_use_an_inferred_one_ten_minutes_or_eleven()
{
    let redis = Redis::start();
    let mut speaker = Speaker::new(&redis);
    let in_use = 5_000 + 10_000;
    for (round, kept) in [(joins(1), 60_000), (inferred(joins(1)), 600_000)] {
        let mut round = round;
        round.beats[0].bucket = bucket(kept);
        let key = state(&bucket(kept), b"test:");
        let [(least, most)] = expires(&mut speaker, &round, [key]);
        let kept = in_use + kept;
        assert!(kept <= most && least <= kept + 60_000, "{kept}: {least} to {most}");
    }
    let month = 30 * 86_400 * 1_000;
    let [(least, most)] = expires(&mut speaker, &joins(1), [lives(b"test:")]);
    assert!(least <= month && month <= most, "{least} to {most}");
}

/// As many as there are values may come and go: what is left of each is bounded in time.
#[test]
fn a_state_that_nobody_has_a_seat_at_is_kept_a_minute_and_one_that_was_inferred_as_long_as_before()
{
    let redis = Redis::start();
    let mut speaker = Speaker::new(&redis);
    let mut after = |round: fn(u64) -> Round, number: u64, in_flight: u64| {
        let key = state(&bucket(0), b"test:");
        let mut leaves = round(number);
        leaves.beats[0].said.number = number;
        leaves.beats[0].said.leaves = 1 < number;
        leaves.beats[0].said.in_flight = Share(in_flight);
        (leaves.record.member, leaves.beats[0].said.member) = (MemberId(1), MemberId(1));
        expires(&mut speaker, &leaves, [key])[0]
    };
    after(joins, 1, 0);
    let (_, most) = after(joins, 2, 1);
    assert!(75_000 <= most, "what it leaves in flight is in use: {most}");
    let (least, most) = after(joins, 3, 0);
    assert!(least <= 60_000 && 60_000 <= most, "{least} to {most}");
    // A word that comes late is no news of a store that has forgotten.
    let (_, most) = after(joins, 1, 0);
    assert!(60_000 <= most, "{most}");
    let (_, most) = after(|number| inferred(joins(number)), 4, 0);
    assert!(615_000 <= most, "{most}");
}

/// Its seat is kept for as long, see `docs/fleet.md`.
#[test]
fn a_state_is_kept_as_long_as_what_was_admitted_under_a_longer_max_duration() {
    let redis = Redis::start();
    let mut speaker = Speaker::new(&redis);
    let mut round = joins(1);
    round.beats[0].law.terms = terms(600);
    speaker.say(&round);
    // As if what it was kept for then were over.
    let key = state(&bucket(0), b"test:");
    let get = [b"HGET".to_vec(), key.clone(), b"head".to_vec()];
    let Value::Text(mut head) = speaker.client.call(&get) else { panic!("no head") };
    head[50..58].copy_from_slice(&0_f64.to_le_bytes());
    speaker.client.call(&[b"HSET".to_vec(), key.clone(), b"head".to_vec(), head]);
    round.beats[0].law.terms = terms(10);
    round.beats[0].said.number = 2;
    let [(least, most)] = expires(&mut speaker, &round, [key]);
    // What it admits until its term ends goes on for so long.
    let kept = 5_000 + 600_000 + 60_000;
    assert!(kept <= most && least <= kept + 60_000, "{least} to {most}");
}

/// One round speaks of many states, and each has an expiry of its own.
#[test]
fn the_expiry_of_a_state_is_put_off_once_it_would_come_too_soon_and_not_with_that_of_another() {
    let redis = Redis::start();
    let mut speaker = Speaker::new(&redis);
    let mut round = joins(1);
    round.beats.push(Beat { bucket: bucket(1), ..round.beats[0].clone() });
    let mut expiries = |round: &Round| {
        speaker.say(round);
        [0, 1].map(|number| {
            let key = state(&bucket(number), b"test:");
            speaker.client.call(&[b"PEXPIRETIME".to_vec(), key]).int()
        })
    };
    let first = expiries(&round);
    // The second ceiling's heartbeat is refused, being doubled.
    round.beats[0].law.terms = terms(60);
    round.beats[0].said.number = 2;
    assert_eq!(expiries(&round), first, "50 s later is within the minute");
    round.beats[0].law.terms = terms(120);
    round.beats[0].said.number = 3;
    let last = expiries(&round);
    assert!((110_000..125_000).contains(&(last[0] - first[0])), "{first:?} {last:?}");
    assert_eq!(last[1], first[1]);
}

#[test]
fn who_leaves_with_nothing_in_flight_takes_its_seat_along_at_once() {
    let redis = Redis::start();
    let mut speaker = Speaker::new(&redis);
    let mut seats = |round: &Round| {
        speaker.say(round);
        // The head is the one field that is no seat.
        speaker.client.call(&[b"HLEN".to_vec(), state(&bucket(0), b"test:")]).int() - 1
    };
    assert_eq!([seats(&joins(1)), seats(&joins(2))], [1, 2]);
    let mut leaves = joins(2);
    leaves.beats[0].said.number = 2;
    leaves.beats[0].said.leaves = true;
    assert_eq!(seats(&leaves), 1);
}

#[test]
fn what_lives_under_a_ceilings_key_and_is_not_ours_is_left_as_it_is_and_the_others_are_answered() {
    let redis = Redis::start();
    let mut speaker = Speaker::new(&redis);
    let key = state(&bucket(0), b"test:");
    let words = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect::<Vec<_>>();
    // A string, such as a ceiling's state was before it was a hash; and hashes that are no state.
    let one_string = [0; 56 + 80];
    let short = [0; 121];
    let (mut long, mut seats) = ([0; 122 + 4], [0; 122]);
    long[0] = 2;
    seats[0] = 1;
    // A head and a seat from before a seat had an end of its own.
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
        speaker.client.call(&words(&[b"DEL", &key]));
        speaker.client.call(&words(put));
        let dumped = speaker.client.call(&words(&[b"DUMP", &key]));
        let mut round = joins(1);
        round.beats.push(Beat { bucket: bucket(1), ..round.beats[0].clone() });
        round.beats[1].said.number = number as u64 + 1;
        let heard = speaker.say(&round);
        assert!(matches!(heard.replies[..], [None, Some(Reply::Grant(_))]), "{number}: {heard:?}");
        assert_eq!(speaker.client.call(&words(&[b"DUMP", &key])), dumped, "{number}");
    }
}

#[test]
fn a_state_whose_sums_are_not_of_its_seats_does_not_keep_the_store_busy() {
    let redis = Redis::start();
    let mut speaker = Speaker::new(&redis);
    speaker.say(&joins(1));
    speaker.say(&joins(2));
    let key = state(&bucket(0), b"test:");
    let get = [b"HGET".to_vec(), key.clone(), b"head".to_vec()];
    let Value::Text(mut sums) = speaker.client.call(&get) else { panic!("no head") };
    // What all but the one that speaks need: more than there is, though each wants one of eight.
    sums[86..94].copy_from_slice(&1e15_f64.to_le_bytes());
    speaker.client.call(&[b"HSET".to_vec(), key, b"head".to_vec(), sums]);
    let mut again = joins(1);
    again.beats[0].said.number = 2;
    let heard = speaker.say(&again);
    let [Some(Reply::Grant(grant))] = heard.replies[..] else { panic!("{heard:?}") };
    assert!(grant.share <= grant.ceiling, "{grant:?}");
}

#[test]
fn a_reply_that_the_script_does_not_give_is_refused() {
    let round = joins(1);
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
