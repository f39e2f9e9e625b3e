//! Implements `sluicegate budget`: lists, shows and exports budgets, and adds to prepaid ones.

use std::fmt::Write as _;
use std::io;

use jiff::Timestamp;
use serde_json::Value;

use crate::config::budget::MILLIONTHS;

use super::args::{BudgetCommand, BudgetPlace, BudgetTarget, BudgetTopUpArgs, ExportFormat};
use super::top::printable;
use super::{CommandOutcome, Terminal, admin_client};

/// The first line of an export as CSV.
const CSV_HEAD: &str = "budget,path,unit,period_start,settled,requests,expired\n";

/// The columns of a list.
const LIST_HEAD: [&str; 7] =
    ["DOMAIN", "BUDGET", "AMOUNT", "SETTLED", "HELD", "USED", "SPENT AT THIS RATE"];

pub(super) fn budget(
    command: &BudgetCommand,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    let done = match command {
        BudgetCommand::List(args) => read(&[], &args.place).map(|page| to_table(&page)),
        BudgetCommand::Show(args) => {
            let BudgetTarget { descriptors, place } = &args.target;
            read(descriptors, place).map(|page| describe_all(&page))
        }
        BudgetCommand::Export(args) => {
            read(&args.descriptors, &args.place).map(|page| match args.format {
                ExportFormat::Csv => to_csv(&page),
                ExportFormat::Json => format!("{page}\n"),
            })
        }
        BudgetCommand::TopUp(args) => top_up(args),
    };
    match done {
        Ok(text) => {
            terminal.out.write_all(text.as_bytes())?;
            Ok(CommandOutcome::Success)
        }
        Err(message) => {
            writeln!(terminal.err, "error: {message}")?;
            Ok(CommandOutcome::Failed)
        }
    }
}

/// Reads the budgets of the descriptors; without any, the list of the replica.
fn read(descriptors: &[String], place: &BudgetPlace) -> Result<Value, String> {
    let BudgetPlace { domain, server } = place;
    let domain = domain.iter().map(|domain| ("domain", &**domain));
    let mut parameters: Vec<_> = domain.collect();
    parameters.extend(descriptors.iter().map(|descriptor| ("descriptor", &**descriptor)));
    let body = admin_client::get_page(server, "budgets", &parameters)?;
    serde_json::from_slice(&body)
        .map_err(|error| format!("{server}: invalid reply to /budgets: {error}"))
}

fn top_up(args: &BudgetTopUpArgs) -> Result<String, String> {
    let BudgetTopUpArgs { amount, id, reason, target } = args;
    let BudgetTarget { descriptors, place: BudgetPlace { domain, server } } = target;
    let parameters = [("amount", &**amount), ("id", id), ("reason", reason)];
    let domain = domain.as_deref().unwrap_or_default();
    let reply = admin_client::post_change(server, "top_up", domain, descriptors, &parameters)?;
    let reply: Value = serde_json::from_str(&reply)
        .map_err(|error| format!("{server}: invalid reply to /top_up: {error}"))?;
    let before = if reply["added"] == true {
        format!("added {amount}\n")
    } else {
        format!("the top-up {id} was made before; nothing changed\n")
    };
    Ok(before + &describe_all(&reply))
}

fn budgets(page: &Value) -> impl Iterator<Item = &Value> {
    page["budgets"].as_array().into_iter().flatten()
}

fn warnings(page: &Value) -> impl Iterator<Item = String> {
    let findings = page["findings"].as_array().into_iter().flatten().filter_map(Value::as_str);
    findings.map(|finding| format!("warning: {finding}\n"))
}

fn describe_all(page: &Value) -> String {
    budgets(page).map(describe).chain(warnings(page)).collect()
}

/// Returns a line for each budget.
fn to_table(page: &Value) -> String {
    let mut rows = vec![LIST_HEAD.map(str::to_owned)];
    rows.extend(budgets(page).map(to_row));
    if rows.len() == 1 {
        return "no request of this replica met a budget since its start\n".to_owned();
    }
    let mut widths = [0; LIST_HEAD.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |row: &[String; LIST_HEAD.len()]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}  "));
        cells.collect::<String>().trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).chain(warnings(page)).collect()
}

fn to_row(budget: &Value) -> [String; LIST_HEAD.len()] {
    let text = |name: &str| printable(budget[name].as_str().unwrap_or_default());
    let number = |name: &str| budget[name].as_u64().unwrap_or(0);
    let used = number("settled_number").saturating_add(number("held_number"));
    let used = match number("amount_number") {
        0 => "-".to_owned(),
        amount => format!("{}%", u128::from(used) * 100 / u128::from(amount)),
    };
    let spent = match instant(&budget["spent_unix_ms"]) {
        Some(_) if number("amount_number") <= number("settled_number") => "now".to_owned(),
        spent => spent.unwrap_or_else(|| "-".to_owned()),
    };
    let [amount, settled, held] = ["amount", "settled", "held"].map(text);
    [text("domain"), text("descriptor"), amount, settled, held, used, spent]
}

/// Describes a budget in lines such as `  settled  12.50 usd`.
fn describe(budget: &Value) -> String {
    let text = |name: &str| budget[name].as_str().unwrap_or_default();
    let mut lines = format!("{} ({})\n", text("key"), text("path"));
    let holds = match budget["open_holds"].as_u64().unwrap_or(0) {
        1 => "1 request".to_owned(),
        holds => format!("{holds} requests"),
    };
    let rows = [
        ("amount", text("amount").to_owned()),
        ("settled", text("settled").to_owned()),
        ("held", format!("{} by {holds}", text("held"))),
        ("free", text("free").to_owned()),
        ("excess", text("excess").to_owned()),
        ("new period", instant(&budget["ends_unix_ms"]).unwrap_or_else(|| "never".to_owned())),
        (
            "spent at this rate",
            instant(&budget["spent_unix_ms"]).unwrap_or_else(|| "not in this period".to_owned()),
        ),
    ];
    for (name, value) in rows {
        // Writing to a string cannot fail.
        let _infallible = writeln!(lines, "  {name:<18}  {value}");
    }
    lines
}

fn instant(millis: &Value) -> Option<String> {
    let timestamp = Timestamp::from_millisecond(millis.as_i64()?).ok()?;
    Some(timestamp.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

fn to_csv(page: &Value) -> String {
    let mut csv = CSV_HEAD.to_owned();
    for budget in budgets(page) {
        let unit = budget["unit"].as_str().unwrap_or_default();
        for period in budget["periods"].as_array().into_iter().flatten() {
            // A prepaid budget has one period, without a start.
            let start = period["start_unix_ms"].as_i64().filter(|millis| *millis != 0);
            let start = start.and_then(|millis| Timestamp::from_millisecond(millis).ok());
            let start = start.map(|start| start.to_string()).unwrap_or_default();
            let _infallible = writeln!(
                csv,
                "{},{},{unit},{start},{},{},{}",
                quoted(budget["key"].as_str().unwrap_or_default()),
                quoted(budget["path"].as_str().unwrap_or_default()),
                decimal(period["settled_number"].as_u64().unwrap_or(0), unit),
                period["requests"],
                period["expired"]
            );
        }
    }
    csv
}

/// Formats an amount in whole tokens, or in units of the currency.
fn decimal(amount: u64, unit: &str) -> String {
    if unit.ends_with("tokens") {
        return amount.to_string();
    }
    format!("{}.{:06}", amount / MILLIONTHS, amount % MILLIONTHS)
}

/// Quotes a field of CSV that contains a separator, or that a spreadsheet would read as a formula.
fn quoted(field: &str) -> String {
    let is_formula = field.starts_with(['=', '+', '-', '@']);
    let field = if is_formula { format!("'{field}") } else { field.to_owned() };
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field
    }
}
