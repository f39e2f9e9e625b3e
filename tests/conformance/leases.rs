//! Tests the lease protocol of every store: grants, returns and lease lists.
//!
//! Not covered:
//! - Charging through leases (see [`leasing`](super::leasing_store)).

use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::lease::sizer::LeaseSizing;
use sluicegate::kernel::lease::{
    BorrowReply, BorrowRequest, LeaseTerms, MessageNumber, Overshoot, ReplicaIncarnation,
};
use sluicegate::kernel::rate::{CounterDecision, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::{CounterStore, StoreReply};

use super::{DAY, NEW_YEAR, RUNTIME, charge, each, execute, on_every_store, remaining, strategies};

const A: ReplicaIncarnation = ReplicaIncarnation(1);
const B: ReplicaIncarnation = ReplicaIncarnation(u64::MAX);
const TERM: Nanos = Nanos::from_secs(60);

fn terms_with_overshoot(budget: u64) -> LeaseTerms {
    LeaseTerms {
        overshoot: Overshoot::AtMost(Hits(budget)),
        duration: TERM,
        sizing: LeaseSizing::Learned,
    }
}

fn message(
    strategy: Strategy,
    member: ReplicaIncarnation,
    number: u64,
    hits: u64,
    want: u64,
) -> LeaseMessage {
    let counter = charge("a", strategy, 0);
    let borrow = BorrowRequest {
        number: MessageNumber(number),
        hits: Hits(hits),
        wanted: Hits(want),
        demand: Hits(1),
        balance: Hits(0),
        returned: Hits(0),
        last_lease: MessageNumber(0),
    };
    let (key, home) = (counter.key, counter.placement);
    let terms = terms_with_overshoot(30);
    LeaseMessage {
        key,
        placement: home,
        per_second: false,
        strategy,
        terms,
        sender: member,
        borrow,
    }
}

fn send_at(store: &dyn CounterStore, now: Nanos, message: &LeaseMessage) -> LeaseOutcome {
    match store.exchange_lease_message(now, message) {
        StoreReply::Ready(lent) => lent,
        StoreReply::Pending(later) => RUNTIME.block_on(later),
    }
}

fn send(store: &dyn CounterStore, message: &LeaseMessage) -> BorrowReply {
    match send_at(store, NEW_YEAR, message) {
        LeaseOutcome::Applied(answer) => answer,
        other => panic!("{other:?}"),
    }
}

fn remaining_hits(store: &dyn CounterStore, strategy: Strategy) -> u64 {
    remaining(store, NEW_YEAR, "a", strategy)
}

#[test]
fn a_borrow_charges_its_check_and_caps_the_lease() {
    on_every_store(100, |backend, strategy| {
        let first = send(backend, &message(strategy, A, 1, 5, 20));
        assert_eq!(
            (first.number, first.granted, first.outstanding_elsewhere),
            (MessageNumber(1), Hits(20), Hits(0))
        );
        assert!(
            matches!(first.decision, CounterDecision::Allow(room) if room.remaining == Hits(75))
        );
        assert_eq!((first.kept, first.valid_for), (Hits(0), TERM));
        let second = send(backend, &message(strategy, B, 1, 5, 20));
        assert_eq!(
            (second.granted, second.outstanding_elsewhere),
            (Hits(10), Hits(20)),
            "{strategy:?}"
        );
        assert_eq!(remaining_hits(backend, strategy), 60);
    });
}

#[test]
fn repeated_messages_count_once_and_superseded_never() {
    on_every_store(100, |backend, strategy| {
        let original = message(strategy, A, 7, 5, 20);
        let first = send(backend, &original);
        let again = send(backend, &original);
        assert_eq!((first.granted, again.granted), (Hits(20), Hits(20)), "{strategy:?}");
        assert_eq!(remaining_hits(backend, strategy), 75);
        let late = message(strategy, A, 6, 5, 20);
        assert_eq!(send_at(backend, NEW_YEAR, &late), LeaseOutcome::Superseded);
        assert_eq!(remaining_hits(backend, strategy), 75);
    });
}

#[test]
fn returned_hits_can_be_charged_and_leased_again() {
    on_every_store(100, |backend, strategy| {
        send(backend, &message(strategy, A, 1, 5, 20));
        let mut back = message(strategy, A, 2, 0, 0);
        (back.borrow.balance, back.borrow.returned, back.borrow.last_lease) =
            (Hits(8), Hits(12), MessageNumber(1));
        let kept = send(backend, &back);
        assert_eq!((kept.granted, kept.kept), (Hits(0), Hits(8)));
        assert_eq!(remaining_hits(backend, strategy), 87, "{strategy:?}");
        let more = send(backend, &message(strategy, B, 1, 0, 30));
        assert_eq!(
            (more.granted, more.outstanding_elsewhere),
            (Hits(15), Hits(8)),
            "half of what may be out"
        );
        // After the second return, these hits are no longer outstanding.
        (back.borrow.number, back.borrow.balance) = (MessageNumber(3), Hits(0));
        send(backend, &back);
        assert_eq!(remaining_hits(backend, strategy), 87 - 15 + 8, "{strategy:?}");
    });
}

#[test]
fn a_denied_borrow_grants_no_lease() {
    on_every_store(10, |backend, strategy| {
        execute(backend, NEW_YEAR, &each([charge("a", strategy, 8)]));
        let denied = send(backend, &message(strategy, A, 1, 5, 2));
        assert!(matches!(denied.decision, CounterDecision::Deny { .. }), "{strategy:?} {denied:?}");
        assert_eq!(denied.granted, Hits(0));
    });
}

#[test]
fn a_full_memory_charges_without_a_lease() {
    for strategy in strategies(100) {
        let memory = MemoryStore::new(1, WhenFull::Deny, [7; 16]);
        let alone = send(&memory, &message(strategy, A, 1, 5, 20));
        assert_eq!((alone.granted, memory.live_keys()), (Hits(0), 1), "{strategy:?}");
        assert_eq!(remaining_hits(&memory, strategy), 95);
        let mut other = message(strategy, A, 2, 5, 20);
        other.key = charge("b", strategy, 0).key;
        assert_eq!(send_at(&memory, NEW_YEAR, &other), LeaseOutcome::StoreFull(Verdict::Deny));
        assert_eq!((memory.live_keys(), memory.times_full()), (1, 1));
    }
}

#[test]
fn lease_lists_and_counters_are_swept_after_expiry() {
    for strategy in strategies(100) {
        let memory = MemoryStore::new(10, WhenFull::Deny, [7; 16]);
        send(&memory, &message(strategy, A, 1, 5, 20));
        assert_eq!(memory.live_keys(), 2, "{strategy:?}");
        let sweep = |now| (0..MemoryStore::SHARDS).for_each(|_| memory.sweep_next(now));
        sweep(NEW_YEAR.plus(TERM));
        assert_eq!(memory.live_keys(), 1, "{strategy:?}: the counter lives on");
        sweep(NEW_YEAR.plus(DAY).plus(DAY));
        assert_eq!(memory.live_keys(), 0, "{strategy:?}");
    }
}
