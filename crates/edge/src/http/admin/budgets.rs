//! Serves `/budgets` and `/top_up`: lists and shows budgets, and adds to prepaid ones.
//!
//! Guarantees:
//! - A list has at most [`MAX_LISTED`] budgets. Those with the largest used share come first.
//! - A top-up has an operator, a reason and an id, and an entry in the audit log. A repeated id
//!   changes nothing, and is an error with another amount.
//!
//! Not covered:
//! - A list of all budgets: it has those that requests of this replica met since its start.

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::ExplainQuery;
use super::actions::{ChangeQuery, QueryPairs};
use super::counter;
use super::port::Admin;
use crate::config::budget_amount::{self, AmountText};
use crate::config::descriptor_text::{borrow_entries, format_entries};
use crate::config::settings::DescriptorValues;
use crate::engine::actions::AuditEntry;
use crate::engine::budgets::{BudgetStatus, SettleFinding};
use crate::engine::{CheckError, validate_id};
use crate::http::response::{JSON, PLAIN};
use crate::kernel::budget::{Amount, PeriodUsage};
use crate::kernel::decision::{Check, Cost};
use crate::kernel::key::CounterKey;
use crate::kernel::units::{Hits, Nanos};

/// The most budgets of a list.
const MAX_LISTED: usize = 1_000;

/// The reason why a call fails: its status and a message for the operator.
type Failure = (StatusCode, String);

/// Serves `/budgets`.
pub(super) async fn show(State(admin): State<Admin>, Query(query): Query<QueryPairs>) -> Response {
    let has_descriptor = query.iter().any(|(name, _)| name == "descriptor");
    let read = if has_descriptor { read(&admin, query).await } else { list(&admin, &query).await };
    match read {
        Ok(body) => (JSON, body.to_string()).into_response(),
        Err(failure) => refuse(failure),
    }
}

/// Serves `/top_up`.
pub(super) async fn top_up(State(admin): State<Admin>, query: ChangeQuery) -> Response {
    match add(&admin, &query).await {
        Ok(body) => (JSON, body.to_string()).into_response(),
        Err(failure) => refuse(failure),
    }
}

async fn read(admin: &Admin, query: QueryPairs) -> Result<Value, Failure> {
    let query = parse_query(admin, query).map_err(bad)?;
    let check = to_check(&query);
    let budgets = admin.engine.read_budgets(&check, None).await.map_err(|error| failed(&error))?;
    if budgets.is_empty() {
        return Err(bad("no budget matches; /explain shows the lookup".to_owned()));
    }
    Ok(page(admin, &budgets))
}

async fn list(admin: &Admin, query: &QueryPairs) -> Result<Value, Failure> {
    let (mut domain, mut limit) = (None, MAX_LISTED);
    for (name, text) in query {
        match &**name {
            "domain" => domain = Some(&**text).filter(|text| !text.is_empty()),
            "limit" => {
                let number = text.parse().ok().filter(|limit| (1..=MAX_LISTED).contains(limit));
                limit = number.ok_or_else(|| bad(format!("`limit` must be 1 to {MAX_LISTED}")))?;
            }
            other => {
                let known = "use domain and limit, or domain and descriptor";
                return Err(bad(format!("unknown parameter `{other}`; {known}")));
            }
        }
    }
    // The list would show the values that this setting hides.
    let values = admin.engine.top_key_values();
    if values != DescriptorValues::Shown {
        let setting = format!("`telemetry.descriptor_values` is `{}`", values.word());
        return Err(bad(format!("{setting}, so budgets are not listed; name a descriptor")));
    }
    let mut budgets = admin.engine.list_budgets(domain).await.map_err(|error| failed(&error))?;
    let omitted = budgets.len().saturating_sub(limit);
    budgets.truncate(limit);
    let mut body = page(admin, &budgets);
    body["omitted"] = omitted.into();
    Ok(body)
}

fn page(admin: &Admin, budgets: &[BudgetStatus]) -> Value {
    let mut body = budgets_json(budgets, admin.engine.clock().now());
    let is_shown = |path: &str| budgets.iter().any(|budget| *budget.path == *path);
    let findings = admin.engine.settle_findings().into_iter().filter(|(path, _)| is_shown(path));
    let finding = |(path, finding): (_, SettleFinding)| format!("{path}: {}", finding.text());
    body["findings"] = findings.map(finding).collect();
    body
}

async fn add(admin: &Admin, query: &ChangeQuery) -> Result<Value, Failure> {
    let engine = &admin.engine;
    query.allow_only(&["id", "amount"]).map_err(bad)?;
    engine.validate_operator(query.operator()).map_err(|why| bad(why.to_string()))?;
    let (id, text) = (query.required("id").map_err(bad)?, query.required("amount").map_err(bad)?);
    validate_id(id).map_err(|why| bad(format!("`id`: {why}")))?;
    let (amount, unit) = budget_amount::parse(text).map_err(|_| {
        bad(format!(
            "`amount` must be a positive number and a unit, such as `20 usd`, got `{text}`"
        ))
    })?;
    let target = parse_query(admin, query.check.clone()).map_err(bad)?;
    // Of several, one could know the id with another amount.
    if target.descriptors.len() != 1 {
        return Err(bad("a top-up is for one `descriptor`; send one top-up for each".to_owned()));
    }
    let check = to_check(&target);
    let (budgets, known) =
        engine.top_up(&check, id, (amount, unit), None).await.map_err(|error| {
            let (status, why) = failed(&error);
            (status, format!("{why}; the top-up may have been made: repeat it with the same id"))
        })?;
    if budgets.is_empty() {
        return Err(bad(format!("no prepaid budget in `{unit}` matches")));
    }
    if let Some(known) = known.filter(|known| *known != amount) {
        let known = AmountText(known, unit);
        let why = format!("the id `{id}` was used for a top-up of {known}, so nothing changed");
        return Err((StatusCode::CONFLICT, why + "; use another id for another top-up"));
    }
    let is_new = known.is_none();
    if is_new {
        let text = |entries: &Vec<(String, String)>| format_entries(borrow_entries(entries));
        let descriptor = target.descriptors.iter().map(text).collect::<Vec<_>>().join(" ");
        let entry = engine.audit_entry("top_up", &target.domain, query.operator());
        let entry = entry.with_descriptor(descriptor);
        let value = format!("{} {id}", AmountText(amount, unit));
        engine.append_audit(AuditEntry { value: Some(value.into()), ..entry }).await;
    }
    let mut body = budgets_json(&budgets, engine.clock().now());
    body["added"] = is_new.into();
    Ok(body)
}

/// Parses a query. Without a domain, it means the only domain with budgets.
fn parse_query(admin: &Admin, mut query: QueryPairs) -> Result<ExplainQuery, String> {
    query.retain(|(name, value)| name != "domain" || !value.is_empty());
    if !query.iter().any(|(name, _)| name == "domain") {
        let config = admin.engine.config();
        let domains = config.iter().flat_map(|config| config.domains.values());
        let mut domains = domains.filter(|domain| domain.tree.budgets().len() != 0);
        let only = match (domains.next(), domains.next()) {
            (Some(only), None) => only.name.to_string(),
            (None, _) => return Err("no domain has a budget".to_owned()),
            _ => return Err(
                "several domains have budgets: add `domain=NAME` (in the command, `--domain NAME`)"
                    .to_owned(),
            ),
        };
        query.push(("domain".to_owned(), only));
    }
    ExplainQuery::from_query(query)
}

fn to_check(query: &ExplainQuery) -> Check<'_> {
    let descriptor = |entries| counter::descriptor(entries, Cost::Charge(Hits(0)));
    let descriptors = query.descriptors.iter().map(Vec::as_slice).map(descriptor).collect();
    Check { domain: &query.domain, descriptors }
}

fn budgets_json(budgets: &[BudgetStatus], now: Nanos) -> Value {
    json!({ "budgets": budgets.iter().map(|budget| budget_json(budget, now)).collect::<Vec<_>>() })
}

fn budget_json(budget: &BudgetStatus, now: Nanos) -> Value {
    let BudgetStatus { path, unit, total, view, periods, .. } = budget;
    let text = |amount: Amount| AmountText(amount, *unit).to_string();
    let used = view.usage.settled.0.saturating_add(view.held.0);
    let millis = |instant: Nanos| instant.0 / Nanos::MILLI.0;
    let period = |usage: &PeriodUsage| {
        json!({
            "start_unix_ms": millis(usage.start),
            "settled": text(usage.settled),
            "settled_number": usage.settled.0,
            "requests": usage.requests,
            "expired": usage.expired,
            "excess": text(usage.excess),
        })
    };
    let (domain, entries) = CounterKey::parse_budget(budget.key.as_bytes()).unwrap_or_default();
    json!({
        "path": &**path,
        "unit": unit.to_string(),
        "key": CounterKey::describe(budget.key.as_bytes()),
        "domain": domain,
        "descriptor": format_entries(entries),
        "amount": text(*total),
        "amount_number": total.0,
        "settled": text(view.usage.settled),
        "settled_number": view.usage.settled.0,
        "held": text(view.held),
        "held_number": view.held.0,
        "free": text(Amount(total.0.saturating_sub(used))),
        "open_holds": view.open_holds,
        "excess": text(view.usage.excess),
        "ends_unix_ms": view.end.map(millis),
        "spent_unix_ms": budget.spent_at(now).map(millis),
        "periods": periods.iter().map(period).collect::<Vec<_>>(),
    })
}

fn bad(message: String) -> Failure {
    (StatusCode::BAD_REQUEST, message)
}

fn failed(error: &CheckError) -> Failure {
    let status = match error {
        CheckError::StoreUnavailable(_) | CheckError::NoConfig => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    };
    (status, error.to_string())
}

fn refuse((status, message): Failure) -> Response {
    (status, PLAIN, message + "\n").into_response()
}
