//! The permits of a check while it acquires them one by one.
//!
//! Guarantees:
//! - If an earlier permit expires while the check waits for the next one, `add` returns `false`.

use std::sync::Arc;

use smallvec::SmallVec;

use super::request_permits::RequestPermits;
use crate::concurrency::PermitGuard;
use crate::config::RuleNumber;
use crate::config::concurrency::ConcurrencyLimit;
use crate::telemetry::event::RuleVerdict;

/// The permits that a check has acquired so far.
#[derive(Default)]
pub(super) struct PermitCollector {
    permits: RequestPermits,
    /// The verdicts of the limits, to count once all permits are acquired.
    pub(super) verdicts: SmallVec<[(RuleNumber, RuleVerdict); 2]>,
    /// Permits of limits in shadow mode. The check does not start again if one expires.
    shadow: Vec<PermitGuard>,
    /// The path of the first limit in shadow mode that would have rejected the check.
    pub(super) shadow_rejected_by: Option<Arc<str>>,
}

impl PermitCollector {
    /// Adds a permit, and restarts the deadlines of the earlier ones, because the caller cannot
    /// renew them before the last acquire. Returns `false` if an earlier permit has expired.
    pub(super) fn add(&mut self, permit: Option<PermitGuard>, shadow: bool) -> bool {
        self.shadow.retain(PermitGuard::renew);
        let expired = self.permits.0.iter().filter(|held| !held.renew()).count();
        if shadow {
            self.shadow.extend(permit);
        } else {
            self.permits.0.extend(permit);
        }
        expired == 0
    }

    /// Adds the verdict of a limit, unless its rule also has a rate limit. Then the decision of the
    /// rate limit is counted instead.
    pub(super) fn add_verdict(&mut self, limit: &ConcurrencyLimit, has_permit: bool) {
        let verdict = if has_permit { RuleVerdict::Allow } else { RuleVerdict::ShadowDeny };
        if !limit.has_rate_limit {
            self.verdicts.push((limit.number, verdict));
        }
    }

    pub(super) fn into_permits(mut self) -> RequestPermits {
        self.permits.0.extend(self.shadow);
        self.permits
    }

    /// Records that the limit is in shadow mode and would have rejected the check.
    pub(super) fn add_shadow_rejection(&mut self, limit: &ConcurrencyLimit) {
        self.shadow_rejected_by.get_or_insert_with(|| Arc::from(&*limit.path));
    }
}
