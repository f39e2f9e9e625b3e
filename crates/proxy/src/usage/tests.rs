//! Each decision is reported once, in reports of a bounded size.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use prost::Message as _;

use super::{DescriptorUsage, MAX_REPORTED_KEYS, UsageList};
use crate::fixtures::usage_of;
use crate::kernel::decision::RuleVerdict;
use crate::wire::api::{KeyUsage, UsageReport};

/// The largest message that Sluicegate accepts.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// More than all decisions of a test.
const MAX_BYTES: usize = 1 << 30;

/// The counts of a report, in the order of [`RuleVerdict`].
const fn counts(usage: &KeyUsage) -> [u64; 5] {
    [
        usage.allowed_requests,
        usage.denied_requests,
        usage.shadow_denied_requests,
        usage.fallback_allowed_requests,
        usage.fallback_denied_requests,
    ]
}

fn take_counts(list: &UsageList) -> [u64; 5] {
    let mut sums = [0; 5];
    for usage in list.take_reports().iter().flatten() {
        let hits: u64 = counts(usage).iter().sum();
        assert_eq!(usage.allowed_hits + usage.denied_hits, hits);
        assert_eq!(usage.denied_hits, usage.denied_requests + usage.fallback_denied_requests);
        sums.iter_mut().zip(counts(usage)).for_each(|(sum, count)| *sum += count);
    }
    sums
}

#[test]
fn each_decision_is_counted_in_its_own_field() {
    for (index, verdict) in RuleVerdict::ALL.into_iter().enumerate() {
        let list = UsageList::new(MAX_BYTES);
        list.count(&usage_of("ann"), verdict);
        let mut expected = [0; 5];
        expected[index] = 1;
        assert_eq!(take_counts(&list), expected);
        assert_eq!(take_counts(&list), [0; 5], "it is reported once");
    }
}

#[test]
fn concurrent_decisions_are_reported_once() {
    const THREADS: u64 = 3;
    const REQUESTS: u64 = 20_000;
    let (list, usages) = (UsageList::new(MAX_BYTES), ["ann", "bob"].map(usage_of));
    let is_done = AtomicBool::new(false);
    let count_all = || {
        for _ in 0..REQUESTS {
            for verdict in RuleVerdict::ALL {
                for usage in &usages {
                    list.count(usage, verdict);
                }
            }
        }
    };
    let take_all = || {
        let mut sums = [0; 5];
        loop {
            let was_done = is_done.load(Relaxed);
            sums.iter_mut().zip(take_counts(&list)).for_each(|(sum, count)| *sum += count);
            if was_done {
                return sums;
            }
        }
    };
    let reported = thread::scope(|scope| {
        let taker = scope.spawn(take_all);
        let counters: Vec<_> = (0..THREADS).map(|_| scope.spawn(count_all)).collect();
        for counter in counters {
            counter.join().unwrap();
        }
        is_done.store(true, Relaxed);
        taker.join().unwrap()
    });
    assert_eq!(reported, [THREADS * REQUESTS * usages.len() as u64; 5]);
}

fn count_keys(list: &UsageList, keys: usize, suffix: &str) {
    for key in 0..keys {
        let usage: Arc<DescriptorUsage> = usage_of(&format!("{key}{suffix}"));
        list.count(&usage, RuleVerdict::Allow);
    }
}

#[test]
fn a_report_has_at_most_a_thousand_keys() {
    let list = UsageList::new(MAX_BYTES);
    count_keys(&list, 2 * MAX_REPORTED_KEYS + 1, "");
    let sizes: Vec<usize> = list.take_reports().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1_000, 1_000, 1]);
}

#[test]
fn reports_of_long_keys_fit_into_a_message() {
    let list = UsageList::new(MAX_BYTES);
    count_keys(&list, 300, &"x".repeat(60_000));
    let reports = list.take_reports();
    assert_eq!(reports.iter().map(Vec::len).sum::<usize>(), 300);
    for keys in reports {
        let report = UsageReport {
            keys,
            leased_keys: u64::MAX,
            leased_hits: u64::MAX,
            ..UsageReport::default()
        };
        assert!(report.encoded_len() < MAX_MESSAGE_BYTES, "{}", report.encoded_len());
    }
}

#[test]
fn a_descriptor_beyond_the_bound_is_reported_after_its_next_decision() {
    let list = UsageList::new(10_000);
    let usages: Vec<_> = (0..100).map(|key| usage_of(&key.to_string())).collect();
    let count = || usages.iter().for_each(|usage| list.count(usage, RuleVerdict::Allow));
    count();
    let first: usize = list.take_reports().iter().map(Vec::len).sum();
    assert!((1..100).contains(&first), "{first}");
    let mut allowed = u64::try_from(first).unwrap();
    for _ in 0..100 {
        usages.iter().rev().for_each(|usage| list.count(usage, RuleVerdict::Allow));
        allowed += take_counts(&list)[0];
        count();
        allowed += take_counts(&list)[0];
    }
    // The last decisions of some descriptors are not reported yet.
    assert!(allowed <= 100 * 201 && 100 * 100 < allowed, "{allowed}");
}
