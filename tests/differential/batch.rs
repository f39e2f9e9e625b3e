//! Tests batches: charges to several keys of one limit in one script call.
//!
//! Guarantees:
//! - Each counter of a batch decides and expires as if it were charged alone.

use sluicegate::kernel::decision::Cost;
use sluicegate::kernel::rate::{CounterDecision, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::redis::codec::{ChargeResult, counter_key};
use sluicegate::store::{Charge, ChargeMode, Charges, Placement};
use smallvec::smallvec;

use super::limits::Kind;
use super::model::{Model, charge, expected};
use super::one_counter::{CounterTraffic, ExpiryTracker, START, is_valid_ttl};
use super::{PREFIX, Scripted, all_answers, traces};
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;
use crate::support::resp::Value;

const TRACES: u64 = 25;
const STEPS: usize = 60;
const KEYS: usize = 12;

#[derive(Default)]
struct KeyState {
    model: Model,
    rest: ExpiryTracker,
}

/// Counters of one limit, and the client that charges them.
struct Family {
    kind: Kind,
    name: String,
    limit: Strategy,
    client: CounterTraffic,
    keys: [KeyState; KEYS],
}

/// A charge, with its expected result and lifetime.
struct ExpectedCharge {
    charge: Charge,
    answer: ChargeResult,
    lives: Option<[Nanos; 2]>,
}

impl Family {
    fn new(kind: Kind, name: String, dice: Dice) -> Self {
        let mut client = CounterTraffic { dice, now: START, back_at: START };
        let limit = kind.limit_or_charging(&mut client.dice, START, None);
        Self { kind, name, limit, client, keys: Default::default() }
    }

    /// Draws charges to some keys in random order, each with the same cost. Sometimes a key is
    /// charged twice.
    fn next_charges(&mut self, now: Nanos) -> Vec<ExpectedCharge> {
        let dice = &mut self.client.dice;
        if self.kind == Kind::Calendar || dice.once_in(15) {
            self.limit = self.kind.limit_or_charging(dice, now, Some(&self.limit));
        }
        let mut places: Vec<usize> = (0..KEYS).filter(|_| !dice.once_in(4)).collect();
        // A script call without charges is never sent.
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
        places.into_iter().map(|place| self.charge_key(place, cost, now)).collect()
    }

    fn charge_key(&mut self, index: usize, cost: Cost, now: Nanos) -> ExpectedCharge {
        let KeyState { model, rest } = &mut self.keys[index];
        let step = model.apply(&self.limit, now, cost);
        if let CounterDecision::Deny { retry_after, .. } = step {
            self.client.back_at = now.plus(retry_after);
        }
        if model.is_rested() {
            *rest = ExpiryTracker::default();
        }
        let charge = charge(&format!("{} {index}", self.name), self.limit, cost);
        let room = model.headroom(&self.limit, now).filter(|_| !model.is_rested());
        let lives = room.map(|room| rest.lifetime(&charge, now, room.reset_after));
        ExpectedCharge { answer: expected(step, cost, now), charge, lives }
    }
}

fn checks(charges: &[ExpectedCharge]) -> Vec<Charges> {
    let each = |asked: &ExpectedCharge| Charges {
        list: smallvec![asked.charge.clone()],
        mode: ChargeMode::Each,
    };
    charges.iter().map(each).collect()
}

#[test]
fn batched_charges_behave_like_single_charges() {
    let (redis, seed) = (Redis::start(), seed());
    let mut scripted = Scripted::new(&redis);
    for trace in 0..traces(TRACES) {
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
            // All families of a trace use the clock of the first family's client.
            let limit = families[0].limit;
            families[0].client.wait(&limit);
            let now = families[0].client.now;
            let asked: Vec<ExpectedCharge> =
                families.iter_mut().flat_map(|one| one.next_charges(now)).collect();
            scripted.queue_all(&checks(&asked), Some(now));
            for one in &asked {
                let name = counter_key(&one.charge.key, Placement::ByKey, PREFIX);
                scripted.client.queue(&[b"PTTL".to_vec(), name]);
            }
            trail.push((asked, now));
        }
        scripted.client.flush();
        for (step, (asked, now)) in trail.iter().enumerate() {
            let context = |one: &ExpectedCharge| {
                let Charge { strategy, cost, .. } = &one.charge;
                format!(
                    "SLUICEGATE_SEED={seed}, trace {trace}, step {step}: {strategy:?}\n{cost:?} at {now}"
                )
            };
            let answers = all_answers(&checks(asked), &scripted.client.receive());
            for (number, one) in asked.iter().enumerate() {
                assert_eq!(answers[number].as_slice(), [one.answer], "{}", context(one));
                let ttl = scripted.client.receive().int();
                // Only the last charge of a key determines its expiry.
                let is_last = asked[number + 1..].iter().all(|o| o.charge.key != one.charge.key);
                if is_last && !matches!(one.answer, ChargeResult::Stale(_)) {
                    assert!(
                        is_valid_ttl(ttl, one.lives, &one.charge.strategy),
                        "{ttl} ms, {}",
                        context(one)
                    );
                }
            }
        }
    }
}

#[test]
fn foreign_value_in_a_batch_affects_no_other_key() {
    let (redis, seed) = (Redis::start(), seed());
    let mut scripted = Scripted::new(&redis);
    for trace in 0..traces(TRACES) {
        let kind = Kind::ALL[usize::try_from(trace).unwrap() % Kind::ALL.len()];
        let dice = Dice::new(seed ^ trace << 32);
        let mut family = Family::new(kind, format!("stranger {trace}"), dice);
        let place = family.client.dice.up_to(KEYS as u64 - 1);
        let cost = Cost::Charge(Hits(0));
        let its = charge(&format!("{} {place}", family.name), family.limit, cost);
        let strange = counter_key(&its.key, Placement::ByKey, PREFIX);
        scripted.client.call(&[b"HSET".to_vec(), strange.clone(), b"a".to_vec(), b"b".to_vec()]);
        for step in 0..STEPS {
            family.client.wait(&family.limit);
            let now = family.client.now;
            let asked = family.next_charges(now);
            scripted.queue_all(&checks(&asked), Some(now));
            scripted.client.flush();
            let answers = all_answers(&checks(&asked), &scripted.client.receive());
            for (one, answered) in asked.iter().zip(answers) {
                let is_strange = counter_key(&one.charge.key, Placement::ByKey, PREFIX) == strange;
                let wanted = if is_strange { ChargeResult::Unreadable } else { one.answer };
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
