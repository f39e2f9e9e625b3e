//! Keys that are alike, in one call: of one limit, each charged once, as the keys of a busy service are.
//!
//! The script takes them in one go. Each has to be answered, and to live, as if it had come alone.

use sluicegate::backend::redis::codec::{Answer, key};
use sluicegate::backend::{Charge, Charges, Home, Rule};
use sluicegate::kernel::decision::Cost;
use sluicegate::kernel::rate::{Step, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};
use smallvec::smallvec;

use super::limits::Kind;
use super::model::{Model, charge, expected};
use super::one_counter::{Client, Rest, START, lives_as_long_as};
use super::{PREFIX, Scripted, all_answers};
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;
use crate::support::resp::Value;

const TRACES: u64 = 60;
const STEPS: usize = 60;
const KEYS: usize = 12;

/// A key, and what it holds.
#[derive(Default)]
struct One {
    model: Model,
    rest: Rest,
}

/// Keys of one limit, and who asks for them.
struct Family {
    kind: Kind,
    name: String,
    limit: Strategy,
    client: Client,
    keys: [One; KEYS],
}

/// A charge of a call, with what is to come of it.
struct Asked {
    charge: Charge,
    answer: Answer,
    lives: Option<[Nanos; 2]>,
}

impl Family {
    fn new(kind: Kind, name: String, dice: Dice) -> Self {
        let mut client = Client { dice, now: START, back_at: START };
        let limit = kind.limit(&mut client.dice, START, None);
        Self { kind, name, limit, client, keys: Default::default() }
    }

    /// Some keys in any order, one and the same cost for each; now and then a key is asked for twice.
    fn ask(&mut self, now: Nanos) -> Vec<Asked> {
        let dice = &mut self.client.dice;
        if self.kind == Kind::Calendar || dice.once_in(15) {
            self.limit = self.kind.limit(dice, now, Some(&self.limit));
        }
        let mut places: Vec<usize> = (0..KEYS).filter(|_| !dice.once_in(4)).collect();
        // A call without a question is none, and nobody makes it.
        if places.is_empty() {
            places.push(0);
        }
        for place in 0..places.len() {
            places.swap(place, usize::try_from(dice.up_to(place as u64)).unwrap());
        }
        if dice.once_in(4) {
            places.extend(places.first().copied());
        }
        let first = places[0];
        self.client.now = now;
        let cost = self.client.cost(&self.limit, &self.keys[first].model);
        places.into_iter().map(|place| self.put(place, cost, now)).collect()
    }

    fn put(&mut self, place: usize, cost: Cost, now: Nanos) -> Asked {
        let One { model, rest } = &mut self.keys[place];
        let step = model.put(&self.limit, now, cost);
        if let Step::Deny { retry_after, .. } = step {
            self.client.back_at = now.plus(retry_after);
        }
        if model.is_rested() {
            *rest = Rest::default();
        }
        let charge = charge(&format!("{} {place}", self.name), self.limit, cost);
        let room = model.room(&self.limit, now).filter(|_| !model.is_rested());
        let lives = room.map(|room| rest.lives(&charge, now, room.reset_after));
        Asked { answer: expected(step, cost, now), charge, lives }
    }
}

/// Each charge is a question of its own.
fn questions(asked: &[Asked]) -> Vec<Charges> {
    let each = |asked: &Asked| Charges { list: smallvec![asked.charge.clone()], rule: Rule::Each };
    asked.iter().map(each).collect()
}

#[test]
fn keys_that_are_alike_are_answered_and_live_as_if_each_had_come_alone() {
    let (redis, seed) = (Redis::start(), seed());
    let mut scripted = Scripted::new(&redis);
    for trace in 0..TRACES {
        let mut dice = Dice::new(seed ^ trace << 32);
        let kinds = [Kind::ALL[usize::try_from(trace % 5).unwrap()], dice.pick(&Kind::ALL)];
        let count = if dice.once_in(2) { 1 } else { 2 };
        let family = |(number, kind): (usize, &Kind)| {
            let dice = Dice::new(seed ^ trace << 32 ^ (number as u64 + 1) << 48);
            Family::new(*kind, format!("{trace} {number}"), dice)
        };
        let mut families: Vec<Family> = kinds[..count].iter().enumerate().map(family).collect();
        let mut trail = Vec::new();
        for _ in 0..STEPS {
            // The first one's client says when.
            let limit = families[0].limit;
            families[0].client.wait(&limit);
            let now = families[0].client.now;
            let asked: Vec<Asked> = families.iter_mut().flat_map(|one| one.ask(now)).collect();
            scripted.queue_all(&questions(&asked), Some(now));
            for one in &asked {
                let name = key(&one.charge.key, Home::Itself, PREFIX);
                scripted.client.queue(&[b"PTTL".to_vec(), name]);
            }
            trail.push((asked, now));
        }
        scripted.client.flush();
        for (step, (asked, now)) in trail.iter().enumerate() {
            let where_ = |one: &Asked| {
                let Charge { strategy, cost, .. } = &one.charge;
                format!(
                    "SLUICEGATE_SEED={seed}, trace {trace}, step {step}: {strategy:?}\n{cost:?} at {now}"
                )
            };
            let answers = all_answers(&questions(asked), &scripted.client.receive());
            for (number, one) in asked.iter().enumerate() {
                assert_eq!(answers[number].as_slice(), [one.answer], "{}", where_(one));
                let ttl = scripted.client.receive().int();
                // What a key lives for is known when its last charge was put.
                let is_last = asked[number + 1..].iter().all(|o| o.charge.key != one.charge.key);
                if is_last && !matches!(one.answer, Answer::Stale(_)) {
                    assert!(
                        lives_as_long_as(ttl, one.lives, &one.charge.strategy),
                        "{ttl} ms, {}",
                        where_(one)
                    );
                }
            }
        }
    }
}

#[test]
fn a_stranger_among_keys_that_are_alike_is_left_as_it_is_and_the_others_count() {
    let (redis, seed) = (Redis::start(), seed());
    let mut scripted = Scripted::new(&redis);
    for trace in 0..TRACES {
        let kind = Kind::ALL[usize::try_from(trace).unwrap() % Kind::ALL.len()];
        let dice = Dice::new(seed ^ trace << 32);
        let mut family = Family::new(kind, format!("stranger {trace}"), dice);
        let place = family.client.dice.up_to(KEYS as u64 - 1);
        let cost = Cost::Charge(Hits(0));
        let its = charge(&format!("{} {place}", family.name), family.limit, cost);
        let strange = key(&its.key, Home::Itself, PREFIX);
        scripted.client.call(&[b"HSET".to_vec(), strange.clone(), b"a".to_vec(), b"b".to_vec()]);
        for step in 0..STEPS {
            family.client.wait(&family.limit);
            let now = family.client.now;
            let asked = family.ask(now);
            scripted.queue_all(&questions(&asked), Some(now));
            scripted.client.flush();
            let answers = all_answers(&questions(&asked), &scripted.client.receive());
            for (one, answered) in asked.iter().zip(answers) {
                let is_strange = key(&one.charge.key, Home::Itself, PREFIX) == strange;
                let wanted = if is_strange { Answer::Unreadable } else { one.answer };
                let Charge { strategy, cost, .. } = &one.charge;
                assert_eq!(
                    answered.as_slice(),
                    [wanted],
                    "SLUICEGATE_SEED={seed}, trace {trace}, step {step}: {strategy:?}\n{cost:?} at {now}"
                );
            }
        }
        let left = scripted.client.call(&[b"HGETALL".to_vec(), strange]);
        assert_eq!(left.array(), [Value::Text(b"a".to_vec()), Value::Text(b"b".to_vec())]);
    }
}
