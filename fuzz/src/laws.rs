//! Invariants of every decodable request.

use std::sync::{Arc, LazyLock};

use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use sluicegate::config::Config;
use sluicegate::edge::Reporting;
use sluicegate::edge::grpc::convert;
use sluicegate::edge::headers::{Headers, Names};
use sluicegate::edge::http::json;
use sluicegate::engine::{Answer, CounterKeys, Overrides, Planning, Policy};
use sluicegate::kernel::decision::{Question, Verdict};
use sluicegate::kernel::units::Nanos;
use tonic::Code;

use crate::{Service, sound};

/// Every strategy and every field, in domains `d` and `a`.
pub static LIMITS: LazyLock<Arc<Config>> = LazyLock::new(|| {
    sound(&[
        ("each.yaml", include_str!("../limits/each.yaml")),
        ("all.yaml", include_str!("../limits/all.yaml")),
    ])
});

/// Checks the invariants of `request` under settings derived from `variant`.
pub fn hold(request: &RateLimitRequest, variant: usize) {
    let reporting = reporting(variant);
    let service = Service::new(LIMITS.clone(), policy(variant));
    let question = match convert::question(request, &reporting) {
        Ok(question) => question,
        Err(refusal) => {
            let status = convert::refusal(&refusal);
            assert!(!status.message().is_empty(), "{status}");
            assert_ne!(status.code(), Code::Ok);
            return;
        }
    };
    let mut last: Option<RateLimitResponse> = None;
    let refunds = request.descriptors.iter().any(|descriptor| descriptor.is_negative_hits);
    for _ in 0..3 {
        let answer = service.decide(&question).expect("limits are loaded");
        let reply = convert::reply(request, &answer, &reporting);
        assert_eq!(reply.statuses.len(), request.descriptors.len());
        assert!(service.keys() <= request.descriptors.len());
        can_be_shown(&reply);
        if let Some(earlier) = last.filter(|_| !refunds) {
            nothing_comes_back(&earlier, &reply);
        }
        last = Some(reply);
        if request.descriptors.len() == 1 && !refunds && answer.verdict == Verdict::Deny {
            // The clock moves, so later replies cannot be compared with earlier ones.
            return the_wait_is_right(&service, &question, &answer);
        }
    }
}

fn policy(variant: usize) -> Policy {
    let planning = Planning {
        keys: if variant & 1 == 0 { CounterKeys::Injective } else { CounterKeys::Envoyproxy },
        overrides: [Overrides::Allow, Overrides::Deny, Overrides::Max][variant / 2 % 3],
        quota_for_all: variant % 5 == 4,
    };
    Policy { planning, shadow: variant % 7 == 6, ..Policy::default() }
}

fn reporting(variant: usize) -> Reporting {
    let headers = Headers { reference: Some(Names::default()), draft: true, retry_after: true };
    let upstream = (variant % 2 == 1).then(Names::default);
    Reporting { headers, upstream, dynamic_metadata: true, negative_hits: variant % 4 != 3 }
}

/// Every reply has a JSON form, unless a rule's metadata contains a number that JSON lacks.
fn can_be_shown(reply: &RateLimitResponse) {
    match json::response(reply) {
        Ok(text) => drop(serde_json::from_str::<serde_json::Value>(&text).expect("JSON")),
        Err(json::Inexpressible) => assert!(reply.dynamic_metadata.is_some()),
    }
}

/// At one instant and without refunds, used hits stay used and a denial stays a denial.
fn nothing_comes_back(earlier: &RateLimitResponse, later: &RateLimitResponse) {
    for (before, after) in earlier.statuses.iter().zip(&later.statuses) {
        assert!(after.limit_remaining <= before.limit_remaining, "{before:?} then {after:?}");
        assert!(before.code <= after.code, "{before:?} then {after:?}");
    }
}

/// A denied client succeeds at retry-after; a second earlier, it is still denied.
fn the_wait_is_right(service: &Service, question: &Question<'_>, answer: &Answer) {
    let Some(wait) = answer.retry_after else { return };
    let second = Nanos::SECOND;
    if let Some(sooner @ 1..) = wait.0.checked_sub(second.0) {
        service.advance(Nanos(sooner));
        let early = service.decide(question).expect("limits are loaded");
        assert_eq!(early.verdict, Verdict::Deny, "a second before {wait} has passed");
        service.advance(second);
    } else {
        service.advance(wait);
    }
    let back = service.decide(question).expect("limits are loaded");
    assert_eq!(back.verdict, Verdict::Admit, "after {wait}: {back:?}");
}
