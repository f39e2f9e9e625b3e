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
    match done {
        Ok(text) => {
            terminal.out.write_all(text.as_bytes())?;
            Ok(CommandOutcome::Success)
        }
        Err(message) => {
            writeln!(terminal.err, "error: {message}")?;
            let is_missing = message.contains("has no row");
            Ok(if is_missing { CommandOutcome::Negative } else { CommandOutcome::Failed })
        }
    }
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
    let lines: String = shown.iter().map(|row| format!("{row}\n")).collect();
    let more = page["count"].as_u64().unwrap_or(0).saturating_sub(shown.len() as u64);
    Ok(if more == 0 { lines } else { format!("{lines}… and {more} more rows\n") })
}

/// Describes a table in one line: `customers: 120 rows, confirmed 1s ago, file:///…`.
fn describe_table(table: &Value) -> String {
    let text = |name: &str| table[name].as_str().unwrap_or_default();
    let (name, source) = (text("name"), text("source"));
    let age = match table["confirmed_ms_ago"].as_u64() {
        Some(age) => format!("confirmed {}s ago", age / 1_000),
        None if table["from_copy"] == true => "from the copy on disk".to_owned(),
        None => "not loaded".to_owned(),
    };
    let rows = table["rows"].as_u64().unwrap_or(0);
    let mut line = format!("{name}: {rows} rows, {age}, from {source}\n");
    if let Some(error) = table["error"].as_str() {
        line += &format!("  error: {error}\n");
    }
    let bad = table["bad_rows"].as_u64().filter(|bad| 0 < *bad);
    if let Some(bad) = bad {
        line += &format!("  {bad} bad rows:\n");
    }
    let named = table["first_bad_rows"].as_array().cloned().unwrap_or_default();
    for row in named {
        let (row, problem) = (row["row"].as_str(), row["problem"].as_str());
        line += &format!("  {}: {}\n", row.unwrap_or_default(), problem.unwrap_or_default());
    }
    line
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
