//! Counts the requests that got a permit and those that did not, by bucket.
//!
//! Guarantees:
//! - A request is reported at most once. With at most 1,000 busy buckets, it is reported within a
//!   second while Sluicegate is connected.
//! - Memory is bounded: further buckets are not counted.
//!
//! Not covered:
//! - A report on a connection that is lost: its counts are lost.

use std::collections::HashMap;

use parking_lot::Mutex;
use prost::Message as _;
use sluicegate_concurrency::limits::{BucketLoad, BucketMetrics, BucketName};

use crate::kernel::decision::{Reason, RuleVerdict};
use crate::wire::api::ConcurrencyUsage;

/// The largest number of buckets in a report.
const MAX_REPORTED_BUCKETS: usize = 1_000;

/// The largest size of the buckets in a report, in bytes. With the keys, it is below the largest
/// message of Sluicegate.
const MAX_REPORT_BYTES: usize = 256 * 1_024;

/// The verdicts since the last report.
#[derive(Debug)]
pub(super) struct PermitUsage {
    counts: Mutex<HashMap<BucketName, ConcurrencyUsage>>,
    /// The largest number of buckets with counts between two reports.
    max_buckets: usize,
}

impl PermitUsage {
    pub(super) fn new(max_buckets: usize) -> Self {
        Self { counts: Mutex::default(), max_buckets }
    }

    /// Counts a verdict. `reason` is that of a denial.
    pub(super) fn count(&self, bucket: &[u8], (verdict, reason): (RuleVerdict, Reason)) {
        let mut counts = self.counts.lock();
        // Without a connection, no report takes the counts.
        let has_room = counts.len() < self.max_buckets;
        if let Some(counts) = counts.get_mut(bucket) {
            add(counts, verdict, reason);
        } else if has_room {
            add(counts.entry(bucket.into()).or_default(), verdict, reason);
        }
    }

    /// Takes the counts, with the loads of the buckets. Buckets with requests come first.
    pub(super) fn take(&self, buckets: Vec<(BucketName, BucketMetrics)>) -> Vec<ConcurrencyUsage> {
        let mut counts = std::mem::take(&mut *self.counts.lock());
        for (bucket, metrics) in buckets {
            set_load(counts.entry(bucket).or_default(), metrics.load);
        }
        let named = counts.into_iter();
        let mut list: Vec<_> = named
            .map(|(bucket, usage)| ConcurrencyUsage { bucket: bucket.into(), ..usage })
            .collect();
        list.sort_by_key(|usage| std::cmp::Reverse(requests(usage)));
        let rest = list.split_off(list.len().min(reported_buckets(&list)));
        self.keep_counts(&rest);
        list
    }

    /// Adds the counts of buckets that did not fit into the report to those of the next report.
    fn keep_counts(&self, rest: &[ConcurrencyUsage]) {
        let mut counts = self.counts.lock();
        for usage in rest.iter().filter(|usage| counts_of(usage) != [0; 6]) {
            let kept = counts.entry(usage.bucket.as_slice().into()).or_default();
            for (count, more) in counts_mut(kept).into_iter().zip(counts_of(usage)) {
                *count = count.saturating_add(more);
            }
        }
    }
}

/// Returns the number of buckets that fit into a report.
fn reported_buckets(list: &[ConcurrencyUsage]) -> usize {
    let fits = |bytes: &mut usize, usage: &ConcurrencyUsage| {
        *bytes = bytes.saturating_add(usage.encoded_len());
        (*bytes <= MAX_REPORT_BYTES).then_some(())
    };
    list.iter().scan(0, fits).take(MAX_REPORTED_BUCKETS).count()
}

const fn add(usage: &mut ConcurrencyUsage, verdict: RuleVerdict, reason: Reason) {
    let count = match (verdict, reason) {
        (RuleVerdict::ShadowDeny, _) => &mut usage.shadow_rejected_requests,
        (RuleVerdict::Allow | RuleVerdict::FallbackAllow, _) => &mut usage.allowed_requests,
        (_, Reason::QueueFull) => &mut usage.rejected_queue_full,
        (_, Reason::QueueTimeout) => &mut usage.rejected_queue_timeout,
        (_, Reason::TooManyBuckets) => &mut usage.rejected_too_many_buckets,
        _ => &mut usage.rejected_full,
    };
    *count = count.saturating_add(1);
}

const fn counts_mut(usage: &mut ConcurrencyUsage) -> [&mut u64; 6] {
    [
        &mut usage.allowed_requests,
        &mut usage.rejected_full,
        &mut usage.rejected_queue_full,
        &mut usage.rejected_queue_timeout,
        &mut usage.rejected_too_many_buckets,
        &mut usage.shadow_rejected_requests,
    ]
}

fn counts_of(usage: &ConcurrencyUsage) -> [u64; 6] {
    counts_mut(&mut usage.clone()).map(|count| *count)
}

fn set_load(usage: &mut ConcurrencyUsage, load: BucketLoad) {
    usage.in_flight = load.in_flight;
    usage.waiting = u32::try_from(load.waiting).unwrap_or(u32::MAX);
    usage.limit = load.limit;
}

fn requests(usage: &ConcurrencyUsage) -> u64 {
    counts_of(usage).into_iter().fold(usage.in_flight.into(), u64::saturating_add)
}

#[cfg(test)]
mod tests;
