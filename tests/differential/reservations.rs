//! Compares the scripts for reservations (reserve, commit, cancel) of one counter with the kernel.

mod corrupt_state;
mod expiry;

use std::time::Duration;

use sluicegate::kernel::decision::Cost;
use sluicegate::kernel::lease::counter::AnyCounter;
use sluicegate::kernel::lease::reservation::{CounterReservations, ReservationId};
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::{CounterDecision, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::redis::codec::ChargeResult;
use sluicegate::store::redis::codec::lease::{PackedMessage, encode_call as together};
use sluicegate::store::redis::codec::reservation::{
    ReservationAction, ReservationResult, pack, read, split_reply,
};
use sluicegate::store::redis::{CHARGE_SCRIPT, RESERVATION_SCRIPT};
use sluicegate::store::{Charge, ChargeOutcome};

use super::limits::{Kind, span};
use super::model::{Model, charge, expected};
use super::{PREFIX, answers, call, traces};
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;
use crate::support::resp::{Client, Value};

const START: Nanos = Nanos(1_763_632_345_678_912_345);

const END: u64 = 8_900_000_000_000_000_000;

/// Number of traces for each of the five kinds of limit, with 20,000 steps in all.
const TRACES: u64 = 40;

const STEPS: usize = 100;

#[derive(Clone, Copy, Debug)]
enum StoreCall {
    Act(ReservationAction, ReservationId),
    /// A charge without a reservation.
    Charge,
}

struct ReservationTrace {
    dice: Dice,
    now: Nanos,
    limit: Strategy,
    term: Duration,
    model: Model,
    holds: CounterReservations,
    last: ReservationId,
}

impl ReservationTrace {
    fn new(kind: Kind, mut dice: Dice) -> Self {
        let limit = kind.limit(&mut dice, START, None);
        let micros = (span(&limit).0 / 1_000 / dice.pick(&[2, 20, 200])).clamp(1, 1 << 45);
        let term = Duration::from_micros(micros);
        let (model, holds, last) = (Model::default(), CounterReservations::default(), id(0));
        Self { dice, now: START, limit, term, model, holds, last }
    }

    fn wait(&mut self) {
        let (tick, span) = (self.limit.tick().size().0, span(&self.limit).0);
        let term = u64::try_from(self.term.as_nanos()).unwrap();
        let dice = &mut self.dice;
        let forward = match dice.up_to(14) {
            0..=4 => 0,
            5 => tick,
            6..=9 => dice.up_to(term / 8),
            10 => dice.up_to(term),
            11 => term,
            12 => term.saturating_sub(1_000 * dice.up_to(1)),
            13 => dice.up_to(span / 4),
            _ => dice.up_to(span),
        };
        self.now = Nanos(self.now.plus(Nanos(forward)).0.min(END));
        // The model drops ended windows, so the clock never steps back for strategies with windows.
        let has_windows =
            matches!(self.limit, Strategy::FixedWindow(_) | Strategy::SlidingWindow(_));
        if !has_windows && self.dice.once_in(40) {
            let back = self.dice.up_to((span / 8).min(START.0 / 100));
            self.now = Nanos(self.now.0 - back);
        }
    }

    fn draw_call(&mut self, name: &str) -> (StoreCall, Charge) {
        let left = self.model.headroom(&self.limit, self.now).map_or(0, |room| room.remaining.0);
        let (most, dice) = (u64::from(self.limit.max_at_once()), &mut self.dice);
        let hits = dice.pick(&[0, 1, 1, 2, 5, left, left / 3, left / 2, left + 1, most + 1]);
        // Uses few ids, so that a call often meets an open reservation.
        let id = if dice.once_in(2) { self.last } else { id(dice.up_to(8)) };
        self.last = id;
        let asked = match dice.up_to(9) {
            0..=3 => StoreCall::Act(ReservationAction::Reserve(self.term), id),
            4..=5 => StoreCall::Act(ReservationAction::Commit, id),
            6..=7 => StoreCall::Act(ReservationAction::Cancel, id),
            _ => StoreCall::Charge,
        };
        (asked, charge(name, self.limit, Cost::Charge(Hits(hits))))
    }

    /// The kernel's result of the same call.
    fn held(&mut self, asked: StoreCall, charge: &Charge) -> ReservationResult {
        let Cost::Charge(hits) = charge.cost else { unreachable!() };
        let (holds, now, term) = (&mut self.holds, self.now, self.term);
        let term = Nanos(u64::try_from(term.as_nanos()).unwrap());
        let (step, cost) = match asked {
            StoreCall::Charge => (self.model.apply(&self.limit, now, charge.cost), charge.cost),
            StoreCall::Act(ReservationAction::Commit, id) => {
                return if holds.keep(id) {
                    ReservationResult::Committed
                } else {
                    ReservationResult::NotReserved
                };
            }
            StoreCall::Act(ReservationAction::Reserve(_), id) => {
                let hold = |counter: &mut AnyCounter| holds.reserve(counter, now, id, hits, term);
                (self.model.with_counter(&self.limit, now, hold).unwrap(), charge.cost)
            }
            StoreCall::Act(ReservationAction::Cancel, id) => {
                let give = |counter: &mut AnyCounter| holds.cancel(counter, now, id);
                (self.model.with_counter(&self.limit, now, give), Cost::Charge(Hits(0)))
            }
        };
        ReservationResult::Charged(expected(step, cost, now))
    }

    fn step(&mut self, kind: Kind, name: &str) -> (StoreCall, Charge, Nanos, ReservationResult) {
        self.wait();
        if kind == Kind::Calendar || self.dice.once_in(25) {
            self.limit = kind.limit(&mut self.dice, self.now, Some(&self.limit));
        }
        let (asked, charge) = self.draw_call(name);
        let held = self.held(asked, &charge);
        (asked, charge, self.now, held)
    }
}

const fn id(number: u64) -> ReservationId {
    ReservationId(u64::MAX, number)
}

struct Reserver {
    client: Client,
    hold: String,
    charge: String,
}

impl Reserver {
    fn new(redis: &Redis) -> Self {
        let mut client = redis.connect();
        let [hold, charge] = [RESERVATION_SCRIPT, CHARGE_SCRIPT]
            .map(|text| client.call(&["SCRIPT", "LOAD", text]).text());
        Self { client, hold, charge }
    }

    fn queue(&mut self, asked: StoreCall, charge: &Charge, at: Option<Nanos>) {
        let (sha, keys, args) = match asked {
            StoreCall::Act(act, id) => {
                let (keys, args) = together(&[pack(charge, id, act, PREFIX, at)]);
                (&self.hold, keys, args)
            }
            StoreCall::Charge => {
                let call = call(&[one(charge)], at);
                (&self.charge, call.keys, call.args)
            }
        };
        let count = keys.len().to_string().into_bytes();
        let head = [b"EVALSHA".to_vec(), sha.clone().into_bytes(), count];
        self.client.queue(&head.into_iter().chain(keys).chain(args).collect::<Vec<_>>());
    }

    fn held(&mut self, asked: StoreCall, charge: &Charge) -> ReservationResult {
        match (self.client.receive(), asked) {
            (reply @ Value::Array(_), StoreCall::Act(act, _)) => {
                read(charge, act, &split_reply(&reply.ints(), 1).unwrap()[0]).unwrap()
            }
            (reply @ Value::Text(_), StoreCall::Charge) => {
                ReservationResult::Charged(answers(&one(charge), &reply)[0])
            }
            (other, _) => panic!("{other:?}"),
        }
    }

    fn ask(&mut self, asked: StoreCall, charge: &Charge, at: Option<Nanos>) -> ReservationResult {
        self.queue(asked, charge, at);
        self.client.flush();
        self.held(asked, charge)
    }
}

#[test]
fn batched_reservations_match_single_calls() {
    let (redis, seed) = (Redis::start(), seed());
    let (mut reserver, mut dice) = (Reserver::new(&redis), Dice::new(seed));
    let mut generators: Vec<(Kind, ReservationTrace)> = Kind::ALL
        .into_iter()
        .cycle()
        .take(12)
        .map(|kind| (kind, ReservationTrace::new(kind, Dice::new(dice.roll()))))
        .collect();
    for step in 0..traces(400) {
        let count = 1 + usize::try_from(dice.up_to(11)).unwrap();
        let mut now = START;
        let mut asked = Vec::new();
        for (number, (kind, generator)) in generators.iter_mut().enumerate().take(count) {
            let (what, charge, at, _) = generator.step(*kind, &format!("together-{number}"));
            now = now.max(at);
            let (StoreCall::Act(act, id), alone) =
                (what, charge_as(&charge, &format!("alone-{number}")))
            else {
                continue;
            };
            asked.push((act, id, charge, alone));
        }
        if asked.is_empty() {
            continue;
        }
        let packed: Vec<PackedMessage> = asked
            .iter()
            .map(|(act, id, charge, _)| pack(charge, *id, *act, PREFIX, Some(now)))
            .collect();
        let (keys, args) = together(&packed);
        let count = keys.len().to_string().into_bytes();
        let head = [b"EVALSHA".to_vec(), reserver.hold.clone().into_bytes(), count];
        let reply =
            reserver.client.call(&head.into_iter().chain(keys).chain(args).collect::<Vec<_>>());
        let said = split_reply(&reply.ints(), asked.len()).unwrap();
        for ((act, id, charge, alone), said) in asked.iter().zip(said) {
            let said = read(charge, *act, &said).unwrap();
            let each = reserver.ask(StoreCall::Act(*act, *id), alone, Some(now));
            assert_eq!(
                said, each,
                "SLUICEGATE_SEED={seed}, step {step}: {act:?} of {:?}",
                charge.strategy
            );
        }
    }
}

fn charge_as(its: &Charge, name: &str) -> Charge {
    charge(name, its.strategy, its.cost)
}

fn one(charge: &Charge) -> sluicegate::store::Charges {
    sluicegate::store::Charges {
        list: [charge.clone()].into_iter().collect(),
        ..Default::default()
    }
}

fn assert_matches_kernel(kind: Kind) {
    let (redis, seed) = (Redis::start(), seed());
    let mut reserver = Reserver::new(&redis);
    let (mut held_or_kept, mut back) = (0, 0);
    for number in 0..traces(TRACES) {
        let mut generator = ReservationTrace::new(kind, Dice::new(seed ^ number << 32));
        let name = number.to_string();
        let trace: Vec<_> = (0..STEPS).map(|_| generator.step(kind, &name)).collect();
        for (asked, charge, now, _) in &trace {
            reserver.queue(*asked, charge, Some(*now));
        }
        reserver.client.flush();
        for (step, (asked, charge, now, held)) in trace.iter().enumerate() {
            let said = reserver.held(*asked, charge);
            assert_eq!(
                said, *held,
                "SLUICEGATE_SEED={seed}, {kind:?}, trace {number}, step {step}:\n{:?}\n{asked:?} of \
                 {:?} at {now}",
                charge.strategy, charge.cost,
            );
            held_or_kept += u32::from(said == ReservationResult::Committed);
            back += u32::from(matches!(asked, StoreCall::Act(ReservationAction::Cancel, _)));
        }
    }
    assert!(40 < held_or_kept && 100 < back, "{held_or_kept} kept");
}

fn left(result: ReservationResult) -> u64 {
    match result {
        ReservationResult::Charged(ChargeResult::Outcome(ChargeOutcome::Decided(
            CounterDecision::Allow(room),
        ))) => room.remaining.0,
        other => panic!("{other:?}"),
    }
}

/// A charge of ten hits to a limit of 100 per hour, for each strategy.
fn hours() -> [Charge; 4] {
    use sluicegate::kernel::rate::sliding_log::SlidingLog;
    use sluicegate::kernel::rate::sliding_window::SlidingWindow;
    let hour = Nanos::from_secs(3_600);
    let limits = [
        Strategy::Gcra(Gcra::new(100, hour, 100).unwrap()),
        Strategy::FixedWindow(FixedWindow::new(100, Windows::Every(hour)).unwrap()),
        Strategy::SlidingWindow(SlidingWindow::new(100, hour).unwrap()),
        Strategy::SlidingLog(SlidingLog::new(100, hour).unwrap()),
    ];
    limits.map(|limit| charge("a", limit, Cost::Charge(Hits(10))))
}

const TERM: Duration = Duration::from_secs(1);

#[test]
fn repeated_reserve_or_cancel_applies_once() {
    let redis = Redis::start();
    let mut reserver = Reserver::new(&redis);
    for charge in hours() {
        reserver.client.call(&["FLUSHALL"]);
        let mut ask = |act, number| {
            let held =
                reserver.ask(StoreCall::Act(act, ReservationId(1, number)), &charge, Some(START));
            if matches!(held, ReservationResult::Charged(_)) { Some(left(held)) } else { None }
        };
        for _ in 0..3 {
            assert_eq!(ask(ReservationAction::Reserve(TERM), 1), Some(90));
        }
        assert_eq!(ask(ReservationAction::Reserve(TERM), 2), Some(80));
        for _ in 0..3 {
            assert_eq!(ask(ReservationAction::Cancel, 1), Some(90));
        }
        ask(ReservationAction::Commit, 2);
        assert_eq!(ask(ReservationAction::Cancel, 2), Some(90), "what is kept stays");
    }
}

#[test]
fn gcra_reservations_match_the_kernel() {
    assert_matches_kernel(Kind::Gcra);
}

#[test]
fn fixed_window_reservations_match_the_kernel() {
    assert_matches_kernel(Kind::Fixed);
}

#[test]
fn calendar_window_reservations_match_the_kernel() {
    assert_matches_kernel(Kind::Calendar);
}

#[test]
fn sliding_window_reservations_match_the_kernel() {
    assert_matches_kernel(Kind::Sliding);
}

#[test]
fn sliding_log_reservations_match_the_kernel() {
    assert_matches_kernel(Kind::Log);
}
