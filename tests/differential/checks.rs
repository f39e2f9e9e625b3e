//! Compares the charge script with the memory store, for checks with several charges.

use sluicegate::kernel::decision::{Cost, Enforcement, VoteGroup};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::{CounterDecision, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::redis::codec::ChargeResult;
use sluicegate::store::{
    Charge, ChargeMode, ChargeOutcome, Charges, CounterStore as _, Outcomes, StoreReply,
};

use super::limits::{Kind, span};
use super::model::{charge, expected};
use super::one_counter::CLOCK;
use super::{Scripted, all_answers, answers, traces};
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;

const START: Nanos = Nanos(1_763_632_345_678_912_345);
const TRACES: u64 = 40;
const STEPS: usize = 100;

/// Draws the limits of the few counters that all checks of a trace use.
fn counters(dice: &mut Dice) -> Vec<Strategy> {
    let mut small = |kind: Kind| loop {
        let limit = kind.limit_or_charging(dice, START, None);
        if limit.max_at_once() < 20 {
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
        let group = dice.pick(&[
            VoteGroup::Enforced,
            VoteGroup::Enforced,
            VoteGroup::Quota,
            VoteGroup::Unlimited,
        ]);
        let standing = Enforcement { group, shadow: dice.once_in(5) };
        Charge { standing, ..charge(&format!("{trace} {which}"), strategy, cost) }
    };
    let rule = ChargeMode::AllOrNothing {
        quota_for_all: dice.once_in(5),
        quota_cannot_deny: dice.once_in(5),
    };
    let rule = match dice.up_to(9) {
        0 => ChargeMode::Preview,
        1 | 2 => ChargeMode::Each,
        _ => rule,
    };
    Charges { list: (0..=dice.up_to(4)).map(|_| one(dice)).collect(), mode: rule }
}

/// Adds `nanos` to `now`, up to the end of [`CLOCK`], which a few periods of 41 years would exceed.
fn later(now: Nanos, nanos: u64) -> Nanos {
    now.plus(Nanos(nanos)).min(Nanos(CLOCK.end))
}

fn memory_outcomes(memory: &MemoryStore, now: Nanos, charges: &Charges) -> Outcomes {
    match memory.charge(now, charges) {
        StoreReply::Ready(outcomes) => outcomes,
        StoreReply::Pending(_) => unreachable!("memory answers at once"),
    }
}

fn as_answer(outcome: ChargeOutcome, charge: &Charge, now: Nanos) -> ChargeResult {
    match outcome {
        ChargeOutcome::Decided(CounterDecision::OutsideWindows)
        | ChargeOutcome::Refunded(CounterDecision::OutsideWindows) => {
            expected(CounterDecision::OutsideWindows, charge.cost, now)
        }
        outcome => ChargeResult::Outcome(outcome),
    }
}

#[test]
fn multi_charge_check_matches_the_memory_store() {
    let (redis, seed) = (Redis::start(), seed());
    let mut scripted = Scripted::new(&redis);
    let memory = MemoryStore::new(10_000_000, WhenFull::Deny, [7; 16]);
    for trace in 0..traces(TRACES) {
        let mut dice = Dice::new(seed ^ trace << 32);
        let (counters, mut now) = (counters(&mut dice), START);
        let mut trail = Vec::new();
        for _ in 0..STEPS {
            let charges = question(&mut dice, trace, &counters);
            // The clock never steps back, because only one of the two stores drops empty counters.
            let limit = dice.pick(&counters);
            now = later(now, dice.pick(&[0, 0, 1_000, span(&limit).0 / 7]));
            let outcomes = memory_outcomes(&memory, now, &charges);
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

/// Counters with two limits each, as when replicas have different configuration revisions.
fn revised(dice: &mut Dice) -> Vec<[Strategy; 2]> {
    let mut small = |kind: Kind, before: Option<&Strategy>| loop {
        let limit = kind.limit_or_charging(dice, START, before);
        if limit.max_at_once() < 200 {
            return limit;
        }
    };
    let mut both = |kind: &Kind| {
        let first = small(*kind, None);
        [first, small(*kind, Some(&first))]
    };
    let ticks = [Nanos::from_secs(60), Nanos::from_secs(946_080_000)]
        .map(|period| Strategy::Gcra(Gcra::new(149, period, 149).unwrap()));
    assert_ne!(ticks[0].tick(), ticks[1].tick());
    Kind::ALL.iter().chain(&Kind::ALL).map(&mut both).chain([ticks]).collect()
}

/// Draws the checks of one batch. Often most of them charge one key.
fn batch(dice: &mut Dice, trace: u64, counters: &[[Strategy; 2]]) -> Vec<Charges> {
    let most = dice.pick(&[1, 3, 8, 40]);
    let hot = dice.once_in(2).then(|| dice.up_to(counters.len() as u64 - 1));
    let charge = |dice: &mut Dice| {
        let any = dice.up_to(counters.len() as u64 - 1);
        let which = hot.filter(|_| !dice.once_in(4)).unwrap_or(any);
        let [first, second] = counters[usize::try_from(which).unwrap()];
        let strategy = if dice.once_in(4) { second } else { first };
        let hits = Hits(dice.pick(&[0, 1, 1, 1, 1, 2, 3, 5, 21, 201, u64::MAX]));
        let cost = if dice.once_in(7) { Cost::Refund(hits) } else { Cost::Charge(hits) };
        let group = dice.pick(&[
            VoteGroup::Enforced,
            VoteGroup::Enforced,
            VoteGroup::Quota,
            VoteGroup::Unlimited,
        ]);
        let standing = Enforcement { group, shadow: dice.once_in(5) };
        Charge { standing, ..super::model::charge(&format!("r{trace} {which}"), strategy, cost) }
    };
    let question = |dice: &mut Dice| {
        let all = ChargeMode::AllOrNothing {
            quota_for_all: dice.once_in(5),
            quota_cannot_deny: dice.once_in(5),
        };
        let rule = if dice.once_in(4) { all } else { ChargeMode::Each };
        let charges = dice.pick(&[1, 1, 1, 2, 5]);
        Charges { list: (0..charges).map(|_| charge(dice)).collect(), mode: rule }
    };
    (0..=dice.up_to(most)).map(|_| question(dice)).collect()
}

/// The memory store's decisions one after another: first checks with `ChargeMode::Each`, then the
/// others.
fn sequential_decisions(
    memory: &MemoryStore,
    now: Nanos,
    questions: &[Charges],
) -> Vec<Vec<ChargeResult>> {
    let mut answers = vec![Vec::new(); questions.len()];
    for is_each in [true, false] {
        for (question, answers) in questions.iter().zip(&mut answers) {
            if matches!(question.mode, ChargeMode::Each) == is_each {
                let outcomes = memory_outcomes(memory, now, question);
                let wanted = outcomes.iter().zip(&question.list);
                *answers = wanted.map(|(got, charge)| as_answer(*got, charge, now)).collect();
            }
        }
    }
    answers
}

#[test]
fn batched_checks_match_sequential_checks() {
    let (redis, seed) = (Redis::start(), seed());
    let mut scripted = Scripted::new(&redis);
    let memory = MemoryStore::new(10_000_000, WhenFull::Deny, [7; 16]);
    for trace in 0..traces(TRACES) {
        let mut dice = Dice::new(seed ^ trace << 32);
        let (counters, mut now) = (revised(&mut dice), START);
        let mut trail = Vec::new();
        for _ in 0..STEPS {
            let questions = batch(&mut dice, trace, &counters);
            let [limit, _] = dice.pick(&counters);
            now = later(now, dice.pick(&[0, 0, 1_000, span(&limit).0 / 7]));
            let wanted = sequential_decisions(&memory, now, &questions);
            scripted.queue_all(&questions, Some(now));
            trail.push((questions, now, wanted));
        }
        scripted.client.flush();
        for (step, (questions, now, wanted)) in trail.iter().enumerate() {
            let got = all_answers(questions, &scripted.client.receive());
            let got: Vec<_> = got.into_iter().map(smallvec::SmallVec::into_vec).collect();
            assert_eq!(
                &got, wanted,
                "SLUICEGATE_SEED={seed}, trace {trace}, step {step} at {now}: {questions:#?}"
            );
        }
    }
}
