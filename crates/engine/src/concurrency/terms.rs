//! The parameters with which this replica enforces a concurrency limit.

use crate::concurrency::{SharedLimit, StrictLimit};
use crate::config::concurrency::{ConcurrencyLimit, ConcurrencyMode};
use crate::fleet::reporter::FleetReporter;

/// Returns the sharing parameters of a limit in mode `shared`. `None` for modes `local` and
/// `strict`.
pub(crate) fn shared_limit(limit: &ConcurrencyLimit) -> Option<SharedLimit> {
    if matches!(limit.mode, Some(ConcurrencyMode::Local | ConcurrencyMode::Strict)) {
        return None;
    }
    let (max_duration, on_failure) = (limit.max_duration, limit.on_store_failure);
    Some(SharedLimit::new(&limit.rules, limit.aggregate, max_duration, on_failure))
}

/// Returns the parameters of a limit in mode `strict`. `None` for other modes.
pub(super) fn strict_limit(fleet: &FleetReporter, limit: &ConcurrencyLimit) -> Option<StrictLimit> {
    let is_strict = limit.mode == Some(ConcurrencyMode::Strict);
    is_strict.then(|| fleet.strict_limit(&limit.rules, limit.max_duration, limit.on_store_failure))
}
