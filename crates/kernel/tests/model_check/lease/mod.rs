//! Explores every order of lease events in small models, with the kernel's own functions.
//!
//! Guarantees:
//! - Every state of a model keeps the bound on allowed hits.
//! - Every event that a model is made to cover occurs in it.
//! - For each flawed lease protocol, the same model finds a violation.

mod model;

use std::sync::atomic::AtomicU32;

use sluicegate_kernel::lease::Overshoot;
use sluicegate_kernel::rate::fixed_window::{FixedWindow, WindowCount, Windows};
use sluicegate_kernel::rate::gcra::{Gcra, Tat};
use sluicegate_kernel::units::{Hits, Nanos};
use stateright::{Checker as _, HasDiscoveries, Model as _};

use self::model::{Happens, LeaseModel, LeaseModelFlaw, TICK};
use crate::dice::Dice;
use crate::lease::store::Counted;

/// Maximum number of random walks for each flawed protocol.
const MAX_WALKS: u64 = 10_000;

fn window(limit: u32, ticks: u64) -> Counted {
    let windows = Windows::Every(Nanos(ticks * TICK.0));
    Counted::Fixed(FixedWindow::new(limit, windows).unwrap(), WindowCount::default())
}

/// A GCRA limit with this burst, from which one hit drains per tick.
fn bucket(burst: u32) -> Counted {
    Counted::Gcra(Gcra::new(1, TICK, burst).unwrap(), Tat::default())
}

fn twin(counted: Counted, overshoot: Overshoot) -> LeaseModel {
    LeaseModel {
        counted,
        overshoot,
        term: 2,
        messages: vec![1, 1],
        hits: vec![1, 2],
        want: 1,
        horizon: 2,
        flaw: LeaseModelFlaw::None,
        seen: AtomicU32::new(0),
    }
}

/// Explores all states of a model. Asserts their number, every property, and that each event in
/// `must_happen` occurs.
fn explore(twin: LeaseModel, states: usize, must_happen: &[Happens]) {
    let checker = twin.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries().into_iter().next();
    let refuted = found.map(|(name, path)| format!("{name}: {:?}", path.into_actions()));
    assert_eq!(refuted, None);
    // The number of states is pinned, because a model that lost an action would pass too easily.
    assert_eq!(checker.unique_state_count(), states);
    let happened = |what: &&Happens| checker.model().happened(**what);
    let missing: Vec<&Happens> = must_happen.iter().filter(|what| !happened(what)).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

/// Takes random walks from a fixed seed until a walk breaks the property that the flaw violates.
fn assert_refuted(twin: &LeaseModel) {
    let mut dice = Dice::new(0);
    for _ in 0..MAX_WALKS {
        let mut state = twin.init_states().remove(0);
        loop {
            if !twin.keeps_property_of_flaw(&state) {
                return;
            }
            let next = twin.next_states(&state);
            if next.is_empty() {
                break;
            }
            let at = dice.up_to(next.len() as u64 - 1);
            state = next.into_iter().nth(usize::try_from(at).unwrap()).unwrap();
        }
    }
    panic!("{:?} is not refuted", twin.flaw);
}

/// Events that must occur between two replicas that each send one lease message.
const BETWEEN_TWO: [Happens; 10] = [
    Happens::LentInFull,
    Happens::NothingLent,
    Happens::Spent,
    Happens::DeniedByTheStore,
    Happens::DeniedHere,
    Happens::AnsweredAgain,
    Happens::EndedUnspent,
    Happens::CrashedHolding,
    Happens::AnswerIgnored,
    Happens::MaximumAllowed,
];

/// Events that must occur between two lease messages of one replica.
const SUPERSEDING: [Happens; 6] = [
    Happens::LentInPart,
    Happens::DeniedHere,
    Happens::Superseded,
    Happens::GivenBack,
    Happens::GivenBackInVain,
    Happens::AnswerIgnored,
];

fn superseding(counted: Counted, overshoot: Overshoot) -> LeaseModel {
    LeaseModel { messages: vec![2], want: 3, horizon: 3, ..twin(counted, overshoot) }
}

#[test]
fn leases_of_window_limits_keep_the_bound() {
    explore(twin(window(2, 2), Overshoot::AtMost(Hits(1))), 35_605, &BETWEEN_TWO);
}

#[test]
fn leases_ending_with_their_window_keep_the_limit() {
    explore(twin(window(2, 2), Overshoot::InWindow), 34_233, &BETWEEN_TWO);
}

#[test]
fn leases_of_gcra_limits_keep_the_bound() {
    // The lease lasts until the debt has drained. Only then can all its hits exceed the limit.
    let long = LeaseModel { term: 3, ..twin(bucket(2), Overshoot::AtMost(Hits(1))) };
    explore(long, 50_755, &BETWEEN_TWO);
}

#[test]
fn superseding_lease_messages_of_window_limits_keep_the_bound() {
    explore(superseding(window(4, 2), Overshoot::AtMost(Hits(2))), 14_686, &SUPERSEDING);
}

#[test]
fn superseding_messages_of_leases_ending_with_their_window_keep_the_limit() {
    explore(superseding(window(4, 2), Overshoot::InWindow), 12_109, &SUPERSEDING);
}

#[test]
fn superseding_lease_messages_of_gcra_limits_keep_the_bound() {
    explore(superseding(bucket(4), Overshoot::AtMost(Hits(2))), 17_781, &SUPERSEDING);
}

#[test]
fn model_finds_a_violation_in_each_flawed_lease_protocol() {
    let (budget, coupled) = (Overshoot::AtMost(Hits(1)), Overshoot::InWindow);
    let windows = || twin(window(2, 2), budget);
    let ends = || LeaseModel { messages: vec![2, 2], horizon: 3, ..twin(window(2, 2), coupled) };
    let drains = || LeaseModel { term: 1, counted: bucket(2), overshoot: budget, ..ends() };
    let of_two = Overshoot::AtMost(Hits(2));
    let answers = || LeaseModel { messages: vec![2, 2], overshoot: of_two, want: 2, ..windows() };
    assert_refuted(&LeaseModel { flaw: LeaseModelFlaw::CreditedToEachWaiter, ..windows() });
    assert_refuted(&LeaseModel { flaw: LeaseModelFlaw::WindowOnMembersClock, ..ends() });
    assert_refuted(&LeaseModel { flaw: LeaseModelFlaw::GivenBackTooLate, ..ends() });
    assert_refuted(&LeaseModel { flaw: LeaseModelFlaw::GivenBackTooLate, ..drains() });
    assert_refuted(&LeaseModel { flaw: LeaseModelFlaw::OldAnswerTaken, ..answers() });
    assert_refuted(&LeaseModel { flaw: LeaseModelFlaw::OutlivesItsWindow, ..ends() });
}

#[test]
fn occupying_leases_of_gcra_limits_keep_the_limit() {
    let long = LeaseModel { term: 3, ..twin(bucket(2), Overshoot::Occupying(Hits(1))) };
    explore(long, 47_617, &BETWEEN_TWO);
}

#[test]
fn superseding_messages_of_occupying_leases_keep_the_limit() {
    explore(superseding(bucket(4), Overshoot::Occupying(Hits(2))), 16_899, &SUPERSEDING);
}
