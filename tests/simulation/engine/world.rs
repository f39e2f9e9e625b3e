//! The world: engines, their wires, a store, faults, and the oracle that counts requests.

use sluicegate::backend::heartbeat::{Heard, Round};
use sluicegate::kernel::units::Nanos;

use super::bound::Bound;
use super::faults::Fault;
use super::replica::{Limit, Replica, Request, Waited};
use super::store::{Store, misplaced};
use super::wire::Said;
use crate::simulation::bad::{Bad, Wrong};
use crate::support::dice::Dice;

/// The keys of the ceilings.
pub const CEILINGS: [&str; 2] = ["first", "second"];
pub const HEARTBEAT: Nanos = Nanos::SECOND;
/// With the shortest requests whole ticks, so that a share that is kept for a tick too long is seen.
pub const TERM: Nanos = Nanos(4 * Nanos::SECOND.0 - SHORTEST.0);
/// How long a request goes on at most.
pub const LONGEST: Nanos = Nanos::from_secs(2);
/// Or where they are too short to be seen, so that it is the shares that count.
const SHORTEST: Nanos = Nanos::MILLI;

/// Twenty in a heartbeat, as often as a replica looks.
pub const TICK: Nanos = Nanos(HEARTBEAT.0 / 20);
/// So long before the end of a tick come those who come in the nick of time: longer than the margin of a term.
const NICK: Nanos = Nanos(10 * Nanos::MILLI.0);
/// Ticks until the last replica has heard of another ceiling, where it is awake.
const SPREADS: u64 = 60;
/// Ticks with faults, and without at the end.
const WICKED: u64 = 700;
const QUIET: u64 = 500;
/// After the last fault: terms and requests are over, and a store that forgot knows again, twice.
const SETTLES: u64 = 300;
/// How long a call is waited for, in ticks.
pub const PATIENCE: u64 = 3;
/// How long one may wait in a queue: less than a term, so that some wait when it ends, and less than a request goes on.
const QUEUES: [Nanos; 2] = [Nanos::from_secs(3), Nanos(Nanos::SECOND.0 / 2)];

/// When what is lost arrives.
const NEVER: u64 = u64::MAX;

/// How often what happened.
#[derive(Debug, Default)]
pub struct Tally {
    fences: u64,
    handoffs: u64,
    late_answers: u64,
    amnesias_survived: u64,
    admitted: u64,
    waited: Waited,
    /// Schedules in which a ceiling had fewer permits than replicas.
    scarce: u64,
    /// Ticks in which more was in use than anybody went by any more.
    lowered: u64,
    faults: [u64; Fault::ALL.len()],
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.fences += other.fences;
        self.handoffs += other.handoffs;
        self.late_answers += other.late_answers;
        self.amnesias_survived += other.amnesias_survived;
        self.admitted += other.admitted;
        self.waited.add(other.waited);
        self.scarce += other.scarce;
        self.lowered += other.lowered;
        self.faults.iter_mut().zip(other.faults).for_each(|(sum, more)| *sum += more);
    }

    pub fn that_must_happen(&self) -> Vec<(String, u64)> {
        let mut all = vec![
            ("fence".to_owned(), self.fences),
            ("handoff".to_owned(), self.handoffs),
            ("late answer".to_owned(), self.late_answers),
            ("amnesia survived".to_owned(), self.amnesias_survived),
            ("request".to_owned(), self.admitted),
            ("waiter woken by a grant".to_owned(), self.waited.granted),
            ("waiter woken by one that left".to_owned(), self.waited.followed),
            ("waiter turned away at a fence".to_owned(), self.waited.fenced),
            ("waiter that waited in vain".to_owned(), self.waited.late),
            ("ceiling below the number of replicas".to_owned(), self.scarce),
            ("use above a ceiling that fell".to_owned(), self.lowered),
        ];
        let faults = Fault::ALL.iter().zip(self.faults);
        all.extend(faults.map(|(fault, count)| (format!("{fault:?}"), count)));
        all
    }
}

/// A heartbeat on its way to the store, whose answer may be waited for.
struct Parcel {
    at: u64,
    /// Which replica, by number and life.
    who: (u64, u64),
    said: Option<Said>,
    /// The same, said a second time: nobody waits for the answer.
    again: Option<Round>,
    /// When who waits gives up.
    until: u64,
}

impl Parcel {
    /// Whether it is still to arrive. Whoever has waited long enough gives up, and does not know of that.
    fn goes_on(&mut self, tick: u64) -> bool {
        if let Some(said) = self.said.take_if(|_| self.until <= tick) {
            self.again = Some(said.round);
        }
        self.said.is_some() || self.at != NEVER
    }
}

/// A place in the fleet, and who is there.
struct Place {
    id: u64,
    life: u64,
    replica: Option<Replica>,
    comes_back: u64,
}

/// A seeded schedule.
pub struct World {
    tick: u64,
    dice: Dice,
    runtime: tokio::runtime::Runtime,
    faults: Vec<Fault>,
    bad: Bad,
    store: Store,
    forgot_at: Option<u64>,
    /// As last configured.
    limit: Limit,
    /// Whether there are fewer permits than replicas.
    scarce: bool,
    bounds: [Bound; CEILINGS.len()],
    lives: u64,
    places: Vec<Place>,
    orphans: Vec<Request>,
    parcels: Vec<Parcel>,
    /// The most that were inside of each ceiling since the faults ended.
    full: [u64; CEILINGS.len()],
    tally: Tally,
}

impl World {
    pub fn new(seed: u64, bad: Bad, faults: &[Fault]) -> Self {
        let mut dice = Dice::new(seed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let count = 2 + dice.up_to(2);
        let scarce = dice.once_in(4);
        let ceiling = ceiling(scarce, count, &mut dice);
        let longest = dice.pick(&[SHORTEST, LONGEST, LONGEST]);
        let queue = dice.once_in(2).then(|| dice.pick(&QUEUES));
        let mut world = Self {
            tick: 0,
            runtime,
            faults: faults.to_vec(),
            bad,
            store: Store::new(bad),
            forgot_at: None,
            limit: Limit { ceiling, longest, queue, revision: 1 },
            scarce,
            bounds: [Bound::new(ceiling); CEILINGS.len()],
            lives: 0,
            places: Vec::new(),
            orphans: Vec::new(),
            parcels: Vec::new(),
            full: Default::default(),
            tally: Tally { scarce: scarce.into(), ..Tally::default() },
            dice,
        };
        for id in 0..count {
            let (life, replica) = world.born(id);
            world.places.push(Place { id, life, replica: Some(replica), comes_back: 0 });
        }
        world
    }

    /// The whole schedule; what broke, if something did.
    pub fn play(mut self) -> Result<Tally, Wrong> {
        while self.tick < WICKED + QUIET {
            self.tick += 1;
            if self.tick < WICKED && self.dice.once_in(30) {
                self.strikes();
            }
            self.comes_back();
            self.delivers();
            self.lives();
            self.delivers();
            self.judges()?;
        }
        self.judges_the_end()
    }

    fn born(&mut self, id: u64) -> (u64, Replica) {
        self.lives += 1;
        let (skews, drifts) = (self.dice.up_to(1_000), self.dice.pick(&[0, 500, 999]));
        let skew = if self.faults.contains(&Fault::Skew) { skews } else { 0 };
        let slow = if self.faults.contains(&Fault::Drift) { drifts } else { 0 };
        self.tally.faults[counted(Fault::Skew)] += u64::from(0 < skew);
        self.tally.faults[counted(Fault::Drift)] += u64::from(0 < slow);
        let start = Nanos::from_secs(1_000 + skew);
        let mut replica = Replica::new((id, self.lives), (start, slow), self.limit, self.bad);
        replica.rush = self.dice.up_to(3);
        (self.lives, replica)
    }

    fn now(&self) -> Nanos {
        Nanos::from_secs(5_000).plus(Nanos(self.tick * TICK.0))
    }

    fn strikes(&mut self) {
        let fault = self.dice.pick(&self.faults.clone());
        let at = usize::try_from(self.dice.up_to(self.places.len() as u64 - 1)).unwrap();
        let lasts = self.dice.pick(&[10, 40, 90, 150]);
        let until = self.tick + 1 + self.dice.up_to(lasts);
        let place = &mut self.places[at];
        let Some(replica) = &mut place.replica else { return };
        match fault {
            Fault::Partition => replica.cut_until = until,
            Fault::Pause => replica.stands_until = until,
            Fault::Crash => {
                place.comes_back = until;
                self.buries(at);
            }
            Fault::Roll => replica.leave(),
            Fault::Step => replica.steps(Nanos::from_secs(self.dice.up_to(3_600))),
            Fault::Swizzle => {
                for place in &mut self.places {
                    let until = self.tick + self.dice.up_to(60);
                    place.replica.iter_mut().for_each(|it| it.clogged_until = until);
                }
            }
            Fault::Amnesia => {
                let table_too = self.dice.once_in(2);
                self.store.forgets(self.now(), table_too);
                self.forgot_at = Some(self.tick);
                self.bounds.iter_mut().for_each(|bound| bound.is_doubted(self.tick));
            }
            Fault::Move => self.moves(),
            // From birth.
            Fault::Skew | Fault::Drift => return,
        }
        self.tally.faults[counted(fault)] += 1;
    }

    /// Another ceiling is configured; each replica is told of it at another time.
    fn moves(&mut self) {
        self.limit.ceiling = ceiling(self.scarce, self.places.len() as u64, &mut self.dice);
        self.limit.revision += 1;
        for replica in self.places.iter_mut().flat_map(|place| &mut place.replica) {
            let at = self.tick + self.dice.up_to(SPREADS);
            replica.news = Some((at, self.limit));
        }
    }

    fn buries(&mut self, at: usize) {
        let Some(replica) = self.places[at].replica.take() else { return };
        self.tally.fences += replica.fences;
        self.tally.handoffs += replica.handoffs;
        self.tally.waited.add(replica.waited);
        self.orphans.extend(replica.dies());
    }

    fn comes_back(&mut self) {
        for at in 0..self.places.len() {
            if self.places[at].replica.is_none() && self.places[at].comes_back <= self.tick {
                let (life, replica) = self.born(self.places[at].id);
                (self.places[at].life, self.places[at].replica) = (life, Some(replica));
            }
        }
        self.orphans.retain(|request| self.tick < request.ends);
    }

    /// A tick in the life of every replica that is awake.
    fn lives(&mut self) {
        for at in 0..self.places.len() {
            let _time = self.runtime.enter();
            let in_time = self.dice.once_in(2);
            self.passes(at, TICK.since(NICK));
            if in_time {
                self.crowds(at);
            }
            self.passes(at, NICK);
            self.does(at);
            if !in_time {
                self.crowds(at);
            }
            self.sends(at);
        }
    }

    fn passes(&self, at: usize, time: Nanos) {
        self.places[at].replica.iter().for_each(|replica| replica.passes(time));
    }

    /// What a replica does by itself.
    fn does(&mut self, at: usize) {
        let place = &mut self.places[at];
        let Some(replica) = place.replica.as_mut().filter(|it| it.stands_until <= self.tick) else {
            return;
        };
        replica.lives(self.tick);
        if replica.has_left() {
            place.comes_back = self.tick + 1 + self.dice.up_to(30);
            self.buries(at);
        } else if WICKED < self.tick {
            replica.rush = 3;
        } else if self.dice.once_in(200) {
            replica.rush = self.dice.up_to(3);
        }
    }

    fn crowds(&mut self, at: usize) {
        let Some(replica) = &mut self.places[at].replica else { return };
        if replica.stands_until <= self.tick && !replica.leaving {
            self.tally.admitted += crowds(replica, (self.tick, self.limit.longest), &mut self.dice);
        }
    }

    /// Takes what a replica said; some of it is lost, late, or said twice.
    fn sends(&mut self, at: usize) {
        let place = &self.places[at];
        let Some(replica) = &place.replica else { return };
        let wicked = self.tick < WICKED;
        for said in replica.wire.take() {
            let who = (place.id, place.life);
            let until = self.tick + PATIENCE;
            if wicked && self.dice.once_in(12) {
                let (at, again) = (self.tick + self.dice.up_to(60), Some(said.round.clone()));
                self.parcels.push(Parcel { at, who, said: None, again, until });
            }
            let slow = if wicked { self.dice.pick(&[0, 0, 0, 1, 2, 40]) } else { 0 };
            let lost = wicked && self.dice.once_in(12);
            let at = if lost { NEVER } else { self.tick + self.dice.up_to(slow) };
            self.parcels.push(Parcel { at, who, said: Some(said), again: None, until });
        }
    }

    /// Until nothing is due: an answer may be followed by the next question at once.
    fn delivers(&mut self) {
        self.parcels.retain_mut(|parcel| parcel.goes_on(self.tick));
        while let Some(due) = self.parcels.iter().position(|parcel| parcel.at <= self.tick) {
            let parcel = self.parcels.swap_remove(due);
            self.opens(parcel);
        }
        let _time = self.runtime.enter();
        self.places.iter_mut().flat_map(|place| &mut place.replica).for_each(|replica| {
            if replica.stands_until <= self.tick {
                replica.goes_on(self.tick);
            }
        });
    }

    fn opens(&mut self, parcel: Parcel) {
        let (tick, now) = (self.tick, self.now());
        let late = parcel.until <= tick;
        let at = self.places.iter().position(|it| (it.id, it.life) == parcel.who);
        let replica = at.and_then(|at| self.places[at].replica.as_ref());
        if replica.is_some_and(|replica| tick < replica.clogged_until) {
            return self.parcels.push(Parcel { at: tick + 1, ..parcel });
        }
        if replica.is_some_and(|replica| tick < replica.cut_until) {
            return self.parcels.push(Parcel { at: NEVER, ..parcel });
        }
        let (round, answer) = match (parcel.said, parcel.again) {
            (Some(said), _) => (said.round, Some(said.answer)),
            (None, Some(round)) => (round, None),
            (None, None) => return,
        };
        let heard = self.store.hears(now, &round);
        if let Some(answer) = answer.filter(|_| !late) {
            drop(answer.send(heard));
        } else {
            self.tally.late_answers += 1;
            self.misplaces(parcel.who, &round, &heard);
        }
        let _time = self.runtime.enter();
        if let Some(at) = at
            && let Some(replica) = &mut self.places[at].replica
            && replica.stands_until <= tick
        {
            replica.goes_on(tick);
            self.sends(at);
        }
    }

    /// Where nothing is numbered, who waits takes an answer that comes late for that to its newer question.
    fn misplaces(&mut self, who: (u64, u64), round: &Round, heard: &Heard) {
        if self.bad != Bad::ByValue {
            return;
        }
        let mut theirs = self.parcels.iter_mut().filter(|parcel| parcel.who == who);
        let waits = theirs.find(|parcel| parcel.said.is_some() && self.tick < parcel.until);
        if let Some((parcel, said)) = waits.and_then(|it| it.said.take().map(|said| (it, said))) {
            drop(said.answer.send(misplaced(heard, round, &said.round)));
            parcel.again = Some(said.round);
        }
    }

    /// What is inside, or could come in at once, against what may be.
    fn judges(&mut self) -> Result<(), Wrong> {
        let (tick, mut inside) = (self.tick, [0; CEILINGS.len()]);
        for (at, inside) in inside.iter_mut().enumerate() {
            *inside = self.judges_one(at)?;
        }
        let mut all = self.places.iter().filter_map(|place| place.replica.as_ref());
        if let Some(wrong) = all.find_map(Replica::wrong) {
            return Err(Wrong::InVain(format!("{wrong}, tick {tick}")));
        }
        if WICKED + SETTLES < tick {
            self.full.iter_mut().zip(inside).for_each(|(most, inside)| *most = inside.max(*most));
        }
        let survived =
            |forgot: &mut u64| *forgot + (TERM.0 + LONGEST.0) / TICK.0 < tick && 0 < inside[0];
        self.tally.amnesias_survived += u64::from(self.forgot_at.take_if(survived).is_some());
        Ok(())
    }

    /// The same of one ceiling; how many are inside.
    fn judges_one(&mut self, at: usize) -> Result<u64, Wrong> {
        let tick = self.tick;
        let all = self.places.iter().filter_map(|place| place.replica.as_ref());
        let goes_by = all.clone().map(|replica| replica.goes_by).max().unwrap_or(0);
        let each = all.map(|it| (it.shares()[at], going_on(&it.requests, at, tick)));
        let each: Vec<_> = each.chain([(0, going_on(&self.orphans, at, tick))]).collect();
        let used = each.iter().map(|(share, inside)| share.max(inside)).sum();
        let most = self.bounds[at].moves(tick, goes_by, used);
        self.tally.lowered += u64::from(goes_by < most);
        if most < used {
            return Err(Wrong::Above(format!(
                "shares and inside {each:?}, at last of the dead: above {most}, tick {tick}"
            )));
        }
        Ok(each.iter().map(|(_, inside)| inside).sum())
    }

    /// In the quiet time all of each ceiling came to be used, where that can be seen: nothing is kept for nobody.
    fn judges_the_end(mut self) -> Result<Tally, Wrong> {
        if self.limit.longest == LONGEST && self.full != [self.limit.ceiling; CEILINGS.len()] {
            return Err(Wrong::InVain(format!(
                "{:?} inside at most of {} in the end",
                self.full, self.limit.ceiling
            )));
        }
        (0..self.places.len()).for_each(|at| self.buries(at));
        Ok(self.tally)
    }
}

/// Fewer permits than these replicas where they are scarce, which take turns then; else no fewer.
fn ceiling(scarce: bool, replicas: u64, dice: &mut Dice) -> u64 {
    if scarce { 1 + dice.up_to(replicas - 2) } else { replicas + dice.up_to(9) }
}

/// Requests come to both ceilings; how many passed.
fn crowds(replica: &mut Replica, (tick, longest): (u64, Nanos), dice: &mut Dice) -> u64 {
    let (mut passed, most) = (0, longest.0 / TICK.0);
    for ceiling in 0..CEILINGS.len() {
        for _ in 0..dice.up_to(replica.rush) {
            let lasts = if dice.once_in(3) || most == 0 { most } else { 1 + dice.up_to(most - 1) };
            passed += u64::from(replica.admits(ceiling, tick, lasts));
        }
    }
    passed
}

/// How many of these still go on at that ceiling.
fn going_on(requests: &[Request], ceiling: usize, tick: u64) -> u64 {
    requests.iter().filter(|it| it.ceiling == ceiling && tick < it.ends).count() as u64
}

fn counted(fault: Fault) -> usize {
    Fault::ALL.iter().position(|known| *known == fault).unwrap()
}
