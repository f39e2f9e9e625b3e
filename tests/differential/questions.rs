//! Questions of several charges, against the memory backend.

use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::backend::redis::codec::Answer;
use sluicegate::backend::{Backend as _, Charge, Charges, Outcome, Outcomes, Reply, Rule};
use sluicegate::kernel::decision::{Cost, Group, Standing};
use sluicegate::kernel::rate::{Step, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};

use super::limits::{Kind, span};
use super::model::{charge, expected};
use super::{Scripted, answers};
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;

const START: Nanos = Nanos(1_763_632_345_678_912_345);
const TRACES: u64 = 100;
const STEPS: usize = 100;

/// A few counters that a trace's questions name again and again.
fn counters(dice: &mut Dice) -> Vec<Strategy> {
    let mut small = |kind: Kind| loop {
        let limit = kind.limit(dice, START, None);
        if limit.most() < 20 {
            return limit;
        }
    };
    Kind::ALL.iter().map(|kind| small(*kind)).collect()
}

fn question(dice: &mut Dice, trace: u64, counters: &[Strategy]) -> Charges {
    let one = |dice: &mut Dice| {
        let which = dice.up_to(counters.len() as u64 - 1);
        let strategy = counters[usize::try_from(which).unwrap()];
        let hits = Hits(dice.pick(&[0, 1, 1, 1, 2, 3, 5, 21, u64::MAX]));
        let cost = if dice.once_in(7) { Cost::Refund(hits) } else { Cost::Charge(hits) };
        let group = dice.pick(&[Group::Enforced, Group::Enforced, Group::Quota, Group::Aside]);
        let standing = Standing { group, shadow: dice.once_in(5) };
        Charge { standing, ..charge(&format!("{trace} {which}"), strategy, cost) }
    };
    let rule = Rule::AllOrNothing { quota_for_all: dice.once_in(5), rescued: dice.once_in(5) };
    let rule = match dice.up_to(9) {
        0 => Rule::Ask,
        1 | 2 => Rule::Each,
        _ => rule,
    };
    Charges { list: (0..=dice.up_to(4)).map(|_| one(dice)).collect(), rule }
}

fn asked(memory: &Memory, now: Nanos, charges: &Charges) -> Outcomes {
    match memory.charge(now, charges) {
        Reply::Now(outcomes) => outcomes,
        Reply::Later(_) => unreachable!("memory answers at once"),
    }
}

fn as_answer(outcome: Outcome, charge: &Charge, now: Nanos) -> Answer {
    match outcome {
        Outcome::Stepped(Step::Stale) | Outcome::Refunded(Step::Stale) => {
            expected(Step::Stale, charge.cost, now)
        }
        outcome => Answer::Outcome(outcome),
    }
}

#[test]
fn a_question_of_several_charges_is_answered_as_memory_answers_it() {
    let (redis, seed) = (Redis::start(), seed());
    let mut scripted = Scripted::new(&redis);
    let memory = Memory::new(10_000_000, WhenFull::Deny, [7; 16]);
    for trace in 0..TRACES {
        let mut dice = Dice::new(seed ^ trace << 32);
        let (counters, mut now) = (counters(&mut dice), START);
        let mut trail = Vec::new();
        for _ in 0..STEPS {
            let charges = question(&mut dice, trace, &counters);
            // Rested counters are dropped here and kept there: a clock that stepped back would tell.
            let limit = dice.pick(&counters);
            now = now.plus(Nanos(dice.pick(&[0, 0, 1_000, span(&limit).0 / 7])));
            let outcomes = asked(&memory, now, &charges);
            scripted.queue(&charges, Some(now));
            trail.push((charges, now, outcomes));
        }
        scripted.client.flush();
        for (step, (charges, now, outcomes)) in trail.iter().enumerate() {
            let wanted = outcomes.iter().zip(&charges.list);
            let wanted: Vec<_> =
                wanted.map(|(outcome, charge)| as_answer(*outcome, charge, *now)).collect();
            let got = answers(charges, &scripted.client.receive());
            assert_eq!(
                got.as_slice(),
                wanted,
                "SLUICEGATE_SEED={seed}, trace {trace}, step {step}: {charges:#?}"
            );
        }
    }
}
