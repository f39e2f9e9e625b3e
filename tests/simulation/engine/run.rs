//! The simulation: engines, their network, a store, faults and an oracle.

mod network;
mod oracle;

use sluicegate::kernel::units::Nanos;
use sluicegate::store::heartbeat::ShareRound;

use super::bound::Bound;
use super::faults::Fault;
use super::replica::{EngineReplica, Limit, Request, WaitOutcomes};
use super::store::FlawedStore;
use super::wire::SentRound;
use crate::simulation::flaws::{Flaw, Violation};
use crate::support::dice::Dice;

pub const CEILINGS: [&str; 2] = ["first", "second"];

pub const HEARTBEAT: Nanos = Nanos::SECOND;

/// The share lifetime. Together with the shortest requests it lasts whole ticks, so that using a
/// share one tick too long is detected.
pub const TERM: Nanos = Nanos(4 * Nanos::SECOND.0 - SHORTEST.0);

pub const LONGEST: Nanos = Nanos::from_secs(2);

/// The shortest request duration. It is below a tick, so that only shares limit the use.
const SHORTEST: Nanos = Nanos::MILLI;

/// A twentieth of the heartbeat interval. Once a tick, a replica tests whether a heartbeat is due.
pub const TICK: Nanos = Nanos(HEARTBEAT.0 / 20);

/// Late requests arrive this long before the end of a tick, longer than the time by which a replica
/// stops using a share early.
const LATE_BY: Nanos = Nanos(10 * Nanos::MILLI.0);

/// Ticks until all running replicas have loaded a new limit.
const ROLLOUT_TICKS: u64 = 60;

/// Ticks with faults at the start. Ticks without faults follow.
const FAULTY_TICKS: u64 = 700;

const QUIET_TICKS: u64 = 500;

/// The timeout of a store call in ticks.
pub const CALL_TIMEOUT: u64 = 3;

/// Queue timeouts: one just below a share lifetime, so that shares expire during a wait, and one
/// below the longest request.
const QUEUE_TIMEOUTS: [Nanos; 2] = [Nanos::from_secs(3), Nanos(Nanos::SECOND.0 / 2)];

const NEVER: u64 = u64::MAX;

#[derive(Debug, Default)]
pub struct EngineCounts {
    fences: u64,
    handoffs: u64,
    late_answers: u64,
    amnesias_survived: u64,
    admitted: u64,
    waited: WaitOutcomes,
    /// The number of schedules with fewer permits than replicas.
    scarce: u64,
    /// The number of ticks with more permits in use than any running replica's limit.
    lowered: u64,
    faults: [u64; Fault::ALL.len()],
}

impl EngineCounts {
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

    pub fn required_events(&self) -> Vec<(String, u64)> {
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

/// A heartbeat in transit to the store. Its caller may wait for the reply.
struct Packet {
    at: u64,
    /// The replica that sent the heartbeat: id and incarnation.
    who: (u64, u64),
    said: Option<SentRound>,
    /// The heartbeats to repeat, whose reply no caller awaits.
    again: Option<ShareRound>,
    /// The tick at which the caller's timeout ends.
    until: u64,
}

impl Packet {
    /// Returns `true` if the heartbeat may still arrive. After the timeout, no caller awaits the
    /// reply.
    fn may_arrive(&mut self, tick: u64) -> bool {
        if let Some(said) = self.said.take_if(|_| self.until <= tick) {
            self.again = Some(said.round);
        }
        self.said.is_some() || self.at != NEVER
    }
}

struct Place {
    id: u64,
    life: u64,
    replica: Option<EngineReplica>,
    comes_back: u64,
}

pub struct EngineSimulation {
    tick: u64,
    dice: Dice,
    runtime: tokio::runtime::Runtime,
    faults: Vec<Fault>,
    flaw: Flaw,
    store: FlawedStore,
    forgot_at: Option<u64>,
    limit: Limit,
    /// True if there are fewer permits than replicas.
    scarce: bool,
    bounds: [Bound; CEILINGS.len()],
    lives: u64,
    places: Vec<Place>,
    orphans: Vec<Request>,
    packets: Vec<Packet>,
    /// The maximum of requests in flight at each limit since the faults ended.
    full: [u64; CEILINGS.len()],
    tally: EngineCounts,
}

impl EngineSimulation {
    pub fn new(seed: u64, flaw: Flaw, faults: &[Fault]) -> Self {
        let mut dice = Dice::new(seed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let count = 2 + dice.up_to(2);
        let scarce = dice.once_in(4);
        let ceiling = ceiling(scarce, count, &mut dice);
        let longest = dice.pick(&[SHORTEST, LONGEST, LONGEST]);
        let queue = dice.once_in(2).then(|| dice.pick(&QUEUE_TIMEOUTS));
        let mut simulation = Self {
            tick: 0,
            runtime,
            faults: faults.to_vec(),
            flaw,
            store: FlawedStore::new(flaw),
            forgot_at: None,
            limit: Limit { ceiling, longest, queue, revision: 1 },
            scarce,
            bounds: [Bound::new(ceiling); CEILINGS.len()],
            lives: 0,
            places: Vec::new(),
            orphans: Vec::new(),
            packets: Vec::new(),
            full: Default::default(),
            tally: EngineCounts { scarce: scarce.into(), ..EngineCounts::default() },
            dice,
        };
        for id in 0..count {
            let (life, replica) = simulation.start_replica(id);
            simulation.places.push(Place { id, life, replica: Some(replica), comes_back: 0 });
        }
        simulation
    }

    pub fn play(mut self) -> Result<EngineCounts, Violation> {
        while self.tick < FAULTY_TICKS + QUIET_TICKS {
            self.tick += 1;
            if self.tick < FAULTY_TICKS && self.dice.once_in(30) {
                self.inject_fault();
            }
            self.restart_replicas();
            self.deliver_packets();
            self.run_replicas();
            self.deliver_packets();
            self.check_limits()?;
        }
        self.check_end()
    }

    fn start_replica(&mut self, id: u64) -> (u64, EngineReplica) {
        self.lives += 1;
        let (skews, drifts) = (self.dice.up_to(1_000), self.dice.pick(&[0, 500, 999]));
        let skew = if self.faults.contains(&Fault::Skew) { skews } else { 0 };
        let slow = if self.faults.contains(&Fault::Drift) { drifts } else { 0 };
        self.tally.faults[counted(Fault::Skew)] += u64::from(0 < skew);
        self.tally.faults[counted(Fault::Drift)] += u64::from(0 < slow);
        let start = Nanos::from_secs(1_000 + skew);
        let mut replica =
            EngineReplica::new((id, self.lives), (start, slow), self.limit, self.flaw);
        replica.max_arrivals = self.dice.up_to(3);
        (self.lives, replica)
    }

    fn now(&self) -> Nanos {
        Nanos::from_secs(5_000).plus(Nanos(self.tick * TICK.0))
    }

    fn inject_fault(&mut self) {
        let fault = self.dice.pick(&self.faults.clone());
        let at = usize::try_from(self.dice.up_to(self.places.len() as u64 - 1)).unwrap();
        let lasts = self.dice.pick(&[10, 40, 90, 150]);
        let until = self.tick + 1 + self.dice.up_to(lasts);
        let place = &mut self.places[at];
        let Some(replica) = &mut place.replica else { return };
        match fault {
            Fault::Partition => replica.cut_until = until,
            Fault::Pause => replica.paused_until = until,
            Fault::Crash => {
                place.comes_back = until;
                self.remove_replica(at);
            }
            Fault::Roll => replica.leave(),
            Fault::Step => replica.step_wall_clock(Nanos::from_secs(self.dice.up_to(3_600))),
            Fault::Swizzle => {
                for place in &mut self.places {
                    let until = self.tick + self.dice.up_to(60);
                    place.replica.iter_mut().for_each(|it| it.clogged_until = until);
                }
            }
            Fault::Amnesia => {
                let table_too = self.dice.once_in(2);
                self.store.lose_state(self.now(), table_too);
                self.forgot_at = Some(self.tick);
                self.bounds.iter_mut().for_each(|bound| bound.note_lost_state(self.tick));
            }
            Fault::Move => self.change_limit(),
            // Clock faults apply from the start of a replica, not at a tick.
            Fault::Skew | Fault::Drift => return,
        }
        self.tally.faults[counted(fault)] += 1;
    }

    /// Draws another limit, which each replica loads at another time.
    fn change_limit(&mut self) {
        self.limit.ceiling = ceiling(self.scarce, self.places.len() as u64, &mut self.dice);
        self.limit.revision += 1;
        for replica in self.places.iter_mut().flat_map(|place| &mut place.replica) {
            let at = self.tick + self.dice.up_to(ROLLOUT_TICKS);
            replica.next_config = Some((at, self.limit));
        }
    }

    fn remove_replica(&mut self, at: usize) {
        let Some(replica) = self.places[at].replica.take() else { return };
        self.tally.fences += replica.fences;
        self.tally.handoffs += replica.handoffs;
        self.tally.waited.add(replica.waited);
        self.orphans.extend(replica.crash());
    }

    fn restart_replicas(&mut self) {
        for at in 0..self.places.len() {
            if self.places[at].replica.is_none() && self.places[at].comes_back <= self.tick {
                let (life, replica) = self.start_replica(self.places[at].id);
                (self.places[at].life, self.places[at].replica) = (life, Some(replica));
            }
        }
        self.orphans.retain(|request| self.tick < request.ends);
    }

    fn run_replicas(&mut self) {
        for at in 0..self.places.len() {
            let _time = self.runtime.enter();
            let in_time = self.dice.once_in(2);
            self.advance_clock(at, TICK.since(LATE_BY));
            if in_time {
                self.send_requests(at);
            }
            self.advance_clock(at, LATE_BY);
            self.run_own_work(at);
            if !in_time {
                self.send_requests(at);
            }
            self.send_rounds(at);
        }
    }

    fn advance_clock(&self, at: usize, time: Nanos) {
        self.places[at].replica.iter().for_each(|replica| replica.advance_clock(time));
    }

    fn run_own_work(&mut self, at: usize) {
        let place = &mut self.places[at];
        let Some(replica) = place.replica.as_mut().filter(|it| it.paused_until <= self.tick) else {
            return;
        };
        replica.run(self.tick);
        if replica.has_left() {
            place.comes_back = self.tick + 1 + self.dice.up_to(30);
            self.remove_replica(at);
        } else if FAULTY_TICKS < self.tick {
            replica.max_arrivals = 3;
        } else if self.dice.once_in(200) {
            replica.max_arrivals = self.dice.up_to(3);
        }
    }

    fn send_requests(&mut self, at: usize) {
        let Some(replica) = &mut self.places[at].replica else { return };
        if replica.paused_until <= self.tick && !replica.leaving {
            self.tally.admitted +=
                send_requests(replica, (self.tick, self.limit.longest), &mut self.dice);
        }
    }

    /// Asserts that all permits of each limit were used in the time without faults. Only long
    /// requests use them all.
    fn check_end(mut self) -> Result<EngineCounts, Violation> {
        if self.limit.longest == LONGEST && self.full != [self.limit.ceiling; CEILINGS.len()] {
            return Err(Violation::Starvation(format!(
                "{:?} inside at most of {} in the end",
                self.full, self.limit.ceiling
            )));
        }
        (0..self.places.len()).for_each(|at| self.remove_replica(at));
        Ok(self.tally)
    }
}

/// A random limit. If `scarce`, it is below the number of replicas, so that they take turns.
fn ceiling(scarce: bool, replicas: u64, dice: &mut Dice) -> u64 {
    if scarce { 1 + dice.up_to(replicas - 2) } else { replicas + dice.up_to(9) }
}

/// Sends requests to both limits. Returns the number admitted at once.
fn send_requests(
    replica: &mut EngineReplica,
    (tick, longest): (u64, Nanos),
    dice: &mut Dice,
) -> u64 {
    let (mut passed, most) = (0, longest.0 / TICK.0);
    for ceiling in 0..CEILINGS.len() {
        for _ in 0..dice.up_to(replica.max_arrivals) {
            let lasts = if dice.once_in(3) || most == 0 { most } else { 1 + dice.up_to(most - 1) };
            passed += u64::from(replica.try_admit(ceiling, tick, lasts));
        }
    }
    passed
}

fn counted(fault: Fault) -> usize {
    Fault::ALL.iter().position(|known| *known == fault).unwrap()
}
