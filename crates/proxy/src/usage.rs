//! Counts the decisions that this proxy made, and reports them to Sluicegate.
//!
//! Guarantees:
//! - A decision is reported once, within a second while Sluicegate is connected.
//! - Counts continue after a rule is fetched again.
//! - The list of changed descriptors has a largest size in bytes.
//!
//! Not covered:
//! - A descriptor beyond this size is reported after its next decision.
//! - A report on a connection that is lost: its counts are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;
use prost::Message as _;

use crate::kernel::decision::RuleVerdict;
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
    /// The number of requests by [`RuleVerdict`].
    counts: [AtomicU64; RuleVerdict::ALL.len()],
    /// `true` while the list of changed descriptors has this one.
    is_listed: AtomicBool,
}

/// The descriptors with decisions since the last report.
#[derive(Debug)]
pub(crate) struct UsageList {
    listed: Mutex<ListedUsage>,
    max_bytes: usize,
}

#[derive(Debug)]
struct ListedUsage {
    list: Vec<Arc<DescriptorUsage>>,
    bytes: usize,
}

impl ListedUsage {
    fn with_capacity(capacity: usize) -> Self {
        Self { list: Vec::with_capacity(capacity), bytes: 0 }
    }
}

impl DescriptorUsage {
    pub(crate) const fn new(descriptor: OwnedDescriptor) -> Self {
        Self {
            descriptor,
            counts: [const { AtomicU64::new(0) }; RuleVerdict::ALL.len()],
            is_listed: AtomicBool::new(false),
        }
    }

    /// Takes the counts as a message, or `None` if all are 0.
    fn take(&self) -> Option<KeyUsage> {
        // In the order of `RuleVerdict`.
        let [allowed, denied, shadow_denied, fallback_allowed, fallback_denied] =
            self.counts.each_ref().map(|count| count.swap(0, SeqCst));
        let usage = KeyUsage {
            domain: self.descriptor.domain.to_string(),
            entries: self.descriptor.entry_messages(),
            allowed_requests: allowed,
            denied_requests: denied,
            shadow_denied_requests: shadow_denied,
            fallback_allowed_requests: fallback_allowed,
            fallback_denied_requests: fallback_denied,
            allowed_hits: allowed.saturating_add(shadow_denied).saturating_add(fallback_allowed),
            denied_hits: denied.saturating_add(fallback_denied),
        };
        (usage.allowed_hits != 0 || usage.denied_hits != 0).then_some(usage)
    }
}

impl UsageList {
    /// Creates an empty list of at most `max_bytes`.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { listed: Mutex::new(ListedUsage::with_capacity(LIST_CAPACITY)), max_bytes }
    }

    /// Counts a decision of this proxy.
    pub(crate) fn count(&self, usage: &Arc<DescriptorUsage>, verdict: RuleVerdict) {
        // Sequentially consistent: either this thread sees that the descriptor is no longer listed,
        // or the report sees the count.
        usage.counts[verdict as usize].fetch_add(1, SeqCst);
        if !usage.is_listed.load(SeqCst) && !usage.is_listed.swap(true, SeqCst) {
            self.list(usage);
        }
    }

    fn list(&self, usage: &Arc<DescriptorUsage>) {
        let bytes = usage.descriptor.text_bytes() + size_of::<DescriptorUsage>();
        let mut listed = self.listed.lock();
        if self.max_bytes < listed.bytes + bytes {
            usage.is_listed.store(false, SeqCst);
        } else {
            listed.bytes += bytes;
            listed.list.push(Arc::clone(usage));
        }
    }

    /// Takes the counts of all descriptors, in reports of at most [`MAX_REPORTED_KEYS`] and about
    /// [`MAX_REPORT_BYTES`].
    pub(crate) fn take_reports(&self) -> Vec<Vec<KeyUsage>> {
        let capacity = self.listed.lock().list.capacity();
        let empty = ListedUsage::with_capacity(capacity);
        let listed = std::mem::replace(&mut *self.listed.lock(), empty).list;
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
