//! A paced limiter beside a simple reference: plain lists, and exact fractions for the rate.

use std::collections::VecDeque;

use proptest::prelude::*;
use sluicegate_kernel::concurrency::adaptive::Hundredths;
use sluicegate_kernel::concurrency::limiter::{
    AcquireDenial, Limiter, LimiterConfig, LimiterEffect, LimiterEvent, QueueConfig,
};
use sluicegate_kernel::concurrency::pace::{AdaptivePace, PaceConfig, WAKE_DELAY};
use sluicegate_kernel::concurrency::{Permit, QueueTicket, RequestOutcome};
use sluicegate_kernel::units::Nanos;

use super::{ACQUIRE, START, ms, release};

const TIMEOUT: Nanos = ms(400);
const SIZE: usize = 3;
const MIN: u128 = 2;
const MAX: u128 = 20;

/// A request in flight: its permit, its admission, and whether its turn counts for growth.
type Running = (Permit, Nanos, bool);

#[derive(Clone, Copy, Debug)]
enum Action {
    Arrive,
    Answer(usize, RequestOutcome),
    Cancel(usize),
    GiveBack(usize),
    Pause(u64),
    Advance(u64),
    /// Time passes until the next turn.
    AwaitTurn,
}

fn actions() -> impl Strategy<Value = Action> {
    use RequestOutcome::{Dropped, Ignored, Success};
    let outcome = prop_oneof![6 => Just(Success), 2 => Just(Dropped), 1 => Just(Ignored)];
    prop_oneof![
        5 => Just(Action::Arrive),
        4 => (any::<usize>(), outcome).prop_map(|(which, outcome)| Action::Answer(which, outcome)),
        1 => any::<usize>().prop_map(Action::Cancel),
        1 => any::<usize>().prop_map(Action::GiveBack),
        1 => (0..300_u64).prop_map(Action::Pause),
        2 => (0..150_u64).prop_map(Action::Advance),
        3 => Just(Action::AwaitTurn),
    ]
}

/// The reference. Its rate is in 2^-32 requests a second, as the contract says.
struct Reference {
    rate: u128,
    turns: Vec<(Nanos, Option<Permit>)>,
    decreased_at: Option<Nanos>,
    paused_until: Nanos,
    waiting: VecDeque<(QueueTicket, Nanos)>,
    running: Vec<Running>,
}

impl Reference {
    fn interval(&self) -> Nanos {
        let (second, one) = (u128::from(Nanos::SECOND.0), 1_u128 << 32);
        Nanos(u64::try_from((second * one).div_ceil(self.rate)).unwrap())
    }

    fn next_turn(&self) -> Nanos {
        self.turns.last().map_or(Nanos(0), |(last, _)| Nanos(last.0 + self.interval().0))
    }

    fn admit(&mut self, now: Nanos, earliest: Nanos, permit: Permit) {
        let is_used =
            self.turns.last().is_some_and(|(last, _)| now.0 <= last.0 + 2 * self.interval().0);
        self.turns.push((self.next_turn().max(earliest), Some(permit)));
        self.running.push((permit, now, is_used));
    }

    fn answer(&mut self, now: Nanos, which: usize, outcome: RequestOutcome) -> Permit {
        let (permit, admitted_at, is_used) = self.running.remove(which);
        let one = 1_u128 << 32;
        if outcome == RequestOutcome::Dropped && self.decreased_at.is_none_or(|at| at < admitted_at)
        {
            self.rate = (self.rate * 3 / 4).max(MIN * one);
            self.decreased_at = Some(now);
        }
        if outcome == RequestOutcome::Success && is_used && self.paused_until <= now {
            self.rate = (self.rate + 2 * one * one / self.rate).min(MAX * one);
        }
        permit
    }

    fn give_back(&mut self, permit: Permit) {
        if self.turns.last().is_some_and(|(_, newest)| *newest == Some(permit)) {
            self.turns.pop();
            if let Some((_, before)) = self.turns.last_mut() {
                *before = None;
            }
        }
    }

    /// Takes the effects of time: first timeouts, then turns.
    fn expect_woken(&mut self, now: Nanos, effects: &mut VecDeque<LimiterEffect>) {
        while let Some(at) = self.waiting.iter().position(|(_, deadline)| *deadline <= now) {
            let (ticket, _) = self.waiting.remove(at).unwrap();
            assert_eq!(effects.pop_front(), Some(LimiterEffect::TimedOut(ticket)));
        }
        while self.next_turn() <= now
            && let Some((ticket, _)) = self.waiting.pop_front()
        {
            let Some(LimiterEffect::Wake(woken, permit)) = effects.pop_front() else { panic!() };
            assert_eq!(woken, ticket);
            self.admit(now, Nanos(now.0 - WAKE_DELAY.0), permit);
        }
    }
}

fn config() -> LimiterConfig {
    let adaptive = AdaptivePace { min: 2, max: 20, increase: 2, decrease: Hundredths(75) };
    LimiterConfig {
        pace: Some(PaceConfig { unit: Nanos::SECOND, adaptive: Some(adaptive) }),
        queue: Some(QueueConfig { size: u32::try_from(SIZE).unwrap(), timeout: TIMEOUT }),
        ..LimiterConfig::fixed(10)
    }
}

/// Applies one action to both, and compares all effects.
fn act(limiter: &mut Limiter, model: &mut Reference, now: &mut Nanos, action: &Action) {
    match action {
        Action::Advance(time) => *now = now.plus(ms(*time)),
        Action::AwaitTurn => *now = model.next_turn().max(*now),
        _ => {}
    }
    let now = *now;
    let chosen = |which: usize, len: usize| which.checked_rem(len);
    let (running, waiting) = (model.running.len(), model.waiting.len());
    let event = match *action {
        Action::Arrive => ACQUIRE,
        Action::Answer(which, outcome) => match chosen(which, running) {
            Some(which) => release(model.running[which].0, outcome),
            None => return,
        },
        Action::GiveBack(which) => match chosen(which, running) {
            Some(which) => LimiterEvent::GiveBack(model.running[which].0),
            None => return,
        },
        Action::Cancel(which) => match chosen(which, waiting) {
            Some(which) => LimiterEvent::Cancel(model.waiting[which].0),
            None => return,
        },
        Action::Pause(time) => LimiterEvent::PauseGrowth(ms(time)),
        Action::Advance(_) | Action::AwaitTurn => LimiterEvent::Expire,
    };
    let mut effects: VecDeque<_> = limiter.step(now, event).into_iter().collect();
    model.expect_woken(now, &mut effects);
    match (*action, event) {
        (Action::Arrive, _) if model.next_turn() <= now => {
            let Some(LimiterEffect::Admit(permit)) = effects.pop_front() else { panic!() };
            model.admit(now, now, permit);
        }
        (Action::Arrive, _) if model.waiting.len() < SIZE => {
            let Some(LimiterEffect::Queue(ticket)) = effects.pop_front() else { panic!() };
            model.waiting.push_back((ticket, now.plus(TIMEOUT)));
        }
        (Action::Arrive, _) => {
            let denied = LimiterEffect::Deny(AcquireDenial::QueueFull);
            assert_eq!(effects.pop_front(), Some(denied));
        }
        (Action::Answer(which, outcome), _) => {
            model.answer(now, which % running, outcome);
        }
        (_, LimiterEvent::GiveBack(permit)) => model.give_back(permit),
        (_, LimiterEvent::Cancel(ticket)) => {
            let before = model.waiting.len();
            model.waiting.retain(|(one, _)| *one != ticket);
            let is_known = model.waiting.len() < before;
            assert_eq!(effects.pop_front(), (!is_known).then_some(LimiterEffect::Unknown));
        }
        (Action::Pause(time), _) => {
            model.paused_until = model.paused_until.max(now.plus(ms(time)));
        }
        _ => {}
    }
    model.expect_woken(now, &mut effects);
    assert_eq!(effects, [], "effects without a reason");
}

proptest! {
    #[test]
    fn random_events_agree_with_a_simple_reference(
        actions in proptest::collection::vec(actions(), 1..200),
    ) {
        let (mut limiter, mut now) = (Limiter::new(&config(), 0), START);
        let mut model = Reference {
            rate: 10 << 32,
            turns: Vec::new(),
            decreased_at: None,
            paused_until: Nanos(0),
            waiting: VecDeque::new(),
            running: Vec::new(),
        };
        for action in &actions {
            act(&mut limiter, &mut model, &mut now, action);
            prop_assert_eq!(limiter.pace().unwrap().interval(), model.interval());
            prop_assert_eq!(limiter.pace().unwrap().next_turn(), model.next_turn());
            prop_assert_eq!(limiter.queue_len(), model.waiting.len());
        }
    }
}
