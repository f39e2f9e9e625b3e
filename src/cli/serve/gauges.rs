//! Converts requests in flight and lease balances to metrics.
//!
//! Not covered:
//! - The selection of limits with their own series: see [`metrics`].

use crate::engine::ceilings::InUse;
use crate::engine::{Engine, admit};
use crate::telemetry::metrics;

pub(super) fn ceilings(engine: &Engine, in_use: &[metrics::Ceiling]) -> metrics::Total {
    let count = |number| u64::try_from(number).unwrap_or(u64::MAX);
    let admit::Total { buckets, most, in_flight, waiting } = engine.ceilings().total();
    let limit = in_use.iter().map(|ceiling| ceiling.limit).fold(0, u64::saturating_add);
    let (waiting, buckets, most) = (count(waiting), count(buckets), count(most));
    let (early, most_early) = engine.early_releases();
    let (early, most_early) = (count(early), most_early.into());
    metrics::Total { in_flight, waiting, limit, buckets, most, early, most_early }
}

pub(super) fn in_use(engine: &Engine) -> Vec<metrics::Ceiling> {
    let ceiling = |(path, all): (Box<str>, InUse)| metrics::Ceiling {
        path,
        in_flight: all.in_flight,
        waiting: all.waiting,
        limit: all.limit,
        rtt: all.busiest.and_then(|look| look.rtt),
        min_rtt: all.busiest.and_then(|look| look.min_rtt),
        gradient: all.busiest.and_then(|look| look.gradient()),
    };
    engine.ceilings_in_use().into_iter().map(ceiling).collect()
}

pub(super) fn balances(engine: &Engine) -> metrics::Balances {
    let sum = engine.leases().map(|leases| leases.sum()).unwrap_or_default();
    metrics::Balances { keys: u64::try_from(sum.keys).unwrap_or(u64::MAX), hits: sum.hits.0 }
}
