//! Verdicts are reported once, and loads with each report.

use super::*;

fn metrics(in_flight: u32, waiting: usize, limit: u32) -> BucketMetrics {
    let load = BucketLoad { in_flight, waiting, limit };
    BucketMetrics { load, rtt: None, min_rtt: None, pace: None }
}

const MAX_COUNTED_BUCKETS: usize = 10_000;

const ALLOWED: (RuleVerdict, Reason) = (RuleVerdict::Allow, Reason::WithinLimit);

#[test]
fn a_verdict_is_reported_once() {
    let usage = PermitUsage::new(MAX_COUNTED_BUCKETS);
    let verdicts = [
        ALLOWED,
        (RuleVerdict::Deny, Reason::ConcurrencyLimitReached),
        (RuleVerdict::Deny, Reason::QueueFull),
        (RuleVerdict::Deny, Reason::QueueTimeout),
        (RuleVerdict::Deny, Reason::TooManyBuckets),
        (RuleVerdict::ShadowDeny, Reason::QueueFull),
    ];
    for (index, verdict) in verdicts.into_iter().enumerate() {
        (0..=index).for_each(|_| usage.count(b"a", verdict));
    }
    let load = ConcurrencyUsage {
        bucket: b"a".to_vec(),
        in_flight: 3,
        waiting: 2,
        limit: 9,
        ..ConcurrencyUsage::default()
    };
    let counted = ConcurrencyUsage {
        allowed_requests: 1,
        rejected_full: 2,
        rejected_queue_full: 3,
        rejected_queue_timeout: 4,
        rejected_too_many_buckets: 5,
        shadow_rejected_requests: 6,
        ..load.clone()
    };
    let buckets = || vec![(BucketName::from(&b"a"[..]), metrics(3, 2, 9))];
    assert_eq!(usage.take(buckets()), [counted]);
    assert_eq!(usage.take(buckets()), [load]);
}

#[test]
fn a_full_report_has_the_buckets_with_requests() {
    let usage = PermitUsage::new(MAX_COUNTED_BUCKETS);
    let name = |number: usize| BucketName::from(&number.to_be_bytes()[..]);
    let buckets = (0..2 * MAX_REPORTED_BUCKETS).map(|number| (name(number), metrics(0, 0, 1)));
    let busy = name(2 * MAX_REPORTED_BUCKETS - 1);
    usage.count(&busy, ALLOWED);
    let report = usage.take(buckets.collect());
    assert_eq!((report.len(), &*report[0].bucket), (MAX_REPORTED_BUCKETS, &*busy));
}

#[test]
fn counts_between_two_reports_are_bounded() {
    let usage = PermitUsage::new(MAX_COUNTED_BUCKETS);
    for number in 0..MAX_COUNTED_BUCKETS + 1_000 {
        usage.count(&number.to_be_bytes(), ALLOWED);
    }
    assert_eq!(usage.counts.lock().len(), MAX_COUNTED_BUCKETS);
}

#[test]
fn counts_that_do_not_fit_are_in_the_next_report() {
    let usage = PermitUsage::new(MAX_COUNTED_BUCKETS);
    let buckets = 2 * MAX_REPORTED_BUCKETS + 1;
    for number in 0..buckets {
        usage.count(&number.to_be_bytes(), ALLOWED);
    }
    let sizes = [(); 4].map(|()| usage.take(Vec::new()).len());
    assert_eq!(sizes, [MAX_REPORTED_BUCKETS, MAX_REPORTED_BUCKETS, 1, 0]);
    let long = vec![7; 1_024];
    for number in 0..MAX_REPORTED_BUCKETS {
        usage.count(&[&long[..], &number.to_be_bytes()].concat(), ALLOWED);
    }
    let bytes: usize = usage.take(Vec::new()).iter().map(ConcurrencyUsage::encoded_len).sum();
    assert!((MAX_REPORT_BYTES - 2_048..=MAX_REPORT_BYTES).contains(&bytes), "{bytes}");
}

#[test]
fn kept_counts_are_added_to_newer_ones() {
    let usage = PermitUsage::new(MAX_COUNTED_BUCKETS);
    usage.count(b"a", ALLOWED);
    let counts = ConcurrencyUsage { allowed_requests: 2, rejected_full: 3, ..Default::default() };
    let kept = ConcurrencyUsage { bucket: b"a".to_vec(), in_flight: 7, limit: 9, ..counts };
    usage.keep_counts(std::slice::from_ref(&kept));
    let sum = ConcurrencyUsage { allowed_requests: 3, in_flight: 0, limit: 0, ..kept };
    assert_eq!(usage.take(Vec::new()), [sum]);
}
