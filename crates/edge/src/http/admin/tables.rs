//! Serves `/tables`: the tables that limits read, and their rows.
//!
//! Guarantees:
//! - A list has at most [`MAX_ROWS`] rows, sorted by id. Other rows take no memory.

use std::collections::BinaryHeap;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use tokio::task::JoinError;

use super::actions::QueryPairs;
use super::amounts::{amounts_json, set_amounts};
use super::port::Admin;
use crate::config::tables::{Table, TableState, row_json};
use crate::engine::Engine;
use crate::http::response::{JSON, PLAIN};
use crate::kernel::units::Nanos;

/// The most rows of a list.
const MAX_ROWS: usize = 1_000;

/// The rows of a list without `limit`.
const DEFAULT_ROWS: usize = 100;

/// Serves `/tables`.
pub(super) async fn show(State(admin): State<Admin>, Query(query): Query<QueryPairs>) -> Response {
    // A list looks at all rows, which takes a second for ten million: checks must not wait for it.
    let answered = tokio::task::spawn_blocking(move || {
        TablesQuery::new(&query).and_then(|query| query.answer(&admin.engine))
    });
    let failed = |error: JoinError| Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string()));
    match answered.await.unwrap_or_else(failed) {
        Ok(body) => (JSON, body.to_string()).into_response(),
        Err((status, message)) => (status, PLAIN, message + "\n").into_response(),
    }
}

#[derive(Default)]
struct TablesQuery<'q> {
    table: Option<&'q str>,
    id: Option<&'q str>,
    amounts_of: Option<&'q str>,
    plan: Option<&'q str>,
    limit: Option<usize>,
}

type QueryError = (StatusCode, String);

impl<'q> TablesQuery<'q> {
    fn new(pairs: &'q QueryPairs) -> Result<Self, QueryError> {
        let mut query = Self::default();
        let wrong = |message: String| (StatusCode::BAD_REQUEST, message);
        for (name, text) in pairs {
            match &**name {
                "table" => query.table = Some(text),
                "id" => query.id = Some(text),
                "amounts_of" => query.amounts_of = Some(text),
                "plan" => query.plan = Some(text),
                "limit" => {
                    let limit = text.parse().ok().filter(|limit| (1..=MAX_ROWS).contains(limit));
                    let limit =
                        limit.ok_or_else(|| wrong(format!("`limit` must be 1 to {MAX_ROWS}")))?;
                    query.limit = Some(limit);
                }
                other => {
                    let known = "use table, id, amounts_of, plan, limit";
                    return Err(wrong(format!("unknown parameter `{other}`; {known}")));
                }
            }
        }
        if query.table.is_none() && !pairs.is_empty() {
            return Err(wrong("the parameter `table` is missing".to_owned()));
        }
        Ok(query)
    }

    fn answer(&self, engine: &Engine) -> Result<Value, QueryError> {
        let (states, now) = (engine.table_states().all(), engine.clock().now());
        let not_found = |message: String| (StatusCode::NOT_FOUND, message);
        let Some(name) = self.table else {
            let tables: Vec<_> = states.iter().map(|state| state_json(state, now)).collect();
            return Ok(json!({ "tables": tables }));
        };
        let state = states.iter().find(|state| *state.name == *name);
        let state = state.ok_or_else(|| not_found(format!("there is no table `{name}`")))?;
        let Some(table) = &state.table else {
            return Err(not_found(format!("the table `{name}` is not loaded")));
        };
        if let Some(id) = self.amounts_of {
            return Ok(amounts_json(engine, table, id));
        }
        if let Some(id) = self.id {
            let set = set_amounts(engine, name, id);
            let mut fields = match table.row(id) {
                Some(row) => row_json(table, id, row),
                None if set.is_empty() => {
                    return Err(not_found(format!("`{name}` has no row `{id}`")));
                }
                None => Map::from_iter([("id".to_owned(), id.into())]),
            };
            if !set.is_empty() {
                let set = set.iter().map(|(column, set, _)| (&**column, set.to_string()));
                fields.insert("set".to_owned(), set.collect());
            }
            return Ok(fields.into());
        }
        Ok(self.list(table))
    }

    fn list(&self, table: &Table) -> Value {
        let has_plan = |row| self.plan.is_none_or(|plan| table.plan_name(row) == Some(plan));
        let (mut count, mut first) = (0_u64, BinaryHeap::new());
        let limit = self.limit.unwrap_or(DEFAULT_ROWS);
        for (id, _) in table.iter().filter(|(_, row)| has_plan(row)) {
            count += 1;
            if first.len() < limit {
                first.push(id);
            } else if let Some(mut last) = first.peek_mut().filter(|last| id < **last) {
                *last = id;
            }
        }
        let ids = first.into_sorted_vec().into_iter();
        let rows: Vec<_> = ids.filter_map(|id| Some(row_json(table, id, table.row(id)?))).collect();
        json!({ "count": count, "rows": rows })
    }
}

fn state_json(state: &TableState, now: Nanos) -> Value {
    let table = state.table.as_deref();
    let age = |at: Option<Nanos>| at.map(|at| now.since(at).0 / Nanos::MILLI.0);
    json!({
        "name": state.name,
        "source": state.source,
        "rows": table.map(Table::rows),
        "digest": table.map(|table| format!("{:016x}", table.digest())),
        "columns": table.map(|table| table.columns().collect::<Vec<_>>()),
        "plans": table.map(|table| table.spec().plan_names().collect::<Vec<_>>()),
        "from_copy": state.is_from_copy,
        "confirmed_ms_ago": age(state.confirmed_at),
        "changed_ms_ago": age(state.changed_at),
        "bad_rows": state.bad,
        "first_bad_rows": state.bad_rows,
        "error": state.error,
    })
}
