//! Shows the amounts of one id of a table, and the origin of each.
//!
//! Guarantees:
//! - Each column of the table, and each that a limit reads, is shown once.
//! - An amount names at most [`MAX_PLACES`] limits.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::config::action::{ActionEffect, ActionTarget};
use crate::config::tables::{Amount, Row, Table, row_json};
use crate::engine::Engine;
use crate::engine::actions::ActiveAction;
use crate::kernel::units::Nanos;

/// The most limits that an amount names.
const MAX_PLACES: usize = 10;

/// Returns the amounts that operators set for an id, each with its column.
pub(super) fn set_amounts(
    engine: &Engine,
    table: &str,
    id: &str,
) -> Vec<(Box<str>, Amount, ActiveAction)> {
    let actions = engine.actions().into_iter();
    let of_id = actions.filter_map(|active| match (&active.action.target, active.action.effect) {
        (ActionTarget::Amount { id: set, column }, ActionEffect::Set(amount))
            if *active.action.domain == *table && **set == *id =>
        {
            Some((column.clone(), amount, active))
        }
        _ => None,
    });
    of_id.collect()
}

/// Returns the row of an id, if there is one, and its amounts. `from` is the origin of the amount
/// that applies: `set`, `row` or `plan`; `null` if the rule's own number applies.
pub(super) fn amounts_json(engine: &Engine, table: &Table, id: &str) -> Value {
    let (row, now, config) = (table.row(id), engine.clock().now(), engine.config());
    let mut columns: BTreeMap<_, Vec<_>> =
        table.columns().map(|column| (column, Vec::new())).collect();
    for (read, place) in config.iter().flat_map(|config| config.table_columns()) {
        if *read.table == *table.name() {
            columns.entry(&read.column).or_default().push(place);
        }
    }
    let set = set_amounts(engine, table.name(), id);
    let amount = |(column, places): (&str, Vec<&str>)| {
        let mut amount = amount_json(table, (row, column), now);
        if let Some((_, set, active)) = set.iter().find(|(read, ..)| **read == *column) {
            (amount["from"], amount["amount"]) = ("set".into(), set.to_string().into());
            let until_ms = active.action.until.0 / Nanos::MILLI.0;
            let (by, reason) = (&active.by, &active.reason);
            amount["set"] = json!({ "until_unix_ms": until_ms, "by": by, "reason": reason });
        }
        amount["limits"] = places.len().into();
        amount["first_limits"] = places.into_iter().take(MAX_PLACES).collect();
        amount
    };
    let amounts: Vec<_> = columns.into_iter().map(amount).collect();
    let until = row.and_then(|row| table.own_amounts(row).1);
    json!({
        "id": id,
        "row": row.map(|row| row_json(table, id, row)),
        "has_ended": until.is_some_and(|until| until <= now),
        "amounts": amounts,
    })
}

/// Returns the amount that applies, and beside it the row's own and its plan's.
fn amount_json(table: &Table, (row, column): (Option<&Row>, &str), now: Nanos) -> Value {
    let text = |amount: Option<Amount>| amount.map(|amount| amount.to_string());
    let found = row.zip(table.column(column));
    let applies = found.and_then(|(row, number)| table.amount(row, number, now));
    let plan = found.and_then(|(row, number)| table.plan_amount(row, number));
    let (own, until) = row.map(|row| table.own_amounts(row)).unzip();
    let own = own.and_then(|mut own| own.find(|(name, _)| *name == column));
    let is_own = own.is_some() && until.flatten().is_none_or(|until| now < until);
    json!({
        "column": column,
        "amount": text(applies),
        "from": applies.map(|_| if is_own { "row" } else { "plan" }),
        "row": text(own.map(|(_, amount)| amount)),
        "plan": text(plan),
    })
}
