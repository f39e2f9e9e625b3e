//! Explores every order of budget events in small models, with the kernel's own functions.
//!
//! Guarantees:
//! - In every state, the amounts are those that the history of the requests implies.
//! - Every event that a model is made to cover occurs in it.
//! - For each flawed design, the same model finds a violation.

mod model;

use std::sync::atomic::AtomicU32;

use stateright::{Checker as _, HasDiscoveries, Model as _};

use self::model::{BudgetFlaw, BudgetModel, Happens, Rules};

fn two_requests() -> BudgetModel {
    BudgetModel {
        requests: &[0, 0],
        amounts: [2, 3],
        lengths: [2, 3],
        rules: Rules { time_limit: 2, late: 2, charges_expiry: true },
        estimates: &[1, 2],
        costs: &[1, 3],
        horizon: 4,
        strangers: true,
        failovers: 0,
        lag: 0,
        waits: true,
        flaw: BudgetFlaw::None,
        seen: AtomicU32::new(0),
    }
}

/// A store with a copy. The second budget has one period.
fn failing_over() -> BudgetModel {
    let store = BudgetModel { failovers: 1, lag: 2, horizon: 3, ..two_requests() };
    BudgetModel { amounts: [3, 4], lengths: [2, 8], strangers: false, costs: &[3], ..store }
}

/// Explores all states of a model. Asserts their number, every property, and that each event in
/// `must_happen` occurs.
fn explore(model: BudgetModel, states: usize, must_happen: &[Happens]) {
    let checker =
        model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries().into_iter().next();
    let refuted = found.map(|(name, path)| format!("{name}: {:?}", path.into_actions()));
    assert_eq!(refuted, None);
    // The number of states is pinned, because a model that lost an action would pass too easily.
    assert_eq!(checker.unique_state_count(), states);
    let missing: Vec<_> = must_happen.iter().filter(|it| !checker.model().happened(**it)).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

/// Asserts that a flawed design breaks `property`.
fn assert_violates(model: BudgetModel, property: &'static str) {
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    checker.assert_any_discovery(property);
}

/// Events that must occur between two requests.
const BETWEEN_TWO: [Happens; 15] = [
    Happens::Held,
    Happens::DeniedByFirst,
    Happens::DeniedBySecond,
    Happens::ReserveRepeated,
    Happens::ReserveAfterEnd,
    Happens::Settled,
    Happens::SettledInLaterPeriod,
    Happens::CorrectedAfterExpiry,
    Happens::SettledAfterCancel,
    Happens::SettledWithoutHold,
    Happens::HeldSettled,
    Happens::Canceled,
    Happens::UnknownMadeKnown,
    Happens::EndRepeated,
    Happens::Renewed,
];

/// Events that must occur between three requests with a hold.
const IN_FLIGHT: [Happens; 6] = [
    Happens::Held,
    Happens::DeniedByFirst,
    Happens::DeniedBySecond,
    Happens::Settled,
    Happens::SettledInLaterPeriod,
    Happens::SettledAfterCancel,
];

#[test]
fn two_budgets_match_the_history_of_two_requests() {
    explore(two_requests(), 27_014, &BETWEEN_TWO);
}

#[test]
fn request_of_one_budget_leaves_the_other_unchanged() {
    let model = BudgetModel { requests: &[0, 1], strangers: false, ..two_requests() };
    explore(model, 32_239, &[Happens::DeniedBySecond, Happens::SettledInLaterPeriod]);
}

#[test]
fn expiries_without_a_charge_match_the_history() {
    let rules = Rules { charges_expiry: false, ..two_requests().rules };
    explore(BudgetModel { rules, ..two_requests() }, 25_122, &BETWEEN_TWO);
}

#[test]
fn three_requests_that_cost_their_holds_keep_the_amount() {
    let exact = BudgetModel { estimates: &[2], costs: &[1], strangers: false, ..two_requests() };
    explore(
        BudgetModel { requests: &[0, 0, 0], amounts: [4, 5], horizon: 3, ..exact },
        73_326,
        &IN_FLIGHT,
    );
}

#[test]
fn failover_of_a_store_that_waits_loses_no_known_step() {
    explore(failing_over(), 104_678, &[Happens::LostUnacknowledged]);
}

#[test]
fn lost_steps_bound_the_overspend_of_a_store_without_wait() {
    let rules = Rules { time_limit: 1, late: 1, ..two_requests().rules };
    let model = BudgetModel { waits: false, estimates: &[2], rules, ..failing_over() };
    explore(model, 36_551, &[Happens::LostAcknowledged]);
}

#[test]
fn model_finds_a_violation_in_each_flawed_budget() {
    let (sum, held) = ("usage is the sum of the requests", "held amounts are the open holds");
    let flaws = [
        (BudgetFlaw::HoldInSettledAmount, sum),
        (BudgetFlaw::SettleNotIdempotent, sum),
        (BudgetFlaw::ExpiryForgets, sum),
        (BudgetFlaw::SettleInCurrentPeriod, sum),
        (BudgetFlaw::CancelIsFinal, sum),
        (BudgetFlaw::FirstBudgetKeepsDeniedHold, held),
        (BudgetFlaw::HeldNotChecked, "the excess bounds each period"),
    ];
    for (flaw, property) in flaws {
        assert_violates(BudgetModel { flaw, ..two_requests() }, property);
    }
    let late = Rules { late: 3, ..two_requests().rules };
    assert_violates(BudgetModel { rules: late, ..two_requests() }, sum);
    let early = BudgetModel { flaw: BudgetFlaw::EarlyReply, ..failing_over() };
    assert_violates(early, "no known step is lost");
}
