//! Validates the messages of proxies and converts them to the engine's types.
//!
//! Guarantees:
//! - A value out of its range is an `INVALID_ARGUMENT` that names the field.
//!
//! Not covered:
//! - The order of messages (see [`super::lease_stream`]).

use std::net::SocketAddr;

use sluicegate_lease_protocol as wire;
use smallvec::SmallVec;
use tonic::Status;

use crate::engine::concurrency::BucketLoad;
use crate::engine::proxies::{
    ProxyBucket, ProxyConnection, ProxyCounter, ProxyHits, ProxyIdentity, ProxyPermitUsage,
    ProxyReport, ProxyUsage,
};
use crate::grpc::convert::{MAX_ENTRIES, MAX_ENTRY_KEY_BYTES, check_counts};
use crate::kernel::decision::{Check, Cost, Descriptor, Reason};
use crate::kernel::lease::{BorrowRequest, ReplicaIncarnation};
use crate::kernel::rate::Strategy;
use crate::kernel::rate::limit::EXACT_BOUND;
use crate::kernel::units::{Hits, Nanos};
use sluicegate_lease_protocol::api::{
    self as api, BorrowMessage, CheckDescriptor, CheckMessage, ConcurrencyUsage, KeyUsage,
    LeaseEntry, LeasedCounter, ProxyHello, RateStrategy, UsageReport,
};

/// The largest size of a proxy's name and of its software, in bytes.
const MAX_NAME_BYTES: usize = 128;

/// The largest number of keys in a report.
const MAX_USAGE_KEYS: usize = 1_000;

/// The entries of a descriptor. They borrow their texts from the message.
pub(super) type Entries<'m> = SmallVec<[(&'m str, &'m str); 4]>;

pub(super) fn required<'m, T>(field: Option<&'m T>, name: &str) -> Result<&'m T, Status> {
    field.ok_or_else(|| Status::invalid_argument(format!("{name} is missing")))
}

/// Validates the introduction of a proxy. Another version of the protocol is a
/// `FAILED_PRECONDITION`.
pub(super) fn parse_hello(
    hello: ProxyHello,
    peer: Option<SocketAddr>,
) -> Result<ProxyIdentity, Status> {
    let ProxyHello { protocol, incarnation, name, software } = hello;
    if protocol != wire::PROTOCOL {
        let message = format!("protocol {protocol} is not served; use {}", wire::PROTOCOL);
        return Err(Status::failed_precondition(message));
    }
    if incarnation == 0 || EXACT_BOUND <= incarnation {
        return Err(Status::invalid_argument("hello.incarnation must be above 0 and below 2^53"));
    }
    if MAX_NAME_BYTES < name.len().max(software.len()) {
        let message = "hello.name and hello.software have at most 128 bytes each";
        return Err(Status::invalid_argument(message));
    }
    let incarnation = ReplicaIncarnation(incarnation);
    Ok(ProxyIdentity { incarnation, name: name.into(), software: software.into(), peer })
}

/// Validates a domain and the entries of one descriptor.
pub(super) fn parse_entries<'m>(
    domain: &str,
    entries: &'m [LeaseEntry],
) -> Result<Entries<'m>, Status> {
    if domain.is_empty() || entries.is_empty() {
        return Err(Status::invalid_argument("domain and entries must not be empty"));
    }
    if MAX_ENTRIES < entries.len() {
        return Err(Status::invalid_argument(format!("more than {MAX_ENTRIES} entries")));
    }
    borrow_entries(entries)
}

fn borrow_entries(entries: &[LeaseEntry]) -> Result<Entries<'_>, Status> {
    let longest = entries.iter().map(|entry| entry.key.len()).max();
    if longest.is_some_and(|bytes| MAX_ENTRY_KEY_BYTES <= bytes) {
        let message = format!("a key has {MAX_ENTRY_KEY_BYTES} bytes or more");
        return Err(Status::invalid_argument(message));
    }
    Ok(entries.iter().map(|entry| (&*entry.key, &*entry.value)).collect())
}

pub(super) fn parse_counter<'m>(
    counter: &'m LeasedCounter,
    entries: &'m [(&'m str, &'m str)],
) -> Result<ProxyCounter<'m>, Status> {
    let strategy = parse_strategy(required(counter.strategy.as_ref(), "counter.strategy")?)?;
    let limit = Some(&*counter.limit).filter(|name| !name.is_empty());
    Ok(ProxyCounter { domain: &counter.domain, entries, limit, strategy })
}

fn parse_strategy(strategy: &RateStrategy) -> Result<Strategy, Status> {
    let invalid =
        || Status::invalid_argument("counter.strategy has an unknown kind or invalid numbers");
    wire::strategy(strategy).ok_or_else(invalid)
}

/// Validates a message about leased hits. Returns its counter, too.
pub(super) fn parse_borrow(
    message: &BorrowMessage,
) -> Result<(&LeasedCounter, BorrowRequest), Status> {
    let counter = required(message.counter.as_ref(), "borrow.counter")?;
    let BorrowMessage { number, hits, wanted, demand, balance, returned, last_lease, .. } =
        *message;
    let largest = [number, hits, wanted, demand, balance, returned, last_lease].into_iter().max();
    if number == 0 || largest.is_some_and(|largest| EXACT_BOUND <= largest) {
        let message = "borrow.number must be above 0, and all numbers below 2^53";
        return Err(Status::invalid_argument(message));
    }
    Ok((counter, wire::borrow_request(message)))
}

pub(super) fn parse_hits(hits: u64) -> Result<Hits, Status> {
    let refused = || Status::invalid_argument("hits must be below 2^53");
    (hits < EXACT_BOUND).then_some(Hits(hits)).ok_or_else(refused)
}

/// Validates a check. Returns its timeout, too.
pub(super) fn parse_check(message: &CheckMessage) -> Result<(Check<'_>, Option<Nanos>), Status> {
    let CheckMessage { domain, descriptors, timeout_us } = message;
    if domain.is_empty() || descriptors.is_empty() {
        return Err(Status::invalid_argument("domain and descriptors must not be empty"));
    }
    let entries = descriptors.iter().map(|descriptor| descriptor.entries.len()).sum();
    check_counts(descriptors.len(), entries)
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    let descriptors = descriptors.iter().map(parse_descriptor).collect::<Result<_, _>>()?;
    let timeout = timeout_us.map(wire::nanos);
    Ok((Check { domain, descriptors }, timeout))
}

fn parse_descriptor(descriptor: &CheckDescriptor) -> Result<Descriptor<'_>, Status> {
    let entries = borrow_entries(&descriptor.entries)?;
    Ok(Descriptor { entries, cost: Cost::Charge(parse_hits(descriptor.hits)?), limit: None })
}

/// Validates the number of keys in a report, and its totals.
pub(super) fn parse_usage_totals(report: &UsageReport) -> Result<ProxyHits, Status> {
    if MAX_USAGE_KEYS < report.keys.len() {
        let message = format!("usage.keys has more than {MAX_USAGE_KEYS} keys");
        return Err(Status::invalid_argument(message));
    }
    let [leased_keys, leased_hits] = counts([report.leased_keys, report.leased_hits])?;
    Ok(ProxyHits { leased_keys, leased_hits: Hits(leased_hits) })
}

pub(super) fn parse_usage<'m>(
    usage: &'m KeyUsage,
    entries: &'m [(&'m str, &'m str)],
) -> Result<ProxyUsage<'m>, Status> {
    // In the order of `RuleVerdict`.
    let requests = counts([
        usage.allowed_requests,
        usage.denied_requests,
        usage.shadow_denied_requests,
        usage.fallback_allowed_requests,
        usage.fallback_denied_requests,
    ])?;
    let [allowed_hits, denied_hits] = counts([usage.allowed_hits, usage.denied_hits])?.map(Hits);
    Ok(ProxyUsage { domain: &usage.domain, entries, requests, allowed_hits, denied_hits })
}

/// Validates a report about shares and permits.
pub(super) fn parse_report(
    report: &api::FleetReport,
    connection: &ProxyConnection,
) -> Result<ProxyReport, Status> {
    let invalid = |part: &str| {
        Status::invalid_argument(format!(
            "report.{part} has a missing or an out-of-range value; see leases.proto"
        ))
    };
    let mut parsed = ProxyReport::default();
    if let Some(round) = &report.shares {
        let round = wire::shares::share_round(round, connection.replica());
        let round = round.ok_or_else(|| invalid("shares"))?;
        parsed.coordinator_incarnation = round.coordinator_incarnation;
        parsed.is_leaving = round.is_leaving;
        parsed.shares = Some(round.reports);
    }
    if let Some(permits) = &report.permits {
        let permits = wire::permits::permit_report(permits, connection.process());
        parsed.permits = Some(permits.ok_or_else(|| invalid("permits"))?);
    }
    Ok(parsed)
}

/// Validates a request for a permit. Returns its bucket and number.
pub(super) fn parse_acquire(acquire: &api::PermitAcquire) -> Result<(Box<[u8]>, u64), Status> {
    let invalid = || {
        Status::invalid_argument("acquire has a missing or an out-of-range value; see leases.proto")
    };
    wire::permits::permit_request(acquire).ok_or_else(invalid)
}

/// Validates the buckets in a report.
pub(super) fn parse_buckets(report: &UsageReport) -> Result<Vec<ProxyBucket>, Status> {
    if MAX_USAGE_KEYS < report.concurrency.len() {
        let message = format!("usage.concurrency has more than {MAX_USAGE_KEYS} buckets");
        return Err(Status::invalid_argument(message));
    }
    let bucket = |usage: &ConcurrencyUsage| ProxyBucket {
        bucket: usage.bucket.as_slice().into(),
        load: BucketLoad {
            in_flight: usage.in_flight,
            waiting: usize::try_from(usage.waiting).unwrap_or(usize::MAX),
            limit: usage.limit,
        },
    };
    Ok(report.concurrency.iter().map(bucket).collect())
}

pub(super) fn parse_permit_usage(usage: &ConcurrencyUsage) -> Result<ProxyPermitUsage<'_>, Status> {
    let [allowed, full, queue_full, queue_timeout, too_many_buckets, shadow_rejected] = counts([
        usage.allowed_requests,
        usage.rejected_full,
        usage.rejected_queue_full,
        usage.rejected_queue_timeout,
        usage.rejected_too_many_buckets,
        usage.shadow_rejected_requests,
    ])?;
    let rejected = [
        (Reason::ConcurrencyLimitReached, full),
        (Reason::QueueFull, queue_full),
        (Reason::QueueTimeout, queue_timeout),
        (Reason::TooManyBuckets, too_many_buckets),
    ];
    Ok(ProxyPermitUsage { bucket: &usage.bucket, allowed, rejected, shadow_rejected })
}

fn counts<const N: usize>(counts: [u64; N]) -> Result<[u64; N], Status> {
    let refused = || Status::invalid_argument("all numbers in usage must be below 2^53");
    counts.iter().all(|count| *count < EXACT_BOUND).then_some(counts).ok_or_else(refused)
}
