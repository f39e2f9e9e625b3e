//! Formats the classes in a reply of `/concurrency` as a table.
//!
//! Guarantees:
//! - Limits with the most requests in flight come first, and the classes of a limit in their order.
//!
//! Not covered:
//! - Other replicas: each one rejects and serves its own requests.

use std::fmt::Write as _;

use serde::Deserialize;

use super::table::printable;
use crate::cli::args::TopArgs;

/// The reply of `/concurrency`.
#[derive(Debug, Deserialize)]
pub(super) struct ConcurrencyPage {
    limits: Vec<LimitRow>,
    /// The limits in use that the page leaves out.
    omitted: u64,
}

#[derive(Debug, Deserialize)]
struct LimitRow {
    domain: Option<String>,
    path: String,
    requesters: Option<Requesters>,
}

#[derive(Debug, Deserialize)]
struct Requesters {
    classes: Vec<ClassRow>,
}

#[derive(Debug, Deserialize)]
struct ClassRow {
    class: String,
    part: u64,
    in_flight: u64,
    waiting: u64,
    rejected: u64,
}

/// Formats the classes of the limits that `args` names.
pub(super) fn class_table(page: &ConcurrencyPage, args: &TopArgs) -> String {
    let is_named = |limit: &&LimitRow| args.domain.is_none() || args.domain == limit.domain;
    let limits = page.limits.iter().filter(is_named);
    let limits = limits.filter(|limit| args.rule.as_ref().is_none_or(|rule| *rule == limit.path));
    let rows: Vec<_> = limits
        .flat_map(|limit| {
            let classes = limit.requesters.iter().flat_map(|it| &it.classes);
            classes.map(|class| (printable(&limit.path), class))
        })
        .collect();
    if rows.is_empty() {
        return format!("no limit with classes{} is in use at this replica\n", filter_text(args))
            + &omitted_text(page);
    }
    let width = rows.iter().map(|(path, _)| path.chars().count()).max().unwrap_or(0).max(5);
    let mut text =
        "this replica: rejected since its start; the rest of the busiest bucket now\n".to_owned();
    line(&mut text, width, ["REJECTED", "WAITING", "IN FLIGHT", "PART", "LIMIT", "CLASS"]);
    for (path, class) in rows.into_iter().take(args.rows) {
        let [rejected, waiting, in_flight, part] =
            [class.rejected, class.waiting, class.in_flight, class.part].map(|it| it.to_string());
        let name = printable(&class.class);
        line(&mut text, width, [&rejected, &waiting, &in_flight, &part, &path, &name]);
    }
    text + &omitted_text(page)
}

const fn filter_text(args: &TopArgs) -> &'static str {
    match (&args.domain, &args.rule) {
        (None, None) => "",
        (Some(_), None) => " and this --domain",
        (None, Some(_)) => " and this --rule",
        (Some(_), Some(_)) => " and this --domain and --rule",
    }
}

fn omitted_text(page: &ConcurrencyPage) -> String {
    match page.omitted {
        0 => String::new(),
        omitted => format!("{omitted} limits with fewer requests in flight are not shown\n"),
    }
}

fn line(text: &mut String, width: usize, cells: [&str; 6]) {
    let [rejected, waiting, in_flight, part, limit, class] = cells;
    let _infallible = writeln!(
        text,
        "{rejected:>10} {waiting:>9} {in_flight:>9} {part:>6}  {limit:<width$}  {class}"
    );
}
