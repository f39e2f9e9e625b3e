//! The rows of budgets: which the sweep deletes, and which stay.

use sluicegate::kernel::budget::{Amount, BudgetPeriod, BudgetTerms, HoldId, OnExpiry};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::rate::fixed_window::Windows;
use sluicegate::kernel::units::Nanos;
use sluicegate::store::budgets::{BudgetAction, BudgetCall, BudgetPart};
use sluicegate::store::postgres::{PostgresOptions, PostgresStore};
use sluicegate::store::{BudgetStore as _, CounterStore as _, Placement};

use crate::support::postgres::{PATIENT, Postgres};
use crate::support::waiting::until;

/// A call of 1 to a budget with one period that contains the time of the server, or to a prepaid one.
fn call(action: BudgetAction, name: &str, time_limit: Nanos) -> BudgetCall {
    let starts = [0, 1, 60_000, 90_000].map(|days| Nanos::from_secs(days * 86_400));
    let period = match action {
        BudgetAction::TopUp => BudgetPeriod::Prepaid,
        _ => BudgetPeriod::Each(Windows::Calendar { starts }),
    };
    let (amount, on_expiry) = (Amount(10), OnExpiry::Charge);
    let part = BudgetPart {
        key: CounterKey::budget("llm", [("budget", name)].into_iter(), 0),
        placement: Placement::ByKey,
        terms: BudgetTerms { amount, period, time_limit, on_expiry, is_enforced: true },
        amount: Amount(1),
    };
    BudgetCall { id: HoldId(7, 1), action, budgets: [part].into_iter().collect() }
}

#[test]
fn rows_of_budgets_are_deleted_only_when_nothing_is_known() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = Postgres::start();
    let options = PostgresOptions { call_timeout: PATIENT, ..server.options() };
    let (store, connections) = PostgresStore::new(options);
    runtime.spawn(connections);
    let is_connected = || store.current_failure().map_or(Ok(()), |cause| Err(format!("{cause:?}")));
    until("the store is connected", is_connected).unwrap();
    let (short, long) = (Nanos(Nanos::MILLI.0 * 50), Nanos::from_secs(600));
    for (action, name, time_limit) in [
        (BudgetAction::Reserve, "canceled", short),
        (BudgetAction::Cancel, "canceled", short),
        (BudgetAction::Reserve, "expired", short),
        (BudgetAction::Reserve, "held", long),
        (BudgetAction::Cancel, "known", long),
        (BudgetAction::TopUp, "prepaid", long),
    ] {
        runtime
            .block_on(store.call_budgets(Nanos(0), &call(action, name, time_limit)).wait())
            .unwrap();
    }
    let count = |name: &str| {
        let key = format!("position('{name}'::bytea IN key) > 0");
        server.sql(&format!("SELECT count(*) FROM sluicegate_state WHERE {key}"))
    };
    let are_deleted = || match count("canceled") {
        rows if rows == "0" => Ok(()),
        rows => Err(rows),
    };
    until("the rows of the canceled hold are deleted", are_deleted).unwrap();
    // A known id has a row of its own.
    let rows = ["expired", "held", "known", "prepaid"].map(count);
    assert_eq!(rows, ["1", "1", "1", "2"]);
    let read = call(BudgetAction::Read, "expired", short);
    let reply = runtime.block_on(store.call_budgets(Nanos(0), &read).wait()).unwrap();
    assert_eq!(reply.views[0].usage.settled, Amount(1));
}
