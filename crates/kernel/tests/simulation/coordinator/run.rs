//! The simulation: replicas, a network, a store, faults and an oracle.

mod network;

use sluicegate_kernel::coordinator::{CoordinatorConfig, Grant, Heartbeat, ShareTiming};
use sluicegate_kernel::units::{Nanos, Share};

use super::faults::Fault;
use super::replica::{Clock, CoordinatorReplica};
use super::store::CoordinatorStore;
use crate::dice::Dice;
use crate::simulation::flaws::{Flaw, Violation};

/// Ticks with faults at the start. Ticks without faults follow.
const FAULTY_TICKS: u64 = 900;

const QUIET_TICKS: u64 = 300;

/// Additional ticks without faults for each replica that exceeds the number of permits: such
/// replicas take turns.
const TURN_TICKS: u64 = 90;

/// Ticks until the last fault has no effect: twice the time for shares and requests to end.
const SETTLING_TICKS: u64 = 150;

#[derive(Debug, Default)]
pub struct CoordinatorCounts {
    fences: u64,
    late_grants: u64,
    handoffs: u64,
    amnesias_survived: u64,
    faults: [u64; Fault::ALL.len()],
    admitted: u64,
}

impl CoordinatorCounts {
    pub fn add(&mut self, other: &Self) {
        self.fences += other.fences;
        self.late_grants += other.late_grants;
        self.handoffs += other.handoffs;
        self.amnesias_survived += other.amnesias_survived;
        self.admitted += other.admitted;
        self.faults.iter_mut().zip(other.faults).for_each(|(sum, more)| *sum += more);
    }

    pub fn required_events(&self) -> Vec<(String, u64)> {
        let mut all = vec![
            ("fence".to_owned(), self.fences),
            ("late grant".to_owned(), self.late_grants),
            ("handoff".to_owned(), self.handoffs),
            ("amnesia survived".to_owned(), self.amnesias_survived),
        ];
        let faults = Fault::ALL.iter().zip(self.faults);
        all.extend(faults.map(|(fault, count)| (format!("{fault:?}"), count)));
        all
    }
}

struct Packet {
    at: u64,
    /// The replica that sends or receives the message: id and incarnation.
    who: (u64, u64),
    what: Message,
}

enum Message {
    Beat(Heartbeat),
    /// The tick at which the grant was sent, and the grant.
    Grant(u64, Grant),
}

pub struct CoordinatorSimulation {
    tick: u64,
    dice: Dice,
    flaw: Flaw,
    faults: Vec<Fault>,
    terms: ShareTiming,
    store: CoordinatorStore,
    /// The ticks by which the store's clock is ahead of the simulation.
    ahead: u64,
    replicas: Vec<(u64, Option<CoordinatorReplica>)>,
    lives: u64,
    comes_back: Vec<(u64, u64)>,
    /// The end ticks of requests whose replica crashed.
    orphans: Vec<u64>,
    packets: Vec<Packet>,
    unclogs: Vec<(u64, u64)>,
    /// The maximum of permits that may be in use: the limit, or after its decrease the use at that
    /// tick.
    bound: u64,
    fell_at: u64,
    forgot_at: Option<u64>,
    shrank: bool,
    tally: CoordinatorCounts,
}

/// Timing: heartbeat interval 10 ticks, share lifetime 36 ticks, clock drift 10 %.
fn terms(max_duration: u64) -> ShareTiming {
    ShareTiming::new(Nanos(10), Nanos(36), Nanos(max_duration), 100_000).unwrap()
}

/// The timing that replicas use. With the flaw `ShortMargin`, they use a share one tick too long.
fn replica_terms(terms: ShareTiming, flaw: Flaw) -> ShareTiming {
    let less = u64::from(flaw == Flaw::ShortMargin);
    ShareTiming { margin: Nanos(terms.margin.0 - less), ..terms }
}

impl CoordinatorSimulation {
    pub fn new(seed: u64, flaw: Flaw, faults: &[Fault]) -> Self {
        let mut dice = Dice::new(seed);
        let ceiling = 1 + dice.up_to(11);
        // Long requests, or requests of zero ticks, so that only shares count.
        let terms = terms(dice.pick(&[0, 30, 30]));
        let law =
            CoordinatorConfig::new(terms, Share(ceiling), Share(ceiling), Share(ceiling)).unwrap();
        let mut simulation = Self {
            tick: 0,
            flaw,
            faults: faults.to_vec(),
            terms: replica_terms(terms, flaw),
            store: CoordinatorStore::new(law),
            ahead: 1_000,
            replicas: Vec::new(),
            lives: 0,
            comes_back: Vec::new(),
            orphans: Vec::new(),
            packets: Vec::new(),
            unclogs: Vec::new(),
            bound: ceiling,
            fell_at: 0,
            forgot_at: None,
            shrank: false,
            tally: CoordinatorCounts::default(),
            dice,
        };
        for id in 0..2 + simulation.dice.up_to(3) {
            let replica = simulation.start_replica(id);
            simulation.replicas.push((id, Some(replica)));
        }
        simulation
    }

    pub fn play(mut self) -> Result<CoordinatorCounts, Violation> {
        while self.tick < FAULTY_TICKS + QUIET_TICKS + TURN_TICKS * self.replicas_above_limit() {
            self.tick += 1;
            if self.tick < FAULTY_TICKS && self.dice.once_in(25) {
                let fault = self.dice.pick(&self.faults.clone());
                self.inject_fault(fault);
            }
            self.end_faults();
            self.deliver();
            self.run_replicas();
            // Delivers again, because a message may take zero ticks, after which a share lasts
            // longest.
            self.deliver();
            self.check_limit()?;
        }
        self.check_end()
    }

    fn start_replica(&mut self, id: u64) -> CoordinatorReplica {
        self.lives += 1;
        let faulty = |fault| self.faults.contains(&fault);
        let speed = if faulty(Fault::Drift) { self.dice.pick(&[100, 110, 121]) } else { 110 };
        let start = if faulty(Fault::Skew) { self.dice.up_to(100_000) } else { 0 };
        let mut replica =
            CoordinatorReplica::new(id, self.lives, self.terms, Clock { start, speed }, self.flaw);
        replica.max_arrivals = self.dice.up_to(4);
        replica.longest = self.dice.pick(&[3, 10, 30, 30]).min(self.terms.max_duration.0);
        replica
    }

    fn replicas_above_limit(&self) -> u64 {
        (self.replicas.len() as u64).saturating_sub(self.store.law.max.0)
    }

    fn one_of(&mut self, count: usize) -> usize {
        usize::try_from(self.dice.up_to(count as u64 - 1)).unwrap()
    }

    fn now(&self) -> Nanos {
        Nanos(self.ahead + self.tick)
    }

    fn inject_fault(&mut self, fault: Fault) {
        let at = self.one_of(self.replicas.len());
        let lasts = self.dice.pick(&[5, 20, 45, 90]);
        let until = self.tick + 1 + self.dice.up_to(lasts);
        let counted = Fault::ALL.iter().position(|known| *known == fault).unwrap();
        self.tally.faults[counted] += 1;
        let (id, replica) = &mut self.replicas[at];
        match (fault, replica) {
            (Fault::Partition, Some(replica)) => replica.cut_until = until,
            (Fault::Pause, Some(replica)) => replica.paused_until = until,
            (Fault::Crash, replica @ Some(_)) => {
                self.orphans.extend(replica.take().into_iter().flat_map(CoordinatorReplica::crash));
                self.comes_back.push((until, *id));
            }
            (Fault::Roll, Some(replica)) => {
                let beat = replica.leave(self.tick);
                let who = (beat.replica.0, beat.incarnation.0);
                self.send(who, Message::Beat(beat));
            }
            (Fault::Swizzle, _) => self.swizzle(),
            (Fault::Amnesia, _) => {
                let fleet_too = self.dice.once_in(2);
                self.store.lose_state(self.now(), fleet_too, self.flaw);
                self.forgot_at = Some(self.tick);
            }
            (Fault::Skew, _) => self.ahead -= self.dice.up_to(20).min(self.ahead),
            (Fault::Move, _) => self.move_ceiling(),
            _ => {}
        }
    }

    fn swizzle(&mut self) {
        let mut cut = self.tick;
        for (id, replica) in &mut self.replicas {
            let Some(replica) = replica else { continue };
            replica.clogged = true;
            cut += self.dice.up_to(8);
            self.unclogs.push((cut + self.dice.up_to(50), *id));
        }
    }

    fn move_ceiling(&mut self) {
        let ceiling = Share(1 + self.dice.up_to(11));
        if ceiling < self.store.law.max {
            self.fell_at = self.tick;
        }
        let law = self.store.law;
        self.store.law = CoordinatorConfig { min: ceiling, start: ceiling, max: ceiling, ..law };
    }

    fn end_faults(&mut self) {
        let tick = self.tick;
        let due: Vec<u64> =
            self.unclogs.extract_if(.., |(at, _)| *at <= tick).map(|(_, id)| id).collect();
        for (id, replica) in &mut self.replicas {
            if let Some(replica) = replica.as_mut().filter(|_| due.contains(id)) {
                replica.clogged = false;
            }
        }
        let back: Vec<u64> =
            self.comes_back.extract_if(.., |(at, _)| *at <= tick).map(|(_, id)| id).collect();
        for id in back {
            let replica = self.start_replica(id);
            self.replicas
                .iter_mut()
                .filter(|(known, _)| *known == id)
                .for_each(|(_, gone)| *gone = None);
            let place = self.replicas.iter_mut().find(|(known, _)| *known == id);
            place.unwrap().1 = Some(replica);
        }
        self.orphans.retain(|end| tick < *end);
    }

    fn replica(&mut self, (id, life): (u64, u64)) -> Option<&mut CoordinatorReplica> {
        let known = self.replicas.iter_mut().find(|(known, _)| *known == id);
        known.and_then(|(_, replica)| replica.as_mut()).filter(|r| r.life() == life)
    }

    fn run_replicas(&mut self) {
        let tick = self.tick;
        for at in 0..self.replicas.len() {
            let (id, replica) = &mut self.replicas[at];
            let Some(replica) = replica.as_mut().filter(|replica| replica.paused_until <= tick)
            else {
                continue;
            };
            let fences = replica.member.fences();
            replica.end_requests(tick);
            replica.time_out(tick, 5);
            self.tally.fences += replica.member.fences() - fences;
            if self.dice.once_in(2) {
                replica.serve(tick, &mut self.dice);
            }
            let gone = replica.leaving && replica.in_flight(tick) == 0;
            let beat = if gone { Some(replica.leave(tick)) } else { replica.beat(tick) };
            replica.serve(tick, &mut self.dice);
            if gone {
                let soon = tick + 1 + self.dice.up_to(30);
                self.comes_back.push((soon, *id));
                self.replicas[at].1 = None;
            }
            if let Some(beat) = beat {
                self.send((beat.replica.0, beat.incarnation.0), Message::Beat(beat));
            }
        }
    }

    /// The oracle: compares the permits in use with `bound`.
    fn check_limit(&mut self) -> Result<(), Violation> {
        let (tick, ceiling) = (self.tick, self.store.law.max.0);
        let alive = || self.replicas.iter().filter_map(|(_, replica)| replica.as_ref());
        let shares: u64 = alive().map(|replica| replica.in_force(tick)).sum();
        let orphans = self.orphans.iter().filter(|end| tick < **end).count() as u64;
        let in_flight = orphans + alive().map(|replica| replica.in_flight(tick)).sum::<u64>();
        let most =
            |replica: &CoordinatorReplica| replica.in_force(tick).max(replica.in_flight(tick));
        let in_use = orphans + alive().map(most).sum::<u64>();
        // A grant sent before the decrease of the limit may be in transit until its share would
        // expire.
        let is_over = self.fell_at + self.terms.share_lifetime.0 < tick;
        let unaware = |replica: &CoordinatorReplica| replica.granted_at < self.fell_at && !is_over;
        if self.bound <= ceiling {
            self.bound = ceiling;
        } else if !alive().any(unaware) {
            // All replicas have applied the lower limit or stopped using their shares, so the use
            // only falls.
            self.bound = self.bound.min(in_use.max(ceiling));
        }
        let bound = self.bound;
        if bound < shares || bound < in_flight {
            return Err(Violation::LimitExceeded(format!(
                "{shares} in force, {in_flight} in flight, bound {bound}, tick {tick}"
            )));
        }
        self.tally.admitted += in_flight;
        let survived = |forgot: &u64| forgot + self.terms.longest_use().0 < tick && 0 < in_flight;
        self.tally.amnesias_survived +=
            u64::from(self.forgot_at.take_if(|at| survived(at)).is_some());
        Ok(())
    }

    /// Asserts that each replica with demand got permits in the time without faults.
    fn check_end(self) -> Result<CoordinatorCounts, Violation> {
        let demanding = self.replicas.iter().filter_map(|(_, replica)| replica.as_ref());
        let demanding = demanding.filter(|replica| 0 < replica.max_arrivals && !replica.leaving);
        let starved =
            demanding.filter(|replica| replica.served_at < FAULTY_TICKS + SETTLING_TICKS).count();
        if 0 < starved {
            let state = &self.store.coordinator;
            return Err(Violation::Starvation(format!("{starved} were never served: {state:?}")));
        }
        Ok(self.tally)
    }
}
