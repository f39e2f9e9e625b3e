//! Rules and descriptors for the tests of this crate, and a gRPC service for them.

pub(crate) mod service;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_lease::clock::Clock;

use crate::connection::Connection;
use crate::kernel::decision::Verdict;
use crate::kernel::proxy_rule::{ProxyHandling, ProxyRule};
use crate::kernel::units::Nanos;
use crate::limits_version::LimitsVersion;
use crate::memory::DEFAULT_MEMORY_BYTES;
use crate::request::{DescriptorEntries, DescriptorHasher, OwnedDescriptor};
use crate::rule::KnownRule;
use crate::rule_table::RuleTable;
use crate::settings::{LimiterSettings, ProxyIdentity, ServiceSettings, WaitSettings};
use crate::usage::DescriptorUsage;
use crate::wire::api;
use crate::wire::api::rate_strategy::Kind;
use crate::wire::api::rule_reply::Handling;
use crate::wire::proxy_rule::proxy_rule;

/// A second in the units of the protocol.
pub(crate) const SECOND_US: u64 = 1_000_000;
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// The deadline of requests in tests, which a busy machine does not reach.
pub(crate) const DENY_AFTER_A_MINUTE: WaitSettings =
    WaitSettings { deadline: Duration::from_secs(60), failure: Verdict::Deny };

pub(crate) fn identity() -> ProxyIdentity {
    ProxyIdentity { name: "edge-1".to_owned(), software: "test/1".to_owned() }
}

/// The settings of a limiter with the default memory.
pub(crate) fn limiter_settings(service: ServiceSettings) -> LimiterSettings {
    LimiterSettings { service, identity: identity(), memory_bytes: DEFAULT_MEMORY_BYTES }
}

/// The entries `user=VALUE`.
pub(crate) fn user(value: &str) -> DescriptorEntries<'_> {
    [("user", Cow::Borrowed(value))].into_iter().collect()
}

/// The usage of the descriptor `user=VALUE` in the domain `shop`.
pub(crate) fn usage_of(value: &str) -> Arc<DescriptorUsage> {
    let hash = DescriptorHasher::new().hash("shop", &user(value));
    Arc::new(DescriptorUsage::new(OwnedDescriptor::new(hash, "shop", &user(value))))
}

/// The version of the limits before the first connection.
pub(crate) fn version() -> LimitsVersion {
    let settings = ServiceSettings { address: "127.0.0.1:1".to_owned(), tls: None };
    let clock = Arc::new(Clock::manual(Nanos(0)));
    Connection::new(settings, identity(), |_| {}, clock, Arc::new(RuleTable::new(0))).limits()
}

/// Reads a reply for `user=ann` that arrives at `now`.
pub(crate) fn read_rule(reply: &api::RuleReply, now: Nanos) -> Option<KnownRule> {
    Some(KnownRule::new(proxy_rule(reply)?, usage_of("ann"), version(), now))
}

/// A valid rule for the descriptor `user=VALUE`.
pub(crate) fn unlimited_rule(value: &str) -> Arc<KnownRule> {
    let reply = ProxyRule::unmatched(ProxyHandling::Unlimited, 0);
    Arc::new(KnownRule::new(reply, usage_of(value), version(), Nanos(0)))
}

/// A GCRA limit of 100 requests a second, with leases of 1,000 hits for 30 s.
pub(crate) fn leased_limit(name: &str) -> api::LeasedLimit {
    api::LeasedLimit {
        name: name.to_owned(),
        requests: 100,
        period_ns: SECOND_NS,
        strategy: Some(api::RateStrategy {
            kind: Kind::Gcra.into(),
            hits: 100,
            period_ns: SECOND_NS,
            burst: 2_000,
            ..Default::default()
        }),
        max_overshoot: Some(1_000),
        duration_us: 30 * SECOND_US,
        sizes: Some(api::LeaseSizes { sizes: Some(api::lease_sizes::Sizes::Fixed(1_000)) }),
        ..Default::default()
    }
}

/// A concurrency limit of 10 requests in flight, in shares.
pub(crate) fn shared_limit() -> api::ConcurrencyLimit {
    use api::concurrency_limit::{Aggregate, Mode, OnFailure};
    api::ConcurrencyLimit {
        rule: "shop.user".to_owned(),
        bucket: b"user".to_vec(),
        mode: Mode::Shared.into(),
        limit: 10,
        aggregate: Aggregate::Median.into(),
        max_duration_us: SECOND_US,
        on_failure: OnFailure::Deny.into(),
        reject: Some(api::RejectedReply { status: 503, ..Default::default() }),
        ..Default::default()
    }
}

/// The reply with these leased limits, for the counter of `user=VALUE`.
pub(crate) fn leased_reply(value: &str, leased: Vec<api::LeasedLimit>) -> api::RuleReply {
    api::RuleReply {
        handling: Handling::Leased.into(),
        rule: "shop/user".to_owned(),
        counter: vec![api::LeaseEntry { key: "user".to_owned(), value: value.to_owned() }],
        leased,
        ..Default::default()
    }
}
