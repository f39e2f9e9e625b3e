//! Tests of the ports: gRPC, HTTP, syslog, metrics and admin.

mod accept_errors;
mod connection_gate;
mod failed_connections;
pub(crate) mod grpc;
mod headers;
mod http;
mod mirror;
mod syslog;

use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use sluicegate::clock::Clock;
use sluicegate::config::Config;
use sluicegate::config::diagnostic::{SourceText, Span, Spanned};
use sluicegate::config::{raw, resolve};
use sluicegate::engine::{Decision, DecisionPolicy, Engine, LimitStatus};
use sluicegate::kernel::decision::{
    AppliedLimit, DescriptorDecision, Enforcement, Reason, Verdict, VoteGroup, combined_wait,
};
use sluicegate::kernel::rate::{CounterDecision, Headroom};
use sluicegate::kernel::units::{Hits, Nanos, Revision, Unit};
use sluicegate::store::memory::{MemoryStore, WhenFull};

const ENFORCED: Enforcement = Enforcement { group: VoteGroup::Enforced, shadow: false };
const QUOTA: Enforcement = Enforcement { group: VoteGroup::Quota, shadow: false };
const SHADOW: Enforcement = Enforcement { group: VoteGroup::Enforced, shadow: true };

pub fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 }
}

fn descriptor(key: &str, value: &str) -> RateLimitDescriptor {
    let entry = Entry { key: key.into(), value: value.into() };
    RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() }
}

fn overridden(requests_per_unit: u32, unit: i32) -> RateLimitDescriptor {
    let limit = Some(RateLimitOverride { requests_per_unit, unit });
    RateLimitDescriptor { limit, ..descriptor("k", "v") }
}

fn shown(requests: u32, period: Nanos, unit: Option<Unit>, name: &str) -> AppliedLimit {
    let name = (!name.is_empty()).then(|| Arc::from(name));
    AppliedLimit { requests, unit, period, name }
}

fn per_minute(requests: u32, name: &str) -> AppliedLimit {
    shown(requests, Nanos::from_secs(60), Some(Unit::Minute), name)
}

fn room(remaining: u64, reset_after: Nanos) -> Headroom {
    Headroom { remaining: Hits(remaining), reset_after }
}

/// The decision of a descriptor whose counter replied `step`.
fn from_counter(
    step: CounterDecision,
    limit: AppliedLimit,
    enforcement: Enforcement,
) -> DescriptorDecision {
    let mut decision = DescriptorDecision::uncounted(Reason::NoLimit, enforcement.group);
    (decision.enforcement, decision.limit) = (enforcement, Some(limit));
    decision.apply_counter(step);
    decision
}

fn admitted(limit: AppliedLimit, remaining: u64, reset_after: Nanos) -> DescriptorDecision {
    from_counter(CounterDecision::Allow(room(remaining, reset_after)), limit, ENFORCED)
}

fn denied(limit: AppliedLimit, retry_after: Nanos, standing: Enforcement) -> DescriptorDecision {
    from_counter(
        CounterDecision::Deny { retry_after, headroom: room(0, retry_after) },
        limit,
        standing,
    )
}

fn free(reason: Reason) -> DescriptorDecision {
    DescriptorDecision::uncounted(reason, VoteGroup::Enforced)
}

/// A decision with these descriptor results. The first result with a limit is the binding one.
fn decision(verdict: Verdict, findings: Vec<DescriptorDecision>) -> Decision {
    let denied = verdict == Verdict::Deny;
    let waits =
        findings.iter().map(|finding| (finding.enforcement.group, finding.time_until_allowed()));
    let retry_after = if denied { combined_wait(waits, false) } else { None };
    Decision {
        verdict,
        binding: findings.iter().position(|finding| finding.limit.is_some()),
        retry_after,
        ban_status: None,
        denied_by: denied.then(|| "d.k".into()),
        shadow_denied_by: None,
        is_shadowed: false,
        revision: Revision(1),
        now: Nanos(0),
        statuses: findings
            .into_iter()
            .map(|finding| LimitStatus { decision: finding, metadata: None })
            .collect(),
        limit_statuses: Vec::new(),
    }
}

/// An engine without limits at time 0, where a window of every unit starts.
fn empty_engine() -> Arc<Engine> {
    let memory = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [7; 16]));
    Arc::new(Engine::new(Clock::manual(Nanos(0)), memory, DecisionPolicy::default()))
}

pub fn engine(config: Config) -> Arc<Engine> {
    let engine = empty_engine();
    engine.publish(Arc::new(config));
    engine
}

/// An engine with a concurrency limit in domain `d` for each value of `k`.
fn engine_with_concurrency(fields: &str) -> Arc<Engine> {
    let text = format!("domain: d\ndescriptors:\n- key: k\n  concurrency: {{{fields}}}\n");
    engine(sluicegate::config::load([("d.yaml", text.as_bytes())], Revision(3), false).unwrap().0)
}

async fn acquire_permits(engine: &Engine, value: &str) -> sluicegate::engine::RequestPermits {
    let entries = [("k", value)].into_iter().collect();
    let cost = sluicegate::kernel::decision::Cost::Charge(Hits(1));
    let descriptor = sluicegate::kernel::decision::Descriptor { entries, cost, limit: None };
    let descriptors = [descriptor].into_iter().collect();
    let asked = sluicegate::kernel::decision::Check { domain: "d", descriptors };
    match engine.admit(&asked, None).await.unwrap() {
        sluicegate::engine::AdmissionOutcome::Decided(_, permits) => permits,
        sluicegate::engine::AdmissionOutcome::Rejected(rejection) => panic!("{rejection:?}"),
    }
}

/// A configuration: in domain `d`, the key `k` has a limit `lim` of two hits a minute, and `u` is
/// unlimited.
/// One hit a minute for each value of `k`. The first denial bans for ten minutes, with status 451.
fn banning() -> Config {
    let penalty = "penalty: {after: 1, within: 1m, for: 10m, status: 451}";
    let limit = format!("{{name: lim, unit: minute, requests_per_unit: 1, {penalty}}}");
    let text = format!("domain: d\ndescriptors:\n- {{key: k, rate_limit: {limit}}}\n");
    sluicegate::config::load([("d.yaml", text.as_bytes())], Revision(3), false).unwrap().0
}

fn two_a_minute() -> Config {
    let limit = raw::RateLimit {
        requests_per_unit: spanned(2),
        unit: spanned("minute".into()),
        name: spanned("lim".into()),
        ..raw::RateLimit::default()
    };
    let unlimited = raw::RateLimit { unlimited: spanned(true), ..raw::RateLimit::default() };
    config(vec![node("k", limit), node("u", unlimited)])
}

fn config(descriptors: Vec<raw::Descriptor>) -> Config {
    let file = raw::File { domain: spanned("d".into()), descriptors, ..raw::File::default() };
    let source = SourceText::new("d.yaml", "");
    resolve::resolve(&[(file, source)], Revision(3), false).expect("a sound configuration").0
}

fn node(key: &str, limit: raw::RateLimit) -> raw::Descriptor {
    raw::Descriptor {
        key: spanned(key.into()),
        rate_limit: Some(limit),
        ..raw::Descriptor::default()
    }
}

fn spanned<T>(value: T) -> Spanned<T> {
    Spanned { value, span: Span::default() }
}
