//! The model of leases in `spec/Lease.tla`, with the kernel's own functions as actions.
//!
//! A lease message may arrive at any time, repeatedly or never. Time is in whole ticks, up to
//! `horizon`. The fields `room` and `plain` of [`LeaseModelState`] only serve the model's properties; the
//! rest is the kernel's state.

mod steps;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate_kernel::lease::balance::{LeaseBalance, SpendResult};
use sluicegate_kernel::lease::sizer::LeaseSizing;
use sluicegate_kernel::lease::{
    BorrowReply, BorrowRequest, LeaseTerms, MessageNumber, Overshoot, ReplicaIncarnation,
};
use sluicegate_kernel::rate::CounterDecision;
use sluicegate_kernel::units::{Hits, Nanos};
use stateright::{Model, Property};

use crate::lease::store::{Counted, LeaseStore};

pub const TICK: Nanos = Nanos::SECOND;

/// The start of the model, at which windows of every length start.
pub const START: Nanos = Nanos::from_secs(3_600);

/// The rule that a flawed lease protocol omits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseModelFlaw {
    None,
    CreditedToEachWaiter,
    WindowOnMembersClock,
    GivenBackTooLate,
    OldAnswerTaken,
    OutlivesItsWindow,
}

#[derive(Debug)]
pub struct LeaseModel {
    pub counted: Counted,
    pub overshoot: Overshoot,
    /// The lease duration in ticks.
    pub term: u64,
    /// The maximum number of lease messages of each replica.
    pub messages: Vec<u64>,
    pub hits: Vec<u64>,
    pub want: u64,
    /// The duration of the model in ticks.
    pub horizon: u64,
    pub flaw: LeaseModelFlaw,
    /// The events that occurred so far in any explored state.
    pub seen: AtomicU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Happens {
    LentInFull = 1,
    LentInPart = 2,
    NothingLent = 4,
    Spent = 8,
    DeniedByTheStore = 16,
    DeniedHere = 32,
    AnsweredAgain = 64,
    Superseded = 128,
    GivenBack = 256,
    GivenBackInVain = 512,
    EndedUnspent = 1_024,
    CrashedHolding = 2_048,
    AnswerIgnored = 4_096,
    MaximumAllowed = 8_192,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseModelState {
    now: Nanos,
    store: LeaseStore,
    nodes: Vec<Node>,
    asks: BTreeSet<(ReplicaIncarnation, BorrowRequest)>,
    answers: Vec<(ReplicaIncarnation, BorrowReply)>,
    /// Checks whose hits were already counted as allowed, so that each is counted once.
    passed: BTreeSet<(ReplicaIncarnation, MessageNumber)>,
    /// The hits that may still be allowed now: for every interval that ends now, the limit plus the
    /// hits outstanding at its start, minus the hits allowed in it.
    room: i64,
    /// As `room`, by the limit alone, without outstanding hits.
    plain: i64,
}

impl LeaseModelState {
    /// Returns `true` if no interval allowed more than the limit plus the hits outstanding at its
    /// start.
    fn keeps_the_bound(&self) -> bool {
        0 <= self.room
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    member: ReplicaIncarnation,
    ledger: LeaseBalance,
    numbers: u64,
    /// The number of lease messages that this replica may still send.
    left: u64,
    lives: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    Question(usize, Hits),
    Ahead(usize),
    GiveBack(usize),
    Lost(usize),
    Crash(usize),
    Receive(ReplicaIncarnation, BorrowRequest),
    Settle(ReplicaIncarnation, BorrowReply),
}

impl LeaseModel {
    pub fn happened(&self, event: Happens) -> bool {
        self.seen.load(Relaxed) & event as u32 != 0
    }

    fn record(&self, event: Happens) {
        self.seen.fetch_or(event as u32, Relaxed);
    }

    fn most(&self) -> i64 {
        i64::try_from(self.counted.most()).unwrap()
    }

    /// The maximum of hits allowed above the limit: none if leases end with their window.
    fn max_above_limit(&self) -> i64 {
        match self.overshoot {
            Overshoot::AtMost(budget) => i64::try_from(budget.0).unwrap(),
            Overshoot::InWindow | Overshoot::Occupying(_) => 0,
        }
    }

    /// Returns `true` if no interval allowed more than the limit plus `max_overshoot`.
    fn keeps_the_limit(&self, state: &LeaseModelState) -> bool {
        -self.max_above_limit() <= state.plain
    }

    /// The property that the flaw breaks: [`Self::keeps_the_limit`] if leases outlive their window,
    /// otherwise `keeps_the_bound`.
    pub fn keeps_property_of_flaw(&self, state: &LeaseModelState) -> bool {
        match self.flaw {
            LeaseModelFlaw::OutlivesItsWindow => self.keeps_the_limit(state),
            _ => state.keeps_the_bound(),
        }
    }

    fn ledger(&self) -> LeaseBalance {
        let term = Nanos(self.term * TICK.0);
        LeaseBalance::new(LeaseSizing::Fixed(Hits(self.want)), term, Hits(self.want))
    }
}

impl Model for LeaseModel {
    type State = LeaseModelState;
    type Action = Action;

    fn init_states(&self) -> Vec<LeaseModelState> {
        let terms = LeaseTerms {
            overshoot: match self.flaw {
                // Leases last their whole duration, and only the limit bounds the outstanding hits.
                LeaseModelFlaw::OutlivesItsWindow => Overshoot::AtMost(Hits(u64::MAX)),
                _ => self.overshoot,
            },
            duration: Nanos(self.term * TICK.0),
            sizing: LeaseSizing::Learned,
        };
        let node = |(member, left): (u64, &u64)| Node {
            member: ReplicaIncarnation(member),
            ledger: self.ledger(),
            numbers: 0,
            left: *left,
            lives: true,
        };
        vec![LeaseModelState {
            now: START,
            store: LeaseStore::new(self.counted.clone(), terms),
            nodes: (1..).zip(&self.messages).map(node).collect(),
            asks: BTreeSet::new(),
            answers: Vec::new(),
            passed: BTreeSet::new(),
            room: self.most(),
            plain: self.most(),
        }]
    }

    fn actions(&self, state: &LeaseModelState, actions: &mut Vec<Action>) {
        if state.now < START.plus(Nanos(self.horizon * TICK.0)) {
            actions.push(Action::Tick);
        }
        for (at, _) in state.nodes.iter().enumerate().filter(|(_, node)| node.lives) {
            actions.extend(self.hits.iter().map(|hits| Action::Question(at, Hits(*hits))));
            actions.extend([Action::Ahead(at), Action::GiveBack(at)]);
            actions.extend([Action::Lost(at), Action::Crash(at)]);
        }
        actions.extend(state.asks.iter().map(|(member, ask)| Action::Receive(*member, *ask)));
        let settle =
            |(member, answer): &(ReplicaIncarnation, BorrowReply)| Action::Settle(*member, *answer);
        actions.extend(state.answers.iter().map(settle));
    }

    fn next_state(&self, last: &LeaseModelState, action: Action) -> Option<LeaseModelState> {
        let mut state = last.clone();
        let now = state.now;
        match action {
            Action::Tick => self.tick(&mut state),
            Action::Question(node, hits) => self.question(&mut state, node, hits),
            Action::Ahead(node) => {
                self.send(&mut state, node, |ledger, number| ledger.refill(now, number));
            }
            Action::GiveBack(node) => {
                self.send(&mut state, node, |ledger, number| ledger.return_all(now, number));
            }
            Action::Lost(node) => {
                let number = MessageNumber(state.nodes[node].numbers);
                state.nodes[node].ledger.give_up(number);
            }
            Action::Crash(node) => self.crash(&mut state, node),
            Action::Receive(member, borrow) => self.receive(&mut state, member, borrow),
            Action::Settle(member, answer) => self.settle(&mut state, member, answer),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("theorem", |_, state: &LeaseModelState| state.keeps_the_bound()),
            Property::always("within the limit", Self::keeps_the_limit),
            Property::always("within budget", |model: &Self, state: &LeaseModelState| match model
                .overshoot
            {
                Overshoot::AtMost(budget) | Overshoot::Occupying(budget) => {
                    state.store.book.outstanding(state.now) <= budget
                }
                Overshoot::InWindow => true,
            }),
            Property::always("listed", |model: &Self, state: &LeaseModelState| {
                model.flaw != LeaseModelFlaw::None
                    || state.nodes.iter().all(|node| {
                        let listed = state.store.book.outstanding_of(node.member, state.now);
                        node.ledger.balance(state.now) <= listed
                    })
            }),
            Property::always("served again", |model: &Self, state: &LeaseModelState| {
                model.is_served_again(state)
            }),
        ]
    }
}

impl LeaseModel {
    /// Returns `true` if a check is allowed once all leases have expired and the limit has room.
    fn is_served_again(&self, state: &LeaseModelState) -> bool {
        let mut state = state.clone();
        state.now = state.now.plus(Nanos(10 * (self.term + self.horizon) * TICK.0));
        let stranger = BorrowRequest {
            number: MessageNumber(1),
            hits: Hits(1),
            wanted: Hits(0),
            demand: Hits(1),
            balance: Hits(0),
            returned: Hits(0),
            last_lease: MessageNumber(0),
        };
        let answer = state.store.step(state.now, ReplicaIncarnation(u64::MAX), &stranger);
        let passes =
            answer.is_some_and(|answer| matches!(answer.decision, CounterDecision::Allow(_)));
        passes
            && state.store.book.outstanding(state.now) == Hits(0)
            && state
                .nodes
                .iter_mut()
                .all(|node| node.ledger.spend(state.now, Hits(1)) == SpendResult::NeedsStore)
    }
}
