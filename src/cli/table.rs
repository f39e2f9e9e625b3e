//! Implements `sluicegate table`: the tables that limits read.
//!
//! Guarantees:
//! - A change needs a reason and ends by itself.

use std::io;

use serde_json::Value;

use super::args::{
    TableCommand, TableGetArgs, TableListArgs, TableRowArgs, TableSetArgs, TableUnsetArgs,
};
use super::ask::replicas_suffix;
use super::{CommandOutcome, Terminal, admin_client};

pub(super) fn table(
    command: &TableCommand,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    let done = match command {
        TableCommand::List(args) => list(args),
        TableCommand::Get(args) => get(args),
        TableCommand::Set(args) => set(args),
        TableCommand::Unset(args) => unset(args),
    };
    terminal.report(done, "has no row")
}

fn list(args: &TableListArgs) -> Result<String, String> {
    let server = &args.server.server;
    let Some(table) = &args.table else {
        let page = read(server, &[])?;
        let tables = page["tables"].as_array().cloned().unwrap_or_default();
        return Ok(tables.iter().map(describe_table).collect());
    };
    let rows = args.rows.to_string();
    let mut parameters = vec![("table", &**table), ("limit", &rows)];
    parameters.extend(args.plan.iter().map(|plan| ("plan", &**plan)));
    let page = read(server, &parameters)?;
    let shown = page["rows"].as_array().cloned().unwrap_or_default();
    let mut lines: Vec<_> = shown.iter().map(Value::to_string).collect();
    let more = page["count"].as_u64().unwrap_or(0).saturating_sub(shown.len() as u64);
    lines.extend((0 < more).then(|| format!("… and {more} more rows")));
    Ok(as_lines(&lines))
}

/// Describes a table: `customers: 120 rows, confirmed 1s ago, from file:///…`, and its problems.
fn describe_table(table: &Value) -> String {
    let text = |name: &str| table[name].as_str().unwrap_or_default();
    let (name, source) = (text("name"), text("source"));
    let age = match table["confirmed_ms_ago"].as_u64() {
        Some(age) => format!("confirmed {}s ago", age / 1_000),
        None if table["from_copy"] == true => "from the copy on disk".to_owned(),
        None => "not loaded".to_owned(),
    };
    let rows = table["rows"].as_u64().unwrap_or(0);
    let mut lines = vec![format!("{name}: {rows} rows, {age}, from {source}")];
    lines.extend(table["error"].as_str().map(|error| format!("  error: {error}")));
    let bad = table["bad_rows"].as_u64().filter(|bad| 0 < *bad);
    lines.extend(bad.map(|bad| format!("  {bad} bad rows:")));
    let named = table["first_bad_rows"].as_array().into_iter().flatten();
    lines.extend(named.map(|row| {
        let (row, problem) = (row["row"].as_str(), row["problem"].as_str());
        format!("  {}: {}", row.unwrap_or_default(), problem.unwrap_or_default())
    }));
    as_lines(&lines)
}

fn as_lines(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line, "\n"]).collect()
}

fn get(args: &TableGetArgs) -> Result<String, String> {
    let row = read(&args.server.server, &[("table", &args.table), ("id", &args.id)])?;
    Ok(format!("{row}\n"))
}

fn read(server: &str, parameters: &[(&str, &str)]) -> Result<Value, String> {
    let body = admin_client::get_page(server, "tables", parameters)?;
    serde_json::from_slice(&body)
        .map_err(|error| format!("{server}: invalid reply to /tables: {error}"))
}

fn set(args: &TableSetArgs) -> Result<String, String> {
    let Some((column, amount)) = args.amount.split_once('=') else {
        return Err(format!("`{}` must be COLUMN=AMOUNT, such as api=9000", args.amount));
    };
    let more = [("amount", amount), ("for", &*args.duration)];
    let reply = change("set", column, &args.change, &more)?;
    let TableRowArgs { table, id, .. } = &args.change;
    Ok(format!(
        "{table} {id}: {column} is {amount} for {}{}\n",
        args.duration,
        replicas_suffix(&reply)
    ))
}

fn unset(args: &TableUnsetArgs) -> Result<String, String> {
    let reply = change("unset", &args.column, &args.change, &[])?;
    let (TableRowArgs { table, id, .. }, column) = (&args.change, &args.column);
    Ok(format!("{table} {id}: {column} is that of the table again{}\n", replicas_suffix(&reply)))
}

fn change(
    action: &str,
    column: &str,
    row: &TableRowArgs,
    more: &[(&str, &str)],
) -> Result<Value, String> {
    let TableRowArgs { table, id, reason, server } = row;
    let own = [("table", &**table), ("id", id), ("column", column), ("reason", reason)];
    let parameters = [&own[..], more].concat();
    let reply = admin_client::post_change(&server.server, action, "", &[], &parameters)?;
    serde_json::from_str(&reply).map_err(|error| format!("invalid reply to /{action}: {error}"))
}
