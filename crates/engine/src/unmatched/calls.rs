//! Counts and lists the unmatched descriptors of an engine.

use super::{UnmatchedDescriptor, find_miss, is_unmatched};
use crate::Engine;
use crate::check_text::MAX_SHOWN;
use crate::decide::path::PreparedCheck;
use crate::kernel::decision::Descriptor;

impl Engine {
    /// Returns the last different descriptors that matched no rule, the latest first.
    #[must_use]
    pub fn unmatched_descriptors(&self) -> Vec<UnmatchedDescriptor> {
        let mut descriptors = self.unmatched.descriptors.lock().clone();
        descriptors.sort_by_key(|descriptor| std::cmp::Reverse(descriptor.last));
        descriptors
    }

    pub(crate) fn count_unmatched(&self, prepared: &PreparedCheck<'_, '_>) {
        if prepared.plan.limits.iter().any(is_unmatched) {
            self.count_each_unmatched(prepared);
        }
    }

    #[cold]
    fn count_each_unmatched(&self, prepared: &PreparedCheck<'_, '_>) {
        let PreparedCheck { config, check, now, plan, .. } = prepared;
        let unmatched =
            plan.with_descriptors(check).filter(|(plan, _)| is_unmatched(plan)).take(MAX_SHOWN);
        let (domain, values) = (config.domains.get(check.domain), self.policy.descriptor_values);
        for (_, Descriptor { entries, .. }) in unmatched {
            if let Some(miss) = find_miss(domain, entries) {
                self.unmatched.count((check.domain, entries), miss, values, *now);
            }
        }
    }
}
