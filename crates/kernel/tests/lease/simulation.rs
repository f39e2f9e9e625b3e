//! Simulates a fleet and its store from one seed.
//!
//! The network loses, duplicates, delays and reorders messages. Clocks drift, and replicas crash.

mod bursts;
mod messages;
mod replica;

use std::collections::{HashMap, HashSet};

use sluicegate_kernel::lease::balance::LeaseBalance;
use sluicegate_kernel::lease::sizer::LeaseSizing;
use sluicegate_kernel::lease::table::LeaseTable;
use sluicegate_kernel::lease::{
    BorrowReply, BorrowRequest, LeaseTerms, MessageNumber, Overshoot, ReplicaIncarnation,
};
use sluicegate_kernel::rate::CounterDecision;
use sluicegate_kernel::rate::fixed_window::{FixedWindow, WindowCount, Windows};
use sluicegate_kernel::rate::gcra::{Gcra, Tat};
use sluicegate_kernel::rate::sliding_log::{ArrivalLog, SlidingLog};
use sluicegate_kernel::rate::sliding_window::{SlidingWindow, WindowPair};
use sluicegate_kernel::units::{Hits, Nanos};

use super::oracle::{self, Allowed};
use super::store::{Counted, LeaseStore};
use crate::dice::Dice;

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
    OccupyingGcra,
    OccupyingWindow,
    OccupyingLog,
}

/// The leases that are charged when they are granted.
pub const CHARGED_KINDS: [Kind; 6] = [
    Kind::Gcra,
    Kind::FixedWindow,
    Kind::CoupledWindow,
    Kind::CoupledCalendar,
    Kind::SlidingWindow,
    Kind::SlidingLog,
];

/// The leases that occupy the limit.
pub const OCCUPYING_KINDS: [Kind; 3] =
    [Kind::OccupyingGcra, Kind::OccupyingWindow, Kind::OccupyingLog];

/// A flaw to simulate. The kernel is unchanged; the simulation misuses its functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseFlaw {
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
    /// The lease table is deleted when all its leases have expired, so occupying leases are not charged.
    ForgottenAtExpiry,
    /// A check without a lease is charged without a look at the lease table.
    ChargedBesideLeases,
}

pub struct LeaseSimulation {
    pub store: LeaseStore,
    now: Nanos,
    replicas: Vec<LeaseReplica>,
    in_transit: Vec<(Nanos, InTransit)>,
    pub log: Vec<Allowed>,
    dice: Dice,
    flaw: LeaseFlaw,
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

struct LeaseReplica {
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

impl LeaseReplica {
    fn clock(&self, now: Nanos) -> Nanos {
        let scaled = u128::from(now.0) * u128::from(1_000_000 - DRIFT_PPM + self.ppm) / 1_000_000;
        Nanos(self.offset + u64::try_from(scaled).unwrap())
    }

    fn number(&mut self) -> MessageNumber {
        self.numbers += 1;
        MessageNumber(self.numbers)
    }
}

impl LeaseSimulation {
    pub fn new(seed: u64, kind: Kind, flaw: LeaseFlaw) -> Self {
        let mut dice = Dice::new(seed);
        let span = Nanos(dice.pick(&[100, 1_000, 7_000]) * Nanos::MILLI.0);
        let now = Nanos(span.0 * 1_000 + dice.up_to(span.0));
        let counted = counted(&mut dice, kind, span);
        let most = counted.most();
        let overshoot = match kind {
            Kind::CoupledWindow | Kind::CoupledCalendar => Overshoot::InWindow,
            Kind::OccupyingGcra | Kind::OccupyingWindow | Kind::OccupyingLog => {
                Overshoot::Occupying(Hits(1 + dice.up_to(most)))
            }
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
            store: LeaseStore::new(
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

    fn new_replica(&mut self) -> LeaseReplica {
        self.replicas_started += 1;
        let (size, term) = (self.size, self.store.terms.duration);
        LeaseReplica {
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
        if self.flaw == LeaseFlaw::ForgottenAtExpiry && self.outstanding == 0 {
            self.store.book = LeaseTable::default();
        }
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

    fn charge(&mut self, hits: Hits) {
        let step = match self.flaw {
            LeaseFlaw::ChargedBesideLeases => self.store.charge_counter(self.now, hits),
            _ => self.store.charge(self.now, hits),
        };
        if matches!(step, CounterDecision::Allow(_)) {
            self.record_allowed(hits);
        }
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

    /// Asserts the invariants of the proof. Flawed designs violate them, so their simulations
    /// report only the overshoot.
    fn assert_invariants(&mut self) {
        let outstanding = self.store.book.outstanding(self.now).0;
        self.counts.most_out = self.counts.most_out.max(outstanding);
        if self.flaw != LeaseFlaw::None {
            return;
        }
        if let Overshoot::AtMost(budget) | Overshoot::Occupying(budget) = self.store.terms.overshoot
        {
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
        Kind::Gcra | Kind::OccupyingGcra => {
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
        Kind::SlidingWindow | Kind::OccupyingWindow => {
            Counted::Sliding(SlidingWindow::new(limit, span).unwrap(), WindowPair::default())
        }
        Kind::SlidingLog | Kind::OccupyingLog => {
            Counted::Log(SlidingLog::new(limit, span).unwrap(), ArrivalLog::default())
        }
    }
}
