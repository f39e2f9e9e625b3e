//! Counts the decisions that this proxy made, and reports them to Sluicegate.
//!
//! Guarantees:
//! - A decision is reported once, within a second while Sluicegate is connected.
//! - Counts continue after a rule is fetched again.
//!
//! Not covered:
//! - A report on a connection that is lost: its counts are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;
use prost::Message as _;

use crate::answer::Verdict;
use crate::request::OwnedDescriptor;
use crate::wire::api::KeyUsage;

/// The largest number of keys in one report.
pub(crate) const MAX_REPORTED_KEYS: usize = 1_000;

/// The largest size of the keys of a report with several keys, in bytes. It is half of the largest
/// message of Sluicegate.
const MAX_REPORT_BYTES: usize = 512 * 1_024;

/// The first size of the list, so that few requests pay for its growth.
const LIST_CAPACITY: usize = 1_024;

/// The decisions about one descriptor since the last report.
#[derive(Debug)]
pub(crate) struct DescriptorUsage {
    pub(crate) descriptor: OwnedDescriptor,
    allowed: AtomicU64,
    denied: AtomicU64,
    shadow_denied: AtomicU64,
    fallback_allowed: AtomicU64,
    fallback_denied: AtomicU64,
    /// `true` while the list of changed descriptors has this one.
    is_listed: AtomicBool,
}

/// The descriptors with decisions since the last report.
#[derive(Debug)]
pub(crate) struct UsageList(Mutex<Vec<Arc<DescriptorUsage>>>);

impl Default for UsageList {
    fn default() -> Self {
        Self(Mutex::new(Vec::with_capacity(LIST_CAPACITY)))
    }
}

impl DescriptorUsage {
    pub(crate) const fn new(descriptor: OwnedDescriptor) -> Self {
        Self {
            descriptor,
            allowed: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            shadow_denied: AtomicU64::new(0),
            fallback_allowed: AtomicU64::new(0),
            fallback_denied: AtomicU64::new(0),
            is_listed: AtomicBool::new(false),
        }
    }

    const fn counter(&self, verdict: Verdict, is_shadowed: bool) -> &AtomicU64 {
        match verdict {
            _ if is_shadowed => &self.shadow_denied,
            Verdict::Allow => &self.allowed,
            Verdict::Deny => &self.denied,
            Verdict::FallbackAllow => &self.fallback_allowed,
            Verdict::FallbackDeny => &self.fallback_denied,
        }
    }

    /// Takes the counts as a message, or `None` if all are 0.
    fn take(&self) -> Option<KeyUsage> {
        let take = |count: &AtomicU64| count.swap(0, SeqCst);
        let (allowed, denied) = (take(&self.allowed), take(&self.denied));
        let shadow_denied = take(&self.shadow_denied);
        let fallbacks = (take(&self.fallback_allowed), take(&self.fallback_denied));
        let usage = KeyUsage {
            domain: self.descriptor.domain.to_string(),
            entries: self.descriptor.entry_messages(),
            allowed_requests: allowed,
            denied_requests: denied,
            shadow_denied_requests: shadow_denied,
            fallback_allowed_requests: fallbacks.0,
            fallback_denied_requests: fallbacks.1,
            allowed_hits: allowed.saturating_add(shadow_denied).saturating_add(fallbacks.0),
            denied_hits: denied.saturating_add(fallbacks.1),
        };
        (usage.allowed_hits != 0 || usage.denied_hits != 0).then_some(usage)
    }
}

impl UsageList {
    /// Counts a decision of this proxy. `is_shadowed`: shadow mode turned a denial into `verdict`.
    pub(crate) fn count(&self, usage: &Arc<DescriptorUsage>, verdict: Verdict, is_shadowed: bool) {
        // Sequentially consistent: either this thread sees that the descriptor is no longer listed,
        // or the report sees the count.
        usage.counter(verdict, is_shadowed).fetch_add(1, SeqCst);
        if !usage.is_listed.load(SeqCst) && !usage.is_listed.swap(true, SeqCst) {
            self.0.lock().push(Arc::clone(usage));
        }
    }

    /// Takes the counts of all descriptors, in reports of at most [`MAX_REPORTED_KEYS`] and about
    /// [`MAX_REPORT_BYTES`].
    pub(crate) fn take_reports(&self) -> Vec<Vec<KeyUsage>> {
        let capacity = self.0.lock().capacity();
        let listed = std::mem::replace(&mut *self.0.lock(), Vec::with_capacity(capacity));
        let take = |usage: &Arc<DescriptorUsage>| {
            // Before the counts are read: a decision meanwhile lists the descriptor again.
            usage.is_listed.store(false, SeqCst);
            usage.take()
        };
        let (mut reports, mut bytes) = (Vec::<Vec<KeyUsage>>::new(), 0_usize);
        for usage in listed.iter().filter_map(take) {
            let more = usage.encoded_len();
            bytes = bytes.saturating_add(more);
            match reports.last_mut() {
                Some(report) if report.len() < MAX_REPORTED_KEYS && bytes <= MAX_REPORT_BYTES => {
                    report.push(usage);
                }
                _ => {
                    reports.push(vec![usage]);
                    bytes = more;
                }
            }
        }
        reports
    }
}

#[cfg(test)]
mod tests;
