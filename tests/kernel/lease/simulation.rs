//! Simulates a fleet and its store from one seed.
//!
//! The network loses, duplicates, delays and reorders messages. Clocks drift, and replicas crash.

use std::collections::{HashMap, HashSet};

use sluicegate::kernel::lease::balance::{LeaseBalance, SpendResult};
use sluicegate::kernel::lease::sizer::LeaseSizing;
use sluicegate::kernel::lease::{
    BorrowReply, BorrowRequest, LeaseTerms, MessageNumber, Overshoot, ReplicaIncarnation,
};
use sluicegate::kernel::rate::CounterDecision;
use sluicegate::kernel::rate::fixed_window::{FixedWindow, WindowCount, Windows};
use sluicegate::kernel::rate::gcra::{Gcra, Tat};
use sluicegate::kernel::rate::sliding_log::{ArrivalLog, SlidingLog};
use sluicegate::kernel::rate::sliding_window::{SlidingWindow, WindowPair};
use sluicegate::kernel::units::{Hits, Nanos};

use super::oracle::{self, Allowed};
use super::store::{Counted, Store};
use crate::support::dice::Dice;

/// Maximum clock drift, in millionths.
const DRIFT_PPM: u64 = 1_000;

/// A strategy and the bound of its leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Gcra,
    FixedWindow,
    CoupledWindow,
    CoupledCalendar,
    SlidingWindow,
    SlidingLog,
}

pub const KINDS: [Kind; 6] = [
    Kind::Gcra,
    Kind::FixedWindow,
    Kind::CoupledWindow,
    Kind::CoupledCalendar,
    Kind::SlidingWindow,
    Kind::SlidingLog,
];

/// A flaw to simulate. The kernel is unchanged; the simulation misuses its functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// A grant is also credited to a second waiting check.
    CreditedToEachWaiter,
    /// A replica compares the window end of the store with its own slow clock.
    WindowOnReplicaClock,
    /// Hits returned after their window are refunded into the next one.
    RefundedAfterWindowEnd,
    /// Hits returned after their lease expired are refunded.
    RefundedAfterExpiry,
    /// The reply to an abandoned message is accepted as the reply to the last one.
    OldReplyAccepted,
    /// Hits of a denied check are put back although a later report to the store did not include
    /// them.
    PutBackAfterReport,
    /// Hits are put back although their lease expired or the store no longer lists them.
    PutBackThoughVoided,
    /// Returned hits are restored although their message was sent.
    UndoneThoughSent,
}

pub struct FleetSimulation {
    pub store: Store,
    now: Nanos,
    replicas: Vec<Replica>,
    in_transit: Vec<(Nanos, InTransit)>,
    pub log: Vec<Allowed>,
    dice: Dice,
    flaw: Flaw,
    size: LeaseSizing,
    /// Time scale of the limit.
    span: Nanos,
    /// The usual maximum time between two events.
    pace: Nanos,
    replicas_started: u64,
    applied: HashSet<(ReplicaIncarnation, MessageNumber)>,
    grant_windows: HashMap<(ReplicaIncarnation, MessageNumber), u64>,
    pub counts: EventCounts,
    /// Outstanding hits at the start of this instant and of its window.
    outstanding: u64,
    outstanding_at_window_start: u64,
}

/// Event counts. A simulation without events proves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventCounts {
    pub lent: u64,
    pub spent: u64,
    pub asked: u64,
    pub denied_here: u64,
    pub superseded: u64,
    pub repeated: u64,
    pub given_back: u64,
    pub voided: u64,
    pub crashed: u64,
    pub ahead: u64,
    pub put_back: u64,
    pub put_back_in_vain: u64,
    pub put_back_after_a_message: u64,
    pub undone: u64,
    pub undone_in_vain: u64,
    pub most_out: u64,
}

type Tally = fn(&EventCounts) -> u64;

impl EventCounts {
    pub const ALL: [(&'static str, Tally); 16] = [
        ("lent", |counts| counts.lent),
        ("spent", |counts| counts.spent),
        ("asked", |counts| counts.asked),
        ("denied here", |counts| counts.denied_here),
        ("superseded", |counts| counts.superseded),
        ("repeated", |counts| counts.repeated),
        ("given back", |counts| counts.given_back),
        ("given back in vain", |counts| counts.voided),
        ("crashed", |counts| counts.crashed),
        ("ahead", |counts| counts.ahead),
        ("put back", |counts| counts.put_back),
        ("put back in vain", |counts| counts.put_back_in_vain),
        ("put back after a message", |counts| counts.put_back_after_a_message),
        ("undone", |counts| counts.undone),
        ("undone in vain", |counts| counts.undone_in_vain),
        ("out", |counts| counts.most_out),
    ];
}

struct Replica {
    member: ReplicaIncarnation,
    ledger: LeaseBalance,
    offset: u64,
    ppm: u64,
    /// Lag of the local clock behind the store clock.
    behind: Nanos,
    last: Option<BorrowRequest>,
    /// A lease message that was not sent. The balance is not informed yet.
    unsent: Option<BorrowRequest>,
    numbers: u64,
    /// Checks that spent hits and may still be denied by another limit.
    undecided: Vec<Undecided>,
}

#[derive(Clone, Copy)]
struct Undecided {
    hits: Hits,
    /// The `undecided_epoch` of the balance when the hits were spent.
    grip: u64,
    /// The last lease message that was sent before the hits were spent.
    last_message: Option<BorrowRequest>,
    /// The index of these hits in the log.
    at: usize,
}

#[derive(Clone, Copy)]
enum InTransit {
    ToStore(ReplicaIncarnation, BorrowRequest),
    ToReplica(ReplicaIncarnation, BorrowReply),
    Charge(Hits),
}

impl Replica {
    fn clock(&self, now: Nanos) -> Nanos {
        let scaled = u128::from(now.0) * u128::from(1_000_000 - DRIFT_PPM + self.ppm) / 1_000_000;
        Nanos(self.offset + u64::try_from(scaled).unwrap())
    }

    fn number(&mut self) -> MessageNumber {
        self.numbers += 1;
        MessageNumber(self.numbers)
    }
}

impl FleetSimulation {
    pub fn new(seed: u64, kind: Kind, flaw: Flaw) -> Self {
        let mut dice = Dice::new(seed);
        let span = Nanos(dice.pick(&[100, 1_000, 7_000]) * Nanos::MILLI.0);
        let now = Nanos(span.0 * 1_000 + dice.up_to(span.0));
        let counted = counted(&mut dice, kind, span);
        let most = counted.most();
        let overshoot = match kind {
            Kind::CoupledWindow | Kind::CoupledCalendar => Overshoot::InWindow,
            _ => Overshoot::AtMost(Hits(1 + dice.up_to(most))),
        };
        let term = Nanos(1_000 * (span.0 * (2 + dice.up_to(30)) / 10_000));
        let size = if dice.once_in(2) {
            LeaseSizing::Learned
        } else {
            LeaseSizing::Fixed(Hits(1 + dice.up_to(most)))
        };
        // Demand is between three times the rate of the limit and a tenth of it.
        let pace = Nanos(span.0 / most * dice.pick(&[1, 3, 10, 30]) / 2);
        let members = 1 + dice.up_to(dice.clone().pick(&[1, 3, 9]));
        let mut simulation = Self {
            store: Store::new(
                counted,
                LeaseTerms { overshoot, duration: term, sizing: LeaseSizing::Learned },
            ),
            now,
            replicas: Vec::new(),
            in_transit: Vec::new(),
            log: Vec::new(),
            dice,
            flaw,
            size,
            span,
            pace,
            replicas_started: 0,
            applied: HashSet::new(),
            grant_windows: HashMap::new(),
            counts: EventCounts::default(),
            outstanding: 0,
            outstanding_at_window_start: 0,
        };
        for _ in 0..members {
            let replica = simulation.new_replica();
            simulation.replicas.push(replica);
        }
        simulation
    }

    /// Runs `events` events and returns the overshoot of the log.
    pub fn run(&mut self, events: usize) -> oracle::Overshoot {
        let mut left = events;
        while 0 < left {
            let phase = usize::try_from(10 + self.dice.up_to(150)).unwrap().min(left);
            match self.dice.up_to(3) {
                0 => self.idle_phase(),
                1 => self.worst_case_burst(),
                _ => (0..phase).for_each(|_| self.random_event()),
            }
            left -= phase;
        }
        oracle::overshoot(&self.store.counted, &self.log)
    }

    fn new_replica(&mut self) -> Replica {
        self.replicas_started += 1;
        let (size, term) = (self.size, self.store.terms.duration);
        Replica {
            member: ReplicaIncarnation(self.replicas_started),
            ledger: LeaseBalance::new(size, term, Hits(self.store.counted.most())),
            offset: self.dice.up_to(1 << 40),
            ppm: self.dice.up_to(2 * DRIFT_PPM),
            behind: Nanos(self.dice.up_to(self.span.0 / 20)),
            last: None,
            unsent: None,
            numbers: self.dice.up_to(1_000),
            undecided: Vec::new(),
        }
    }

    /// Advances the clock: hits outstanding now are outstanding at the start of the next interval.
    fn wait(&mut self, step: Nanos) {
        let window = self.store.counted.window(self.now);
        self.now = self.now.plus(step);
        self.outstanding = self.store.book.outstanding(self.now).0;
        if self.store.counted.window(self.now) != window {
            self.outstanding_at_window_start = self.outstanding;
        }
    }

    /// Runs one random event.
    fn random_event(&mut self) {
        if !self.dice.once_in(4) {
            let longest = if self.dice.once_in(20) { self.span.0 / 5 } else { self.pace.0 };
            let step = self.dice.up_to(longest);
            self.wait(Nanos(step));
        }
        self.deliver();
        let replica = usize::try_from(self.dice.up_to(self.replicas.len() as u64 - 1)).unwrap();
        match self.dice.up_to(40) {
            0 => self.crash(replica),
            1 | 2 => self.resend(replica),
            3 | 4 => self.abandon_call(replica),
            5 => self.return_hits(replica, true),
            6 | 7 => self.return_hits(replica, false),
            8..=11 => self.refill(replica),
            12..=15 => self.decide(replica),
            16..=18 => self.undo_unsent(replica),
            _ => {
                let hits = self.hits();
                self.check(replica, hits);
            }
        }
        self.assert_invariants();
    }

    fn hits(&mut self) -> Hits {
        let most = self.store.counted.most();
        Hits(match self.dice.up_to(30) {
            0 => self.dice.up_to(most + 2),
            1..=5 => self.dice.up_to(3),
            _ => 1,
        })
    }

    fn check(&mut self, replica: usize, hits: Hits) {
        let now = self.replicas[replica].clock(self.now);
        match self.replicas[replica].ledger.spend(now, hits) {
            SpendResult::Spent(_) => {
                self.counts.spent += 1;
                if self.dice.once_in(3) {
                    self.mark_undecided(replica, hits);
                }
                self.record_allowed(hits);
            }
            SpendResult::Denied { .. } => self.counts.denied_here += 1,
            SpendResult::NeedsStore => self.call_store(replica, hits),
        }
    }

    fn call_store(&mut self, replica: usize, hits: Hits) {
        self.counts.asked += 1;
        let now = self.replicas[replica].clock(self.now);
        let number = self.replicas[replica].number();
        match self.replicas[replica].ledger.borrow(now, number, hits) {
            Some(borrow) => self.send(replica, borrow),
            None if self.dice.once_in(2) => self.transmit(InTransit::Charge(hits)),
            None => {}
        }
    }

    /// Marks the check that just spent hits as undecided.
    fn mark_undecided(&mut self, replica: usize, hits: Hits) {
        let (at, replica) = (self.log.len(), &mut self.replicas[replica]);
        if self.flaw != Flaw::PutBackAfterReport {
            replica.ledger.mark_undecided(hits);
        }
        let (grip, last_message) = (replica.ledger.undecided_epoch(), replica.last);
        replica.undecided.push(Undecided { hits, grip, last_message, at });
    }

    /// Decides an undecided check. A denied one puts its hits back, so it allowed none.
    /// Other checks count as allowed at the time of spending.
    fn decide(&mut self, replica: usize) {
        let now = self.replicas[replica].clock(self.now);
        let replica = &mut self.replicas[replica];
        let Some(last) = replica.undecided.len().checked_sub(1) else { return };
        let which = usize::try_from(self.dice.up_to(last as u64)).unwrap();
        let Undecided { hits, grip, last_message, at } = replica.undecided.swap_remove(which);
        let is_allowed = self.dice.once_in(4);
        if is_allowed {
            return replica.ledger.mark_spent(hits, grip);
        }
        self.log[at].hits = 0;
        replica.ledger.expire(now);
        let before = replica.ledger.balance(now);
        let grip = match self.flaw {
            Flaw::PutBackAfterReport | Flaw::PutBackThoughVoided => {
                replica.ledger.undecided_epoch()
            }
            _ => grip,
        };
        if self.flaw == Flaw::PutBackAfterReport {
            replica.ledger.mark_undecided(hits);
        }
        replica.ledger.put_back(now, hits, grip);
        if before < replica.ledger.balance(now) {
            self.counts.put_back += 1;
            self.counts.put_back_after_a_message += u64::from(last_message != replica.last);
        } else if hits != Hits(0) {
            self.counts.put_back_in_vain += 1;
        }
    }

    fn refill(&mut self, replica: usize) {
        let now = self.replicas[replica].clock(self.now);
        let number = self.replicas[replica].number();
        let at_leisure = self.dice.once_in(2);
        let time = Nanos(self.dice.up_to(self.store.terms.duration.0));
        let ledger = &mut self.replicas[replica].ledger;
        let borrow = if at_leisure {
            ledger.refill_early(now, number, time)
        } else {
            ledger.refill(now, number)
        };
        if let Some(borrow) = borrow {
            self.counts.ahead += 1;
            self.send(replica, borrow);
        }
    }

    fn return_hits(&mut self, replica: usize, with_all: bool) {
        let now = self.replicas[replica].clock(self.now);
        let number = self.replicas[replica].number();
        let is_quiet = self.dice.once_in(2);
        let quiet = Nanos(self.dice.up_to(2 * self.store.terms.duration.0));
        let ledger = &mut self.replicas[replica].ledger;
        let message = match (with_all, is_quiet) {
            (true, _) => ledger.return_all(now, number),
            (false, true) => ledger.return_if_idle(now, number, quiet),
            (false, false) => ledger.return_surplus(now, number),
        };
        if let Some(message) = message {
            self.send(replica, message);
        }
    }

    fn send(&mut self, replica: usize, borrow: BorrowRequest) {
        let undoes_sent = self.flaw == Flaw::UndoneThoughSent;
        if self.dice.once_in(if undoes_sent { 2 } else { 12 }) {
            self.replicas[replica].unsent = Some(borrow);
            if !undoes_sent {
                return;
            }
            self.undo_unsent(replica);
        }
        self.replicas[replica].last = Some(borrow);
        let member = self.replicas[replica].member;
        self.transmit(InTransit::ToStore(member, borrow));
    }

    fn resend(&mut self, replica: usize) {
        if let Some(borrow) = self.replicas[replica].last {
            let member = self.replicas[replica].member;
            self.transmit(InTransit::ToStore(member, borrow));
        }
    }

    /// Reports to a replica that its message was never sent.
    fn undo_unsent(&mut self, replica: usize) {
        let now = self.replicas[replica].clock(self.now);
        let replica = &mut self.replicas[replica];
        let Some(borrow) = replica.unsent.take() else { return };
        let before = replica.ledger.balance(now);
        replica.ledger.undo_unsent(now, borrow.number);
        if before < replica.ledger.balance(now) {
            self.counts.undone += 1;
        } else if borrow.returned != Hits(0) {
            self.counts.undone_in_vain += 1;
        }
    }

    fn abandon_call(&mut self, replica: usize) {
        if let Some(borrow) = self.replicas[replica].last {
            self.replicas[replica].ledger.give_up(borrow.number);
        }
    }

    fn crash(&mut self, replica: usize) {
        if self.dice.once_in(2) {
            self.counts.crashed += 1;
            self.replicas[replica] = self.new_replica();
        }
    }

    /// Sends, loses, duplicates or delays a message.
    fn transmit(&mut self, in_transit: InTransit) {
        for _ in 0..[1, 1, 1, 1, 1, 1, 1, 2, 0, 1][usize::try_from(self.dice.up_to(9)).unwrap()] {
            let slow = self.dice.once_in(15);
            let longest = if slow { 3 * self.store.terms.duration.0 } else { self.span.0 / 100 };
            let due = Nanos(self.now.0 + self.dice.up_to(longest));
            self.in_transit.push((due, in_transit));
        }
    }

    fn deliver(&mut self) {
        self.in_transit.sort_by_key(|(due, _)| *due);
        let due = self.in_transit.partition_point(|(due, _)| *due <= self.now);
        for (_, in_transit) in self.in_transit.drain(..due).collect::<Vec<_>>() {
            match in_transit {
                InTransit::ToStore(member, borrow) => self.store_receives(member, borrow),
                InTransit::ToReplica(member, answer) => self.replica_receives(member, answer),
                InTransit::Charge(hits) => self.charge(hits),
            }
        }
    }

    fn charge(&mut self, hits: Hits) {
        if matches!(self.store.charge(self.now, hits), CounterDecision::Allow(_)) {
            self.record_allowed(hits);
        }
    }

    fn store_receives(&mut self, member: ReplicaIncarnation, borrow: BorrowRequest) {
        let borrow = self.apply_store_flaw(member, borrow);
        let out_before = self.store.book.outstanding_of(member, self.now);
        let Some(answer) = self.store.step(self.now, member, &borrow) else {
            self.counts.superseded += 1;
            return;
        };
        if answer.granted != Hits(0) {
            self.grant_windows.insert((member, answer.number), self.store.counted.window(self.now));
        }
        let is_repeated = self.applied.contains(&(member, borrow.number));
        self.counts.repeated += u64::from(is_repeated);
        self.counts.lent += answer.granted.0;
        if borrow.returned != Hits(0) && !is_repeated {
            let count = if out_before == Hits(0) {
                &mut self.counts.voided
            } else {
                &mut self.counts.given_back
            };
            *count += 1;
        }
        let is_allowed =
            borrow.hits != Hits(0) && matches!(answer.decision, CounterDecision::Allow(_));
        if is_allowed && !is_repeated {
            self.record_allowed(borrow.hits);
        }
        if is_allowed || borrow.hits == Hits(0) {
            self.applied.insert((member, borrow.number));
        }
        self.transmit(InTransit::ToReplica(member, answer));
    }

    /// Delivers a reply, unless its replica has crashed.
    fn replica_receives(&mut self, member: ReplicaIncarnation, mut reply: BorrowReply) {
        let Some(replica) = self.replicas.iter_mut().find(|replica| replica.member == member)
        else {
            return;
        };
        let now = replica.clock(self.now);
        if self.flaw == Flaw::WindowOnReplicaClock {
            reply.valid_for = reply.valid_for.plus(replica.behind);
        }
        if let (Flaw::OldReplyAccepted, Some(last)) = (self.flaw, replica.last) {
            reply.number = last.number;
        }
        let before = replica.ledger.balance(now);
        replica.ledger.settle(now, &reply);
        let credited = before < replica.ledger.balance(now);
        if self.flaw == Flaw::CreditedToEachWaiter && credited {
            self.record_allowed(reply.granted);
        }
    }

    /// Simulates a store that refunds ended leases.
    fn apply_store_flaw(
        &mut self,
        member: ReplicaIncarnation,
        borrow: BorrowRequest,
    ) -> BorrowRequest {
        let listed = self.store.book.outstanding_of(member, self.now) != Hits(0);
        let grant_window = self.grant_windows.get(&(member, borrow.last_lease)).copied();
        let rolled = grant_window
            .is_some_and(|grant_window| grant_window != self.store.counted.window(self.now));
        let is_flawed = match self.flaw {
            Flaw::RefundedAfterWindowEnd => rolled,
            Flaw::RefundedAfterExpiry => !listed && !rolled,
            _ => false,
        };
        if !is_flawed {
            return borrow;
        }
        self.store.counted.refund_blindly(self.now, borrow.returned);
        BorrowRequest { returned: Hits(0), ..borrow }
    }

    fn record_allowed(&mut self, hits: Hits) {
        let (outstanding, outstanding_at_window_start) =
            (self.outstanding, self.outstanding_at_window_start);
        self.log.push(Allowed {
            at: self.now,
            hits: hits.0,
            outstanding,
            outstanding_at_window_start,
        });
    }

    /// A phase without checks.
    fn idle_phase(&mut self) {
        for _ in 0..10 {
            let longest = self.store.terms.duration.0.min(self.span.0) / 10;
            let step = self.dice.up_to(longest);
            self.wait(Nanos(step));
            self.deliver();
            self.assert_invariants();
        }
    }

    /// Sends a few checks to every replica, so that each has a balance.
    fn fill_balances(&mut self) {
        for _ in 0..3 {
            for replica in 0..self.replicas.len() {
                self.check(replica, Hits(1));
            }
            self.wait(Nanos(self.span.0 / 100));
            self.deliver();
        }
    }

    /// Spends every balance and the rest of the limit at once, sometimes as a window begins.
    fn worst_case_burst(&mut self) {
        self.fill_balances();
        let window = self.store.counted.window(self.now);
        let waits = window != 0 && self.dice.once_in(2);
        while waits && self.store.counted.window(self.now) == window {
            self.wait(Nanos(self.span.0 / 300));
        }
        self.deliver();
        for replica in 0..self.replicas.len() {
            let now = self.replicas[replica].clock(self.now);
            while 0 < self.replicas[replica].ledger.balance(now).0 {
                self.check(replica, Hits(1));
            }
        }
        while matches!(self.store.charge(self.now, Hits(1)), CounterDecision::Allow(_)) {
            self.record_allowed(Hits(1));
        }
    }

    /// Asserts the invariants of the proof. Flawed designs violate them, so their simulations
    /// report only the overshoot.
    fn assert_invariants(&mut self) {
        let outstanding = self.store.book.outstanding(self.now).0;
        self.counts.most_out = self.counts.most_out.max(outstanding);
        if self.flaw != Flaw::None {
            return;
        }
        if let Overshoot::AtMost(budget) = self.store.terms.overshoot {
            assert!(outstanding <= budget.0, "{outstanding} out of {budget}");
        }
        for replica in &self.replicas {
            let held = replica.ledger.total(replica.clock(self.now));
            let listed = self.store.book.outstanding_of(replica.member, self.now);
            assert!(held <= listed, "a member may hold {held}, listed are {listed}");
        }
    }
}

fn counted(dice: &mut Dice, kind: Kind, span: Nanos) -> Counted {
    let limit = u32::try_from(dice.pick(&[3, 10, 40]) + dice.up_to(5)).unwrap();
    let windows = Windows::Every(span);
    match kind {
        Kind::Gcra => {
            let burst = limit / (1 + u32::try_from(dice.up_to(2)).unwrap());
            Counted::Gcra(Gcra::new(limit, span, burst).unwrap(), Tat::default())
        }
        Kind::FixedWindow | Kind::CoupledWindow => {
            Counted::Fixed(FixedWindow::new(limit, windows).unwrap(), WindowCount::default())
        }
        Kind::CoupledCalendar => {
            // Months have different lengths.
            let start = |index: u64| Nanos(index * span.0 + index % 3 * (span.0 / 30_000) * 1_000);
            Counted::Calendar(limit, (900..4_000).map(start).collect(), WindowCount::default())
        }
        Kind::SlidingWindow => {
            Counted::Sliding(SlidingWindow::new(limit, span).unwrap(), WindowPair::default())
        }
        Kind::SlidingLog => {
            Counted::Log(SlidingLog::new(limit, span).unwrap(), ArrivalLog::default())
        }
    }
}
