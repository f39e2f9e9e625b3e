//! The parameters with which this replica enforces a concurrency limit.

use crate::config::concurrency::{ConcurrencyLimit, ConcurrencyMode};
use crate::engine::concurrency::{SharedLimit, StrictLimit};
use crate::engine::fleet::reporter::FleetReporter;
use crate::kernel::coordinator::ConcurrencyFallback;

/// Returns the sharing parameters of a limit in mode `shared`. `None` for modes `local` and
/// `strict`.
pub(in crate::engine) fn shared_limit(limit: &ConcurrencyLimit) -> Option<SharedLimit> {
    if matches!(limit.mode, Some(ConcurrencyMode::Local | ConcurrencyMode::Strict)) {
        return None;
    }
    let (max_duration, on_failure) = (limit.max_duration, limit.on_store_failure);
    Some(SharedLimit::new(&limit.rules, limit.aggregate, max_duration, on_failure))
}

/// Returns the parameters of a limit in mode `strict`. `None` for other modes.
pub(in crate::engine) fn strict_limit(
    fleet: &FleetReporter,
    limit: &ConcurrencyLimit,
) -> Option<StrictLimit> {
    let outage_limit = match limit.on_store_failure {
        ConcurrencyFallback::Deny => 0,
        ConcurrencyFallback::Local => {
            u32::try_from(fleet.outage_share(limit.rules.limit).0).unwrap_or(0)
        }
        ConcurrencyFallback::Allow => u32::MAX,
    };
    let (queue, max_duration) = (limit.rules.queue, limit.max_duration);
    let is_strict = limit.mode == Some(ConcurrencyMode::Strict);
    is_strict.then_some(StrictLimit { queue, max_duration, outage_limit })
}
