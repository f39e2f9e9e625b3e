//! Counts the last different descriptors that matched no rule, for the admin page `/recent`.
//!
//! Guarantees:
//! - At most [`MAX_DESCRIPTORS`] descriptors are kept, in the form of [`super::check_text`].
//! - A check whose descriptors all match a rule takes no lock.
//! - No check waits: if another thread has the lock, the check is not counted.
//!
//! Not covered:
//! - Descriptors whose rule has no rate limit, or that meet a budget, because they match a rule.
//! - Descriptors with the class or the customer of a concurrency limit.

mod calls;

use std::hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState};

use parking_lot::Mutex;

use crate::check_text::{MAX_SHOWN, NO_DOMAIN, short_entries, short_text};
use crate::config::Domain;
use crate::config::descriptor_text::format_entries;
use crate::config::settings::DescriptorValues;
use crate::config::tree::miss::{LookupMiss, MissReason};
use crate::decide::limit_plan::LimitPlan;
use crate::kernel::units::Nanos;

/// The largest number of descriptors that are kept. A new one replaces the one with the oldest
/// last check.
const MAX_DESCRIPTORS: usize = 100;

/// A descriptor that matched no rule.
#[derive(Clone, Debug)]
pub struct UnmatchedDescriptor {
    hash: u64,
    miss: DescriptorMiss,
    /// The domain of the checks.
    pub domain: String,
    /// The entries, with values as `telemetry.descriptor_values` selects.
    pub entries: Vec<(String, String)>,
    /// The number of checks since the descriptor entered the list.
    pub checks: u64,
    /// The instant of the last check, since the Unix epoch.
    pub last: Nanos,
}

#[derive(Clone, Copy, Debug)]
enum DescriptorMiss {
    Domain,
    Rule(LookupMiss),
}

impl UnmatchedDescriptor {
    /// Returns the reason why the last check matched no rule, as a clause.
    #[must_use]
    pub fn reason(&self) -> String {
        let DescriptorMiss::Rule(LookupMiss { entry, reason }) = self.miss else {
            return NO_DOMAIN.to_owned();
        };
        let entry = self.entries.get(entry).map(|(key, value)| (&**key, &**value));
        reason.describe(&format_entries(entry))
    }
}

/// The last different descriptors that matched no rule.
#[derive(Debug, Default)]
pub(super) struct UnmatchedDescriptors {
    hasher: RandomState,
    descriptors: Mutex<Vec<UnmatchedDescriptor>>,
}

impl UnmatchedDescriptors {
    fn count(
        &self,
        (domain, entries): (&str, &[(&str, &str)]),
        miss: DescriptorMiss,
        values: DescriptorValues,
        now: Nanos,
    ) {
        let hash = self.hash(domain, entries, values);
        let Some(mut descriptors) = self.descriptors.try_lock() else { return };
        if let Some(known) = descriptors.iter_mut().find(|known| known.hash == hash) {
            (known.checks, known.last, known.miss) = (known.checks + 1, now, miss);
            return;
        }
        let (domain, entries) = (short_text(domain).into_owned(), short_entries(entries, values));
        let new = UnmatchedDescriptor { hash, miss, domain, entries, checks: 1, last: now };
        if descriptors.len() < MAX_DESCRIPTORS {
            descriptors.push(new);
        } else if let Some(oldest) = descriptors.iter_mut().min_by_key(|known| known.last) {
            *oldest = new;
        }
    }

    fn hash(&self, domain: &str, entries: &[(&str, &str)], values: DescriptorValues) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        short_text(domain).hash(&mut hasher);
        for (key, value) in entries.iter().take(MAX_SHOWN) {
            short_text(key).hash(&mut hasher);
            match values {
                DescriptorValues::Shown => short_text(value).hash(&mut hasher),
                DescriptorValues::Hashed => value.hash(&mut hasher),
                DescriptorValues::Hidden => (),
            }
        }
        hasher.finish()
    }
}

fn find_miss(domain: Option<&Domain>, entries: &[(&str, &str)]) -> Option<DescriptorMiss> {
    let Some(Domain { tree, .. }) = domain else { return Some(DescriptorMiss::Domain) };
    let miss = tree.find_miss(entries)?;
    let is_matched = miss.reason == MissReason::NoRateLimit
        || tree.lookup_concurrency_limit(entries.iter().copied()).is_some()
        || !tree.lookup_budgets(entries).is_empty()
        || tree.has_requester_key(entries);
    (!is_matched).then_some(DescriptorMiss::Rule(miss))
}

const fn is_unmatched(plan: &LimitPlan<'_>) -> bool {
    matches!(plan, LimitPlan::NoRule)
}
