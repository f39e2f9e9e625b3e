//! Every order of events, on the kernel's own functions: small models, looked at exhaustively.
//!
//! A model that finds nothing wrong proves nothing unless everything it is about happened in it:
//! each says so, and each careless design is refuted by the same model.

mod lease;

use std::sync::atomic::AtomicU32;

use sluicegate::kernel::lease::Overshoot;
use sluicegate::kernel::rate::fixed_window::{Count, FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::{Gcra, Tat};
use sluicegate::kernel::units::{Hits, Nanos};
use stateright::{Checker as _, HasDiscoveries, Model as _};

use self::lease::{Flaw, Happens, TICK, Twin};
use crate::lease::store::Counted;
use crate::support::dice::Dice;

/// A design is given up on after so many ways.
const MOST_WAYS: u64 = 10_000;

fn window(limit: u32, ticks: u64) -> Counted {
    let windows = Windows::Every(Nanos(ticks * TICK.0));
    Counted::Fixed(FixedWindow::new(limit, windows).unwrap(), Count::default())
}

/// One hit a tick.
fn bucket(burst: u32) -> Counted {
    Counted::Gcra(Gcra::new(1, TICK, burst).unwrap(), Tat::default())
}

fn twin(counted: Counted, overshoot: Overshoot) -> Twin {
    Twin {
        counted,
        overshoot,
        term: 2,
        messages: vec![1, 1],
        hits: vec![1, 2],
        want: 1,
        horizon: 2,
        flaw: Flaw::None,
        seen: AtomicU32::new(0),
    }
}

/// Looks at all `states`: none breaks a law, and everything that must happen does.
fn holds(twin: Twin, states: usize, must_happen: &[Happens]) {
    let checker = twin.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries().into_iter().next();
    let refuted = found.map(|(name, path)| format!("{name}: {:?}", path.into_actions()));
    assert_eq!(refuted, None);
    // Pinned: a model that lost an action holds all too easily.
    assert_eq!(checker.unique_state_count(), states);
    let happened = |what: &&Happens| checker.model().happened(**what);
    let missing: Vec<&Happens> = must_happen.iter().filter(|what| !happened(what)).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

/// Takes ways at random, the same at every run, until one breaks what its flaw puts at stake.
fn fails(twin: &Twin) {
    let mut dice = Dice::new(0);
    for _ in 0..MOST_WAYS {
        let mut state = twin.init_states().remove(0);
        loop {
            if !twin.keeps_what_is_at_stake(&state) {
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

/// What happens between two members that each send a message.
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
    Happens::AllThatMayBe,
];

/// What happens between the two messages of one member.
const SUPERSEDING: [Happens; 6] = [
    Happens::LentInPart,
    Happens::DeniedHere,
    Happens::Superseded,
    Happens::GivenBack,
    Happens::GivenBackInVain,
    Happens::AnswerIgnored,
];

fn superseding(counted: Counted, overshoot: Overshoot) -> Twin {
    Twin { messages: vec![2], want: 3, horizon: 3, ..twin(counted, overshoot) }
}

#[test]
fn leases_over_windows_keep_the_theorem_in_every_order_of_events() {
    holds(twin(window(2, 2), Overshoot::AtMost(Hits(1))), 35_605, &BETWEEN_TWO);
}

#[test]
fn leases_that_end_with_their_window_keep_the_limit_in_every_order_of_events() {
    holds(twin(window(2, 2), Overshoot::InWindow), 34_233, &BETWEEN_TWO);
}

#[test]
fn leases_of_a_debt_keep_the_theorem_in_every_order_of_events() {
    // Good for longer than the debt takes to drain: only then is all of it above the law.
    let long = Twin { term: 3, ..twin(bucket(2), Overshoot::AtMost(Hits(1))) };
    holds(long, 50_755, &BETWEEN_TWO);
}

#[test]
fn messages_that_supersede_each_other_keep_the_theorem_in_every_order_of_events() {
    holds(superseding(window(4, 2), Overshoot::AtMost(Hits(2))), 14_686, &SUPERSEDING);
}

#[test]
fn messages_that_supersede_each_other_keep_the_limit_in_every_order_of_events() {
    holds(superseding(window(4, 2), Overshoot::InWindow), 12_109, &SUPERSEDING);
}

#[test]
fn messages_that_supersede_each_other_over_a_debt_keep_the_theorem_in_every_order_of_events() {
    holds(superseding(bucket(4), Overshoot::AtMost(Hits(2))), 17_781, &SUPERSEDING);
}

#[test]
fn careless_designs_are_refuted() {
    let (budget, coupled) = (Overshoot::AtMost(Hits(1)), Overshoot::InWindow);
    let windows = || twin(window(2, 2), budget);
    let ends = || Twin { messages: vec![2, 2], horizon: 3, ..twin(window(2, 2), coupled) };
    let drains = || Twin { term: 1, counted: bucket(2), overshoot: budget, ..ends() };
    let of_two = Overshoot::AtMost(Hits(2));
    let answers = || Twin { messages: vec![2, 2], overshoot: of_two, want: 2, ..windows() };
    fails(&Twin { flaw: Flaw::CreditedToEachWaiter, ..windows() });
    fails(&Twin { flaw: Flaw::WindowOnMembersClock, ..ends() });
    fails(&Twin { flaw: Flaw::GivenBackTooLate, ..ends() });
    fails(&Twin { flaw: Flaw::GivenBackTooLate, ..drains() });
    fails(&Twin { flaw: Flaw::OldAnswerTaken, ..answers() });
    fails(&Twin { flaw: Flaw::OutlivesItsWindow, ..ends() });
}
