//! How soon a joiner has its part, and how much of a ceiling is used where demand is uneven.
//!
//! Here nothing goes wrong and a tick is a millisecond: heartbeats of a second, a store 1 ms away. A replica looks a hundred
//! times a heartbeat whether one is due, as the engine does.

use sluicegate::kernel::coordinator::aggregate::Level;
use std::collections::VecDeque;

use sluicegate::kernel::coordinator::member::{Applied, Load};
use sluicegate::kernel::coordinator::split::{Split, Usage, wanted};
use sluicegate::kernel::coordinator::{Grant, Heartbeat, Law, Member, Reading, Terms};
use sluicegate::kernel::units::{Incarnation, MemberId, Nanos, Share};

use super::store::Store;
use crate::simulation::bad::Bad;
use crate::support::dice::{Dice, seed};

const HEARTBEAT: u64 = 1_000;
/// By how much the store's clock is ahead of a replica's.
const AHEAD: u64 = 123_456_789;
/// From one look whether a heartbeat is due to the next.
const LOOK: u64 = HEARTBEAT / 100;

/// A replica and the requests that come to it.
struct Busy {
    member: Member,
    /// When it starts.
    starts: u64,
    /// When it speaks though nothing is due.
    speaks_at: u64,
    /// Requests that come in a thousand ticks.
    rate: u64,
    /// Mean duration in ticks.
    lasts: u64,
    ends: Vec<u64>,
    /// Of the last heartbeat's length, oldest first: in flight, came, admitted.
    past: VecDeque<[u64; 3]>,
    seen: [u64; 3],
    /// When a grant left it less than it has in flight; when it had drained, and how long it took.
    lowered: Option<u64>,
    drained: u64,
    drain: u64,
}

impl Busy {
    fn new(id: u64, starts: u64, terms: Terms, (rate, lasts): (u64, u64)) -> Self {
        let member = Member::new(MemberId(id), Incarnation(1), terms);
        let past = VecDeque::new();
        Self {
            member,
            starts,
            speaks_at: 0,
            rate,
            lasts,
            ends: Vec::new(),
            past,
            seen: [0; 3],
            lowered: None,
            drained: 0,
            drain: 0,
        }
    }

    fn in_flight(&self) -> u64 {
        self.ends.len() as u64
    }

    /// A millisecond of requests, and the heartbeat if one is due.
    fn live(&mut self, tick: u64, dice: &mut Dice) -> Option<Heartbeat> {
        self.ends.retain(|end| tick < *end);
        let share = self.member.in_force(Nanos(tick)).0;
        if let Some(lowered) = self.lowered.take_if(|_| self.ends.len() as u64 <= share) {
            (self.drained, self.drain) = (tick, self.drain.max(tick - lowered));
        }
        let came = self.rate / 1_000 + u64::from(dice.up_to(999) < self.rate % 1_000);
        let admitted = came.min(share.saturating_sub(self.in_flight()));
        for _ in 0..admitted {
            self.ends.push(tick + 1 + dice.up_to(2 * self.lasts - 2));
        }
        self.remember([self.in_flight(), came, admitted]);
        let load = self.load();
        let looks = tick % LOOK == self.starts % LOOK;
        let due =
            looks && self.member.due(Nanos(tick), &load) <= Nanos(tick) || tick == self.speaks_at;
        due.then(|| self.member.beat(Nanos(tick), &load))
    }

    fn remember(&mut self, now: [u64; 3]) {
        self.past.push_back(now);
        let old = if HEARTBEAT < self.past.len() as u64 { self.past.pop_front() } else { None };
        for (sum, (new, old)) in self.seen.iter_mut().zip(now.iter().zip(old.unwrap_or_default())) {
            *sum = *sum + new - old;
        }
    }

    fn load(&self) -> Load {
        let ticks = (self.past.len() as u64).max(1);
        let [in_flight, arrived, admitted] = self.seen;
        let mean = Level(Level::of(Share(in_flight)).0.div_ceil(ticks));
        let lasted = (0 < admitted).then_some(Nanos(self.lasts));
        let refused = arrived - admitted;
        let wanted = wanted(&Usage { window: Nanos(ticks), mean, arrived, refused, lasted });
        Load { in_flight: Share(self.in_flight()), wanted, vote: None }
    }
}

/// A fleet, its store, and the messages between them: each takes a tick.
struct Fleet {
    tick: u64,
    dice: Dice,
    store: Store,
    busy: Vec<Busy>,
    beats: Vec<(usize, Heartbeat)>,
    grants: Vec<(usize, Grant)>,
}

impl Fleet {
    fn new(seed: u64, ceiling: u64, split: Split, loads: &[(u64, u64)]) -> Self {
        let (heartbeat, term) = (Nanos(HEARTBEAT), Nanos(4 * HEARTBEAT));
        let terms = Terms::new(heartbeat, term, Nanos(10 * HEARTBEAT), 500).unwrap();
        let ceiling = Share(ceiling);
        let law = Law { split, ..Law::new(terms, ceiling, ceiling, ceiling).unwrap() };
        let (store, mut dice) = (Store::new(law), Dice::new(seed));
        // At any time, as processes do.
        let busy = |(id, load): (usize, &(u64, u64))| {
            Busy::new(id as u64, dice.up_to(HEARTBEAT - 1), terms, *load)
        };
        let busy = loads.iter().enumerate().map(busy).collect();
        Self { tick: 0, dice, store, busy, beats: Vec::new(), grants: Vec::new() }
    }

    /// One tick for the first `members`.
    fn step(&mut self, members: usize) {
        self.tick += 1;
        for (at, grant) in std::mem::take(&mut self.grants) {
            let busy = &mut self.busy[at];
            let there = Nanos(self.tick + AHEAD);
            busy.member.goes_by(Reading { here: Nanos(self.tick), there });
            let applied = busy.member.on_grant(Nanos(self.tick), &grant);
            if matches!(applied, Applied::From(before) if grant.share < before) {
                busy.lowered.get_or_insert(self.tick);
            }
        }
        for (at, beat) in std::mem::take(&mut self.beats) {
            let grant = self.store.hear(Nanos(self.tick), &beat, Bad::No);
            self.grants.extend(grant.map(|grant| (at, grant)));
        }
        for (at, busy) in self.busy.iter_mut().enumerate().take(members) {
            if busy.starts < self.tick {
                let beat = busy.live(self.tick, &mut self.dice);
                self.beats.extend(beat.map(|beat| (at, beat)));
            }
        }
    }

    fn in_flight(&self) -> u64 {
        self.busy.iter().map(Busy::in_flight).sum()
    }

    /// Part of the ceiling that is in use over 20 s, after 10 s; in thousandths.
    fn utilisation(mut self) -> u64 {
        let (all, ceiling) = (self.busy.len(), self.store.law.max.0);
        let mut used = 0;
        while self.tick < 30_000 {
            self.step(all);
            used += if self.tick <= 10_000 { 0 } else { self.in_flight() };
        }
        used / (20 * ceiling)
    }

    /// From the last one's start, so long after some instant, to its fair part.
    fn ramp(mut self, phase: u64) -> Ramp {
        let members = self.busy.len() - 1;
        let began = 3_000 + phase;
        // Those who have lived through the same fall in step by that alone: set apart, as what each lives through does.
        for busy in &mut self.busy {
            busy.speaks_at = began - 1 - self.dice.up_to(HEARTBEAT - 1);
        }
        while self.tick < began {
            self.step(members);
        }
        for busy in &mut self.busy {
            (busy.lowered, busy.drained, busy.drain) = (None, self.tick, 0);
        }
        let fair = Share(self.store.law.max.0 / self.busy.len() as u64);
        while self.busy[members].member.in_force(Nanos(self.tick)) < fair {
            self.step(members + 1);
            assert!(self.tick < began + 60_000, "no part after a minute");
        }
        let drained = self.busy.iter().map(|busy| busy.drained).max().unwrap();
        let drain = self.busy.iter().map(|busy| busy.drain).max().unwrap();
        Ramp { whole: self.tick - began, drain, after_it: self.tick - drained }
    }
}

/// How long a joiner waited for its part, in ticks.
struct Ramp {
    whole: u64,
    /// The longest that a member took to come below its lowered share.
    drain: u64,
    /// From when the last had.
    after_it: u64,
}

/// Offered: half as much again as the ceiling, nine tenths of it to one member in ten.
fn skewed(ceiling: u64, lasts: u64) -> Vec<(u64, u64)> {
    let rate = ceiling * 1_500 / lasts;
    let mut loads = vec![(rate / 90, lasts); 9];
    loads.insert(4, (rate * 9 / 10, lasts));
    loads
}

#[test]
fn a_ceiling_split_by_demand_is_used_although_nine_tenths_come_to_one_member() {
    let seed = seed();
    let used = |split| Fleet::new(seed, 1_000, split, &skewed(1_000, 100)).utilisation();
    let (by_demand, equal) = (used(Split::Demand), used(Split::Equal));
    println!("seed {seed}: used by demand {by_demand} / 1000, split equally {equal} / 1000");
    assert!(950 <= by_demand, "{by_demand} from seed {seed}");
}

/// The ramps of one more member beside so many, joining at any time between the instants at which they speak.
fn ramps(members: usize, dice: &mut Dice) -> Vec<Ramp> {
    let loads = vec![(600, 200); members + 1];
    let fleet = |dice: &mut Dice| Fleet::new(dice.roll(), 60, Split::Demand, &loads);
    // Enough of them that the median of another seed is another by a hundredth, in as much time for many members as for few.
    let times = (4_000 / members as u64).min(400);
    let ramp = |time| {
        let fleet = fleet(dice);
        let period = fleet.store.law.terms.period().0;
        fleet.ramp(time * period / times)
    };
    (0..times).map(ramp).collect()
}

fn median(numbers: impl Iterator<Item = u64>) -> u64 {
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    numbers[numbers.len() / 2]
}

#[test]
fn a_joiner_has_its_part_half_a_heartbeat_and_a_drain_after_it_came() {
    let seed = seed();
    let mut dice = Dice::new(seed);
    for members in [1, 4, 19] {
        let ramps = ramps(members, &mut dice);
        let [whole, drain] = [|ramp: &Ramp| ramp.whole, |ramp: &Ramp| ramp.drain]
            .map(|of| median(ramps.iter().map(of)));
        // Of each: drains differ, and the shortest whole is not the one of the shortest drain.
        let beside = median(ramps.iter().map(|ramp| ramp.whole.saturating_sub(ramp.drain)));
        let after = ramps.iter().map(|ramp| ramp.after_it).max().unwrap();
        println!(
            "{members} and one more: {whole} ms, a drain {drain}, beside it {beside}, at most {after} after it"
        );
        assert!(beside <= HEARTBEAT / 2, "{whole} ms, drain {drain}, seed {seed}");
        assert!(after <= 2 * HEARTBEAT, "{after} ms after the drain, seed {seed}");
    }
}
