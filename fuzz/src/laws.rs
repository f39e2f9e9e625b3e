//! Invariants of every decodable request.

use std::sync::{Arc, LazyLock};

use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use sluicegate::config::Config;
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::grpc::convert;
use sluicegate::edge::headers::{CompatHeaderNames, RateLimitHeaders};
use sluicegate::edge::http::json;
use sluicegate::engine::{Decision, DecisionPolicy, KeyNaming, OverridePolicy, PlanSettings};
use sluicegate::kernel::decision::{Check, Verdict};
use sluicegate::kernel::units::Nanos;
use tonic::Code;

use crate::{Service, load_valid};

/// Every strategy and every field, in domains `d` and `a`.
pub static LIMITS: LazyLock<Arc<Config>> = LazyLock::new(|| {
    load_valid(&[
        ("each.yaml", include_str!("../limits/each.yaml")),
        ("all.yaml", include_str!("../limits/all.yaml")),
    ])
});

/// Asserts the invariants of `request` under settings derived from `variant`.
pub fn assert_all(request: &RateLimitRequest, variant: usize) {
    let options = reply_options(variant);
    let service = Service::new(LIMITS.clone(), decision_policy(variant));
    let check = match convert::to_check(request, &options) {
        Ok(check) => check,
        Err(error) => {
            let status = convert::error_status(&error);
            assert!(!status.message().is_empty(), "{status}");
            assert_ne!(status.code(), Code::Ok);
            return;
        }
    };
    let mut previous: Option<RateLimitResponse> = None;
    let has_refunds = request.descriptors.iter().any(|descriptor| descriptor.is_negative_hits);
    for _ in 0..3 {
        let decision = service.decide(&check).expect("limits are loaded");
        let response = convert::to_response(request, &decision, &options);
        assert_eq!(response.statuses.len(), request.descriptors.len());
        assert!(service.key_count() <= request.descriptors.len());
        assert_expressible_in_json(&response);
        if let Some(earlier) = previous.filter(|_| !has_refunds) {
            assert_hits_stay_used(&earlier, &response);
        }
        previous = Some(response);
        if request.descriptors.len() == 1 && !has_refunds && decision.verdict == Verdict::Deny {
            // The clock moves, so later responses cannot be compared with earlier ones.
            return assert_retry_after_is_exact(&service, &check, &decision);
        }
    }
}

fn decision_policy(variant: usize) -> DecisionPolicy {
    let planning = PlanSettings {
        keys: if variant & 1 == 0 { KeyNaming::Unique } else { KeyNaming::Envoyproxy },
        overrides: [OverridePolicy::Allow, OverridePolicy::Deny, OverridePolicy::Max]
            [variant / 2 % 3],
        quota_for_all: variant % 5 == 4,
    };
    DecisionPolicy { planning, is_shadow: variant % 7 == 6, ..DecisionPolicy::default() }
}

fn reply_options(variant: usize) -> ReplyOptions {
    let compat_names = Some(CompatHeaderNames::default());
    ReplyOptions {
        headers: RateLimitHeaders { compat_names, draft: true, retry_after: true, denied_by: true },
        upstream_names: (variant % 2 == 1).then(CompatHeaderNames::default),
        dynamic_metadata: true,
        denied_by_metadata: true,
        allow_negative_hits: variant % 4 != 3,
    }
}

/// Every response has a JSON form, unless a rule's metadata contains a number that JSON lacks.
fn assert_expressible_in_json(response: &RateLimitResponse) {
    match json::to_json_text(response) {
        Ok(text) => drop(serde_json::from_str::<serde_json::Value>(&text).expect("JSON")),
        Err(json::NotExpressibleInJson) => assert!(response.dynamic_metadata.is_some()),
    }
}

/// At one instant and without refunds, used hits stay used and a denial stays a denial.
fn assert_hits_stay_used(earlier: &RateLimitResponse, later: &RateLimitResponse) {
    for (before, after) in earlier.statuses.iter().zip(&later.statuses) {
        assert!(after.limit_remaining <= before.limit_remaining, "{before:?} then {after:?}");
        assert!(before.code <= after.code, "{before:?} then {after:?}");
    }
}

/// A denied client succeeds at retry-after; a second earlier, it is still denied.
fn assert_retry_after_is_exact(service: &Service, check: &Check<'_>, denial: &Decision) {
    let Some(retry_after) = denial.retry_after else { return };
    let second = Nanos::SECOND;
    if let Some(early @ 1..) = retry_after.0.checked_sub(second.0) {
        service.advance(Nanos(early));
        let decision = service.decide(check).expect("limits are loaded");
        assert_eq!(decision.verdict, Verdict::Deny, "a second before {retry_after}");
        service.advance(second);
    } else {
        service.advance(retry_after);
    }
    let decision = service.decide(check).expect("limits are loaded");
    assert_eq!(decision.verdict, Verdict::Allow, "after {retry_after}: {decision:?}");
}
