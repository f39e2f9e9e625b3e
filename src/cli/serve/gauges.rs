//! Converts the engine's requests in flight and lease balances to gauges for metrics.
//!
//! Not covered:
//! - The selection of concurrency limits with separate metric series: see [`metrics`].

use crate::config::tables::TableState;
use crate::engine::concurrency::usage::ConcurrencyUsage;
use crate::engine::{Engine, concurrency};
use crate::telemetry::metrics;

pub(super) fn concurrency_totals(
    engine: &Engine,
    in_use: &[metrics::ConcurrencyGauges],
) -> metrics::ConcurrencyTotals {
    let count = |number| u64::try_from(number).unwrap_or(u64::MAX);
    let concurrency::BucketTotals { buckets, max_buckets: most, in_flight, waiting } =
        engine.concurrency_limits().totals();
    let limit = in_use.iter().map(|ceiling| ceiling.limit).fold(0, u64::saturating_add);
    let (waiting, buckets, most) = (count(waiting), count(buckets), count(most));
    let (early, most_early) = engine.early_releases();
    let (early, most_early) = (count(early), most_early.into());
    metrics::ConcurrencyTotals {
        in_flight,
        waiting,
        limit,
        buckets,
        max_buckets: most,
        early_releases: early,
        max_early_releases: most_early,
    }
}

pub(super) fn concurrency_usage(engine: &Engine) -> Vec<metrics::ConcurrencyGauges> {
    let to_gauges = |(path, usage): (Box<str>, ConcurrencyUsage)| metrics::ConcurrencyGauges {
        path,
        in_flight: usage.in_flight,
        waiting: usage.waiting,
        limit: usage.limit,
        rtt: usage.busiest.and_then(|snapshot| snapshot.rtt),
        min_rtt: usage.busiest.and_then(|snapshot| snapshot.min_rtt),
        gradient: usage.busiest.and_then(|snapshot| snapshot.gradient()),
    };
    engine.concurrency_in_use().into_iter().map(to_gauges).collect()
}

pub(super) fn tables(engine: &Engine) -> Vec<metrics::TableGauges> {
    let count = |number| u64::try_from(number).unwrap_or(u64::MAX);
    let to_gauges = |state: TableState| metrics::TableGauges {
        name: state.name,
        rows: state.table.map_or(0, |table| count(table.rows())),
        bad_rows: count(state.bad),
        confirmed_at: state.confirmed_at.unwrap_or_default(),
        is_stale: state.error.is_some(),
    };
    engine.table_states().all().into_iter().map(to_gauges).collect()
}

pub(super) fn lease_balances(engine: &Engine) -> metrics::LeaseTotals {
    let sum = engine.leases().map(|leases| leases.totals()).unwrap_or_default();
    metrics::LeaseTotals { keys: u64::try_from(sum.keys).unwrap_or(u64::MAX), hits: sum.hits.0 }
}
