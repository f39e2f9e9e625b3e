//! Explains the concurrency limit of a descriptor.

use serde::{Deserialize, Serialize};

use crate::Config;
use crate::concurrency::{ConcurrencyLimit, RequesterRule};
use crate::kernel::units::Nanos;
use crate::table_limits::FromTable;

/// The concurrency limit of a descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub struct ConcurrencyExplanation {
    /// The full path of the rule with this concurrency limit.
    pub path: String,
    /// The file and line of the rule, `file:line`.
    pub location: String,
    /// The concurrency limit as text, such as `64 in flight, rejected with 503`.
    pub text: String,
    /// The row of a table that has the number of this limit (`from`), as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_table: Option<String>,
    /// The class of the request as text, such as `batch, below 50% of the limit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The customer of the request as text, such as `acme, weight 4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub customer: Option<String>,
    /// The state of the limit's bucket. Present only if a running service reported it and the
    /// bucket was used recently.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<BucketSnapshot>,
}

/// The state of one concurrency bucket at one instant.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct BucketSnapshot {
    /// The number of requests in flight.
    pub in_flight: u64,
    /// The number of requests that wait in the queue.
    pub waiting: u64,
    /// The limit that is in effect; an adaptive limit changes with latency.
    pub limit: u64,
    /// The rate of a limit with a pace, in requests per second. `limit` is in requests per unit then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<f64>,
    /// The smoothed latency of successful requests, if it is measured.
    pub rtt: Option<String>,
    /// The latency without queueing, if the algorithm measures it.
    pub min_rtt: Option<String>,
    /// The ratio `min_rtt / rtt`: 1 without queueing, less with queueing.
    pub gradient: Option<f64>,
}

/// Returns the explanation of the concurrency limit `own`, with its number at the instant `now`.
/// `check` has all entries of the check, which may name a class and a customer.
pub(super) fn explain_concurrency(
    config: &Config,
    own: &ConcurrencyLimit,
    entries: &[(&str, &str)],
    check: &[Vec<(&str, &str)>],
    now: Nanos,
) -> ConcurrencyExplanation {
    let column = own.from.as_deref();
    let row = column.and_then(|column| Some((column, entries.get(column.entry)?.1)));
    let found = row.map(|(column, id)| config.tables.concurrency_limit(column, id, now));
    let text = match found {
        Some(FromTable::Limit(limit)) => limit.to_string(),
        Some(FromTable::Unlimited) => "unlimited".to_owned(),
        _ => own.to_string(),
    };
    let from_table = row.map(|(column, id)| config.tables.describe(column, id, now));
    let (path, location) = (own.path.to_string(), own.location.to_string());
    let value_of = |key: &str| {
        let entry = check.iter().flatten().find(|(name, _)| *name == key);
        entry.map(|(_, value)| *value)
    };
    let rule = own.requesters.as_deref();
    let class = rule.and_then(|rule| class_text(own, rule, value_of));
    let customer = rule.and_then(|rule| customer_text(config, rule, value_of, now));
    ConcurrencyExplanation { path, location, text, from_table, class, customer, now: None }
}

fn class_text<'v>(
    limit: &ConcurrencyLimit,
    rule: &RequesterRule,
    value_of: impl Fn(&str) -> Option<&'v str>,
) -> Option<String> {
    let class = limit.rules.classes.clamp(rule.keys.class_of(value_of));
    let name = rule.keys.class_names.get(usize::from(class))?;
    let percent = limit.rules.classes.percents().get(usize::from(class))?;
    Some(format!("{name}, below {percent}% of the limit"))
}

fn customer_text<'v>(
    config: &Config,
    rule: &RequesterRule,
    value_of: impl Fn(&str) -> Option<&'v str>,
    now: Nanos,
) -> Option<String> {
    rule.keys.customer.as_ref()?;
    let known = rule.keys.customer_of(value_of).and_then(|customer| {
        let column = rule.weight.as_ref();
        let weight =
            column.map_or(Some(1), |column| config.tables.weight(column, customer, now))?;
        Some(format!("{customer}, weight {weight}"))
    });
    Some(known.unwrap_or_else(|| "shared part of all unknown customers, weight 1".to_owned()))
}
