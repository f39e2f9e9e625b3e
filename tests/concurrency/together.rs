//! Gradient where a fleet holds the ceiling together: what one member makes of its part.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sluicegate::kernel::concurrency::limiter::{Effect, Event, Limiter, Rules};
use sluicegate::kernel::concurrency::policy::{Adaptive, Law, Looks, Part};
use sluicegate::kernel::concurrency::{Outcome, Permit};
use sluicegate::kernel::coordinator::Reading;
use sluicegate::kernel::coordinator::aggregate::Level;
use sluicegate::kernel::units::{Nanos, Share};

use crate::support::dice::{Dice, seed};

const BEGAN: Nanos = Nanos::from_secs(1_000);
const MILLI: u64 = Nanos::MILLI.0;
/// A fifth of the ceiling, as each of five has it.
const PART: Part = part(8);

const fn part(share: u32) -> Part {
    Part { share, ceiling: 40, looks: looks(BEGAN, Nanos(0)) }
}

const fn looks(here: Nanos, there: Nanos) -> Looks {
    Looks { clock: Reading { here, there }, heartbeat: Nanos::SECOND }
}

/// One of five that do all the same, before a backend that serves so many at once.
struct Member {
    limiter: Limiter,
    now: Nanos,
    capacity: u64,
    /// Milliseconds.
    takes: u64,
    out: BinaryHeap<Reverse<(Nanos, u64)>>,
    permits: Vec<Permit>,
    /// The least limit since the last look at it.
    least: u32,
}

impl Member {
    fn new(capacity: u64) -> Self {
        let adaptive = Some(Adaptive { law: Law::Gradient, min: 1, max: 1_000 });
        let mut limiter = Limiter::new(&Rules { limit: 10, adaptive, waiting: None }, 7);
        limiter.step(BEGAN, Event::Part(PART));
        let (out, permits) = Default::default();
        Self { limiter, now: BEGAN, capacity, takes: 10, out, permits, least: u32::MAX }
    }

    /// Uses all that it may for so many milliseconds; a queue makes all slower alike.
    fn lives(&mut self, millis: u64) {
        let end = self.now.plus(Nanos(millis * MILLI));
        while self.now < end {
            self.fills();
            let Some(Reverse((at, place))) = self.out.pop() else { panic!("nobody is in flight") };
            self.now = at;
            let permit = self.permits[usize::try_from(place).unwrap()];
            let (outcome, rtt) = (Outcome::Success, None);
            self.limiter.step(at, Event::Leave { permit, outcome, rtt });
            self.least = self.least.min(self.limiter.limit());
        }
    }

    fn fills(&mut self) {
        let arrive = Event::Arrive { keep: None, patience: Nanos(0) };
        while let [Effect::Admit(permit)] = self.limiter.step(self.now, arrive)[..] {
            let whole = u64::from(self.limiter.in_flight()) * 5;
            let takes = self.takes * MILLI * whole.max(self.capacity) / self.capacity;
            self.out.push(Reverse((self.now.plus(Nanos(takes)), self.permits.len() as u64)));
            self.permits.push(permit);
        }
    }

    fn would(&self) -> Option<Level> {
        self.limiter.policy().estimate()
    }
}

#[test]
fn all_members_look_at_one_instant_of_the_store_s_clock_whatever_their_own_show() {
    let seed = seed();
    println!("seed {seed}");
    let mut dice = Dice::new(seed);
    for _ in 0..1_000 {
        let (there, passed) = (Nanos(dice.up_to(1 << 60)), dice.up_to(1 << 40));
        let rtt = Nanos(dice.up_to(Nanos::SECOND.0));
        let next = |here: Nanos, earlier: u64| {
            let looks = looks(here, there.since(Nanos(earlier)));
            let now = here.plus(Nanos(earlier + passed));
            looks.clock.after(now, looks.every(rtt)).since(now)
        };
        let wanted = next(Nanos(dice.up_to(1 << 60)), 0);
        assert_eq!(next(Nanos(dice.up_to(1 << 60)), dice.up_to(1 << 30)), wanted);
        let at = there.plus(Nanos(passed)).plus(wanted);
        assert_eq!(at.0 % looks(there, there).every(rtt).0, 0);
    }
}

#[test]
fn looks_are_rarer_where_round_trips_are_long_and_each_of_those_is_one_of_the_frequent() {
    let looks = looks(BEGAN, BEGAN);
    let mut last = looks.every(Nanos(0));
    assert_eq!(last, Nanos::from_secs(4));
    for millis in 1..2_000 {
        let every = looks.every(Nanos(millis * MILLI));
        assert!(last <= every && every.0.is_multiple_of(last.0));
        assert!(millis * MILLI * 64 <= every.0 || every == Nanos::from_secs(256));
        last = every;
    }
}

#[test]
fn who_has_not_looked_says_nothing() {
    let mut member = Member::new(1_000);
    member.lives(3_900);
    assert_eq!(member.would(), None);
}

#[test]
fn a_look_lowers_the_share_admits_somebody_and_ends_although_nobody_leaves() {
    let mut member = Member::new(1_000);
    member.lives(3_900);
    assert_eq!(member.least, 8);
    member.lives(110);
    assert!((1..8).contains(&member.least), "{}", member.least);
    // From here on nobody leaves.
    member.limiter.step(member.now.plus(Nanos::SECOND), Event::Expire);
    assert_eq!(member.limiter.limit(), 8);
}

#[test]
fn a_look_turns_nobody_away_at_a_share_of_one() {
    let mut member = Member::new(1_000);
    member.limiter.step(BEGAN, Event::Part(part(1)));
    member.lives(9_000);
    assert_eq!(member.least, 1);
}

#[test]
fn no_queue_with_more_and_none_with_fewer_asks_for_growth() {
    let mut member = Member::new(1_000);
    member.lives(5_000);
    assert_eq!(member.would(), Some(Level::of(Share(16))));
}

#[test]
fn a_queue_that_was_there_from_the_beginning_is_found_by_having_fewer_in_flight() {
    let mut member = Member::new(10);
    member.lives(5_000);
    let would = member.would().unwrap();
    // 1.3 · 10 of 40; the first look goes down to 10 in flight, which the backend just serves at once.
    assert!(would <= Level::of(Share(4)), "{would:?}");
    assert!(member.limiter.limit() <= 4, "far too much is lowered before the ceiling follows");
}

#[test]
fn a_backend_that_became_slower_is_not_taken_for_a_queue_for_long() {
    let mut member = Member::new(1_000);
    member.lives(5_000);
    member.takes = 30;
    member.lives(1_000);
    assert!(member.would().unwrap() < Level::of(Share(8)), "it looks like one at first");
    member.lives(16_000);
    assert_eq!(member.limiter.policy().ideal(), Some(Nanos(30 * MILLI)));
    assert!(Level::of(Share(8)) < member.would().unwrap());
}

#[test]
fn a_backend_that_became_quicker_is_looked_at_before_anybody_asks_for_more() {
    let mut member = Member::new(1_000);
    member.lives(5_000);
    member.takes = 5;
    member.lives(1_000);
    assert_eq!(member.limiter.policy().ideal(), Some(Nanos(5 * MILLI)));
    assert_eq!(member.would(), Some(Level::of(Share(8))));
    member.lives(4_000);
    assert!(Level::of(Share(8)) < member.would().unwrap());
}

#[test]
fn one_that_goes_on_alone_follows_its_own_limit() {
    let mut member = Member::new(1_000);
    member.lives(5_000);
    member.limiter.step(member.now, Event::Share(u32::MAX));
    member.lives(2_000);
    assert!(16 < member.limiter.limit(), "{}", member.limiter.limit());
}
