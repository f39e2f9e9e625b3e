//! A model store with one key: its limit, counter and lease table, for any strategy.

use sluicegate_kernel::lease::counter::AnyCounter;
use sluicegate_kernel::lease::table::LeaseTable;
use sluicegate_kernel::lease::{
    BorrowReply, BorrowRequest, LeaseTerms, Overshoot, ReplicaIncarnation,
};
use sluicegate_kernel::rate::CounterDecision;
use sluicegate_kernel::rate::fixed_window::{FixedWindow, WindowCount, Windows};
use sluicegate_kernel::rate::gcra::{Gcra, Tat};
use sluicegate_kernel::rate::sliding_log::{ArrivalLog, SlidingLog};
use sluicegate_kernel::rate::sliding_window::{SlidingWindow, WindowPair};
use sluicegate_kernel::units::{Hits, Nanos};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Counted {
    Gcra(Gcra, Tat),
    Fixed(FixedWindow, WindowCount),
    /// A calendar limit with its window starts.
    Calendar(u32, Vec<Nanos>, WindowCount),
    Sliding(SlidingWindow, WindowPair),
    Log(SlidingLog, ArrivalLog),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseStore {
    pub counted: Counted,
    pub book: LeaseTable,
    pub terms: LeaseTerms,
}

impl LeaseStore {
    pub fn new(counted: Counted, terms: LeaseTerms) -> Self {
        Self { counted, book: LeaseTable::default(), terms }
    }

    pub fn step(
        &mut self,
        now: Nanos,
        member: ReplicaIncarnation,
        borrow: &BorrowRequest,
    ) -> Option<BorrowReply> {
        let (book, terms) = (&mut self.book, &self.terms);
        self.counted.with(now, |mut counter| book.apply(&mut counter, terms, now, member, borrow))
    }

    /// Charges a check without borrowing.
    pub fn charge(&mut self, now: Nanos, hits: Hits) -> CounterDecision {
        match self.terms.overshoot {
            Overshoot::Occupying(_) => self.charge_beside_leases(now, hits),
            _ => self.charge_counter(now, hits),
        }
    }

    /// Charges the counter without a look at the lease table.
    pub fn charge_counter(&mut self, now: Nanos, hits: Hits) -> CounterDecision {
        self.counted.with(now, |mut counter| counter.charge(now, hits))
    }

    fn charge_beside_leases(&mut self, now: Nanos, hits: Hits) -> CounterDecision {
        let message = BorrowRequest::without_lease(hits);
        self.step(now, ReplicaIncarnation(0), &message).unwrap().decision
    }

    /// The allowed overshoot in hits.
    pub fn budget(&self) -> u64 {
        match self.terms.overshoot {
            Overshoot::AtMost(hits) => hits.0,
            Overshoot::InWindow | Overshoot::Occupying(_) => 0,
        }
    }
}

impl Counted {
    /// Calls `act` with the counter as configured at `now`.
    pub fn with<T>(&mut self, now: Nanos, act: impl FnOnce(AnyCounter) -> T) -> T {
        match self {
            Self::Gcra(limit, state) => act(AnyCounter::Gcra(limit, state)),
            Self::Fixed(limit, state) => act(AnyCounter::FixedWindow(limit, state)),
            Self::Calendar(limit, starts, state) => {
                let limit = calendar(*limit, starts, now);
                act(AnyCounter::FixedWindow(&limit, state))
            }
            Self::Sliding(limit, state) => act(AnyCounter::SlidingWindow(limit, state)),
            Self::Log(limit, state) => act(AnyCounter::SlidingLog(limit, state)),
        }
    }

    /// Refunds hits without a look at the lease table, like a flawed store.
    pub fn refund_blindly(&mut self, now: Nanos, hits: Hits) {
        match self {
            Self::Gcra(limit, state) => limit.refund(state, now, hits),
            Self::Fixed(limit, state) => limit.refund(state, now, hits),
            Self::Calendar(limit, starts, state) => {
                calendar(*limit, starts, now).refund(state, now, hits)
            }
            Self::Sliding(limit, state) => limit.refund(state, now, hits),
            Self::Log(limit, state) => limit.refund(state, now, hits),
        };
    }

    /// The start of the window at `now`, or 0 without windows.
    pub fn window(&self, now: Nanos) -> u64 {
        let aligned = |length: u64| now.0 - now.0 % length;
        match self {
            Self::Gcra(..) | Self::Log(..) => 0,
            Self::Fixed(limit, _) => match *limit.windows() {
                Windows::Every(length) => aligned(length.0),
                Windows::Calendar { .. } => unreachable!(),
            },
            Self::Calendar(_, starts, _) => starts[starts.partition_point(|at| *at <= now) - 1].0,
            Self::Sliding(limit, _) => {
                aligned(limit.tick().nanos(limit.refill_rate().ticks.get()).0)
            }
        }
    }

    /// The maximum hits at one instant for an idle counter.
    pub fn most(&self) -> u64 {
        u64::from(match self {
            Self::Gcra(limit, _) => limit.burst(),
            Self::Fixed(limit, _) => limit.limit(),
            Self::Calendar(limit, ..) => *limit,
            Self::Sliding(limit, _) => limit.limit(),
            Self::Log(limit, _) => limit.limit(),
        })
    }
}

/// The four calendar windows around `now`.
fn calendar(limit: u32, starts: &[Nanos], now: Nanos) -> FixedWindow {
    let at = starts.partition_point(|start| *start <= now) - 2;
    let starts = starts[at..at + 4].try_into().unwrap();
    FixedWindow::new(limit, Windows::Calendar { starts }).unwrap()
}
