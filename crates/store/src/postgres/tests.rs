//! Compares operations on rows with the memory store on random traces, without a server.

use proptest::prelude::*;
use proptest::strategy::Strategy as Generator;

use super::counter::{ChargeOperation, LeaseOperation};
use super::queue::StoreOperation;
use super::rows::{RowKey, Rows, to_micros};
use crate::kernel::decision::{Cost, Enforcement};
use crate::kernel::key::{CounterKey, KeyStrategy};
use crate::kernel::lease::sizer::LeaseSizing;
use crate::kernel::lease::{
    BorrowRequest, LeaseTerms, MessageNumber, Overshoot, ReplicaIncarnation,
};
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
use crate::kernel::rate::gcra::Gcra;
use crate::kernel::rate::on_excess::OnExcess;
use crate::kernel::rate::sliding_log::SlidingLog;
use crate::kernel::rate::sliding_window::SlidingWindow;
use crate::kernel::units::{Hits, Nanos};
use crate::lease::{LeaseMessage, LeaseOutcome};
use crate::memory::{MemoryStore, WhenFull};
use crate::{Charge, ChargeMode, ChargeOutcome, Charges, CounterStore as _, Placement, StoreReply};

const START: Nanos = Nanos::from_secs(1_767_225_600);
const PERIOD: Nanos = Nanos::from_secs(10);

mod budgets;
mod cached;

/// The table of a server: keys, values, and the instants from which rows can be deleted.
#[derive(Default)]
struct Table(Vec<(RowKey, Vec<u8>, i64)>);

impl Table {
    /// Deletes the empty rows, and runs one transaction with one call at `now`.
    fn run<O: StoreOperation>(&mut self, now: Nanos, operation: &O) -> O::Reply {
        self.0.retain(|(_, _, empty_at)| to_micros(now) < *empty_at);
        let loaded = self.0.iter().map(|(key, value, _)| (key.clone(), value.clone()));
        let wanted = loaded.filter(|(key, _)| operation.keys().contains(key));
        let mut rows = Rows::new(now, "1".to_owned(), wanted);
        let reply = operation.apply(&mut rows).unwrap_or_else(|cause| panic!("{cause:?}"));
        for (key, value, empty_at) in rows.changed() {
            assert!(operation.keys().iter().any(|locked| locked == key), "the row is not locked");
            self.0.retain(|(old, ..)| old != key);
            self.0.push((key.to_vec(), value.to_vec(), to_micros(empty_at)));
        }
        reply
    }
}

fn strategy(number: usize, limit: u32) -> (Strategy, KeyStrategy) {
    let charging = OnExcess::Charge;
    let gcra = |on_excess| Gcra::with_on_excess(limit, PERIOD, limit, on_excess).ok();
    let windows = || FixedWindow::new(limit, Windows::Every(PERIOD)).ok();
    let all = [
        gcra(OnExcess::ByStrategy).map(|limit| (Strategy::Gcra(limit), KeyStrategy::Gcra)),
        gcra(charging).map(|limit| (Strategy::Gcra(limit), KeyStrategy::Gcra)),
        windows().map(|limit| (Strategy::FixedWindow(limit), KeyStrategy::FixedWindow(PERIOD))),
        SlidingWindow::new(limit, PERIOD)
            .ok()
            .map(|limit| (Strategy::SlidingWindow(limit), KeyStrategy::SlidingWindow(PERIOD))),
        SlidingLog::new(limit, PERIOD)
            .ok()
            .map(|limit| (Strategy::SlidingLog(limit), KeyStrategy::SlidingLog)),
    ];
    all[number % all.len()].unwrap_or_else(|| panic!("limit {limit}"))
}

fn key(name: u8, kind: KeyStrategy) -> CounterKey {
    CounterKey::unique("d", [("k", name.to_string().as_str())].into_iter(), kind)
}

fn charge((name, number, limit, cost): (u8, usize, u32, Cost)) -> Charge {
    let (strategy, kind) = strategy(number, limit);
    Charge {
        key: key(name, kind),
        placement: Placement::ByKey,
        strategy,
        cost,
        standing: Enforcement::default(),
        per_second: false,
    }
}

fn any_cost() -> impl Generator<Value = Cost> {
    prop_oneof![
        4 => (0_u64..4).prop_map(|hits| Cost::Charge(Hits(hits))),
        1 => (0_u64..4).prop_map(|hits| Cost::Refund(Hits(hits))),
    ]
}

fn any_charges() -> impl Generator<Value = Charges> {
    let one = (0_u8..3, 0_usize..5, prop_oneof![Just(3_u32), Just(5)], any_cost()).prop_map(charge);
    let mode = prop_oneof![
        Just(ChargeMode::Each),
        Just(ChargeMode::Preview),
        Just(ChargeMode::AllOrNothing { quota_for_all: false, quota_cannot_deny: false }),
    ];
    (proptest::collection::vec(one, 1..4), mode)
        .prop_map(|(list, mode)| Charges { list: list.into_iter().collect(), mode })
}

fn message((name, number, sender, hits): (u8, usize, u64, u64), count: u64) -> LeaseMessage {
    let (strategy, kind) = strategy(number, 5);
    LeaseMessage {
        key: key(name, kind),
        placement: Placement::ByKey,
        per_second: false,
        strategy,
        terms: LeaseTerms {
            overshoot: Overshoot::AtMost(Hits(3)),
            duration: Nanos::from_secs(4),
            sizing: LeaseSizing::Learned,
        },
        sender: ReplicaIncarnation(sender),
        borrow: BorrowRequest {
            number: MessageNumber(count),
            hits: Hits(hits),
            wanted: Hits(2),
            demand: Hits(1 + hits),
            balance: Hits(sender),
            returned: Hits(hits / 2),
            last_lease: MessageNumber(count.saturating_sub(2)),
        },
    }
}

#[derive(Clone, Debug)]
enum Step {
    Charges(Box<Charges>),
    Lease((u8, usize, u64, u64)),
}

proptest! {
    /// The law is the memory store, which has no codec and no rows.
    #[test]
    fn rows_decide_like_the_memory_store(
        steps in proptest::collection::vec(
            (0_u64..6_000, prop_oneof![
                3 => any_charges().prop_map(|charges| Step::Charges(Box::new(charges))),
                1 => (0_u8..3, 0_usize..5, 0_u64..2, 0_u64..4).prop_map(Step::Lease),
            ]),
            1..40,
        )
    ) {
        let memory = MemoryStore::new(1_000, WhenFull::Deny, [7; 16]);
        let (mut table, mut now) = (Table::default(), START);
        for (count, (pause, step)) in (1..).zip(steps) {
            now = now.plus(Nanos(pause * Nanos::MILLI.0));
            match step {
                Step::Charges(charges) => {
                    let operation = ChargeOperation::new(&charges, "p");
                    let StoreReply::Ready(law) = memory.charge(now, &charges) else { panic!() };
                    prop_assert_eq!(table.run(now, &operation), law);
                }
                Step::Lease(message_parts) => {
                    let message = message(message_parts, count);
                    let operation = LeaseOperation::new(&message, "p");
                    let law = memory.exchange_lease_message(now, &message);
                    let StoreReply::Ready(law) = law else { panic!() };
                    prop_assert_eq!(table.run(now, &operation), law);
                }
            }
        }
    }
}

#[test]
fn an_unreadable_row_fails_the_check_and_stays() {
    let charges = Charges {
        list: [0, 1].map(|name| charge((name, 2, 3, Cost::Charge(Hits(1))))).into_iter().collect(),
        mode: ChargeMode::Each,
    };
    let operation = ChargeOperation::new(&charges, "p");
    let foreign = (operation.keys()[1].clone(), b"foreign".to_vec());
    let mut rows = Rows::new(START, "1".to_owned(), [foreign]);
    assert!(operation.apply(&mut rows).is_err());
    assert!(rows.changed().is_empty(), "the other counter is not charged");
}

#[test]
fn outcomes_of_calendar_windows_that_ended_are_stale() {
    let starts = [1, 2, 3, 4].map(Nanos::from_secs);
    let window = FixedWindow::new(3, Windows::Calendar { starts });
    let limit = window.map_or_else(|error| panic!("{error}"), Strategy::FixedWindow);
    let mut charge = charge((0, 2, 3, Cost::Charge(Hits(1))));
    charge.strategy = limit;
    for mode in [ChargeMode::Each, ChargeMode::Preview] {
        let charges = Charges { list: [charge.clone()].into_iter().collect(), mode };
        let outcomes = Table::default().run(START, &ChargeOperation::new(&charges, "p"));
        assert_eq!(outcomes[0], ChargeOutcome::Stale(START));
    }
    let mut message = message((0, 2, 0, 1), 1);
    message.strategy = limit;
    let lent = Table::default().run(START, &LeaseOperation::new(&message, "p"));
    assert_eq!(lent, LeaseOutcome::Stale(START));
}
