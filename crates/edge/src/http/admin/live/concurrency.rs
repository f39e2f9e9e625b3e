//! Renders `/concurrency`: the concurrency limits in use at this replica, with their last hour.
//!
//! Guarantees:
//! - At most [`MAX_LIMITS`] limits, those with the most requests in flight first.
//! - The values of several buckets of a limit are summed; rates, RTTs, classes and customers are those of
//!   the busiest bucket. `rejected` counts all buckets of the limit.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde_json::{Value, json};

use super::rules::domains_by_path;
use super::series::series_json;
use crate::engine::Engine;
use crate::engine::concurrency::usage::ConcurrencyUsage;
use crate::engine::concurrency::{RequestersInUse, ShareSnapshot};
use crate::engine::history::MAX_LIMITS;
use crate::http::admin::permits::rate_per_second;
use crate::kernel::units::Nanos;

pub(super) fn concurrency(engine: &Engine) -> Value {
    let mut limits: Vec<_> = engine.concurrency_in_use().into_iter().collect();
    limits.sort_by(|(a_path, a), (b_path, b)| {
        (Reverse(a.in_flight), a_path).cmp(&(Reverse(b.in_flight), b_path))
    });
    let omitted = limits.len().saturating_sub(MAX_LIMITS);
    let shares = fleet_shares(engine);
    let config = engine.config();
    let domains = config.as_deref().map(domains_by_path).unwrap_or_default();
    let shown: Vec<_> = limits
        .iter()
        .take(MAX_LIMITS)
        .map(|(path, usage)| {
            let row = LimitRow { path, domain: domains.get(&**path).copied(), usage };
            limit_json(engine, &row, shares.get(path))
        })
        .collect();
    json!({"limits": shown, "omitted": omitted})
}

/// This replica's shares of one fleet-wide limit, summed over its buckets.
#[derive(Default)]
struct FleetShare {
    share: u64,
    fleet_limit: u64,
    replicas: u64,
}

fn fleet_shares(engine: &Engine) -> HashMap<Box<str>, FleetShare> {
    let mut shares = HashMap::<Box<str>, FleetShare>::new();
    let Some(reporter) = engine.concurrency_limits().fleet_reporter() else { return shares };
    for (name, ShareSnapshot { grant, share, .. }) in
        reporter.share_snapshots(engine.clock(), usize::MAX)
    {
        let (Some(path), Some(grant)) = (engine.concurrency_limit_path(&name), grant) else {
            continue;
        };
        let sum = shares.entry(path).or_default();
        sum.share = sum.share.saturating_add(share.0);
        sum.fleet_limit = sum.fleet_limit.saturating_add(grant.limit.0);
        sum.replicas = sum.replicas.max(grant.replicas);
    }
    shares
}

/// A limit in use, with the domain of its rule.
struct LimitRow<'r> {
    path: &'r str,
    domain: Option<&'r str>,
    usage: &'r ConcurrencyUsage,
}

fn limit_json(engine: &Engine, row: &LimitRow<'_>, share: Option<&FleetShare>) -> Value {
    let LimitRow { path, domain, usage } = *row;
    let micros = |time: Nanos| time.0 / Nanos::MICRO.0;
    let history = engine.limit_history(path).unwrap_or_default();
    let requesters =
        usage.busiest_name.as_deref().and_then(|bucket| engine.requesters_in_use(bucket));
    json!({
        "domain": domain,
        "path": path,
        "limit": usage.limit,
        "rate_per_second": usage.busiest.and_then(|busiest| busiest.pace).map(rate_per_second),
        "in_flight": usage.in_flight,
        "waiting": usage.waiting,
        "rtt_us": usage.busiest.and_then(|busiest| busiest.rtt).map(micros),
        "min_rtt_us": usage.busiest.and_then(|busiest| busiest.min_rtt).map(micros),
        "requesters": requesters.as_ref().map(requesters_json),
        "fleet": share.map(|share| json!({
            "share": share.share, "fleet_limit": share.fleet_limit, "replicas": share.replicas,
        })),
        "history": series_json(&history, &["limit", "in_flight", "waiting", "rtt_us"]),
    })
}

fn requesters_json(in_use: &RequestersInUse) -> Value {
    let classes = in_use.classes.iter().map(|(name, class, rejected)| {
        json!({
            "class": name,
            "part": class.part,
            "in_flight": class.in_flight,
            "waiting": class.waiting,
            "rejected": rejected,
        })
    });
    let customers = in_use.customers.iter().map(|(name, customer)| {
        json!({
            "customer": name,
            "weight": customer.weight,
            "in_flight": customer.in_flight,
            "waiting": customer.waiting,
        })
    });
    json!({"classes": classes.collect::<Vec<_>>(), "customers": customers.collect::<Vec<_>>()})
}
