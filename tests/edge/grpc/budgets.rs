//! Budgets over the gRPC port: the keys of the rate limit filter, `ext_proc`, and the service for
//! programs.

use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code as RlsCode;
use envoy_types::pb::google::protobuf::UInt64Value;
use sluicegate::config;
use sluicegate::edge::grpc::budgets::api::budgets_client::BudgetsClient;
use sluicegate::edge::grpc::budgets::api::reserve_response::Verdict;
use sluicegate::edge::grpc::budgets::api::{
    CancelRequest, GetBudgetsRequest, ReserveRequest, SettleRequest, TokenUsage,
};
use sluicegate::edge::grpc::permits::api::{Descriptor, Entry as PermitEntry};
use sluicegate::edge::grpc::rls::PEEK_HEADER;
use sluicegate::edge::health::Readiness;
use sluicegate::engine::Engine;
use sluicegate::kernel::units::Revision;
use tonic::Code;

use super::{Served, served};
use crate::edge::{engine, request};

const ID: &str = "0123456789abcdef";

const LIMITS: &str = "
domain: d
usage: {estimate: max_tokens, at_most: 500 tokens}
descriptors:
- key: org
  budget: {amount: 1k tokens, unit: hour}
  concurrency: {limit: 1}
";

fn budget_engine() -> Arc<Engine> {
    engine(config::load([("d.yaml", LIMITS.as_bytes())], Revision(3), false).unwrap().0)
}

fn descriptor(entries: &[(&str, &str)], hits: Option<u64>) -> RateLimitDescriptor {
    let entry = |&(key, value): &(&str, &str)| Entry { key: key.into(), value: value.into() };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        hits_addend: hits.map(|value| UInt64Value { value }),
        ..RateLimitDescriptor::default()
    }
}

async fn ask(served: &Served, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
    served.ask(request(descriptors)).await.unwrap()
}

fn acme() -> Vec<Descriptor> {
    let entries = vec![PermitEntry { key: "org".into(), value: "acme".into() }];
    vec![Descriptor { entries, hits: None }]
}

/// The settled and the held amount.
async fn amounts(served: &Served) -> (u64, u64) {
    let ask = GetBudgetsRequest { domain: "d".into(), descriptors: acme() };
    let reply = BudgetsClient::new(served.channel.clone()).get(ask).await.unwrap().into_inner();
    assert_eq!((&*reply.budgets[0].path, &*reply.budgets[0].unit), ("d.org", "tokens"));
    (reply.budgets[0].settled, reply.budgets[0].held)
}

#[tokio::test]
async fn rate_limit_calls_reserve_and_settle_with_one_id() {
    let served = served(budget_engine(), Readiness::Ready).await;
    let reserve = |id, hits| vec![descriptor(&[("org", "acme"), ("sluicegate.reserve", id)], hits)];
    let settle = |id| descriptor(&[("org", "acme"), ("sluicegate.settle", id)], None);
    assert_eq!(ask(&served, reserve(ID, None)).await.overall_code(), RlsCode::Ok);
    assert_eq!(amounts(&served).await, (0, 500));
    let second = "0123456789abcdeg";
    assert_eq!(ask(&served, reserve(second, Some(400))).await.overall_code(), RlsCode::Ok);
    let denied = ask(&served, reserve("0123456789abcdeh", Some(300))).await;
    assert_eq!(denied.overall_code(), RlsCode::OverLimit);
    assert_eq!(denied.statuses[0].code(), RlsCode::OverLimit);
    let wait = denied
        .response_headers_to_add
        .iter()
        .find(|header| header.key.eq_ignore_ascii_case("retry-after"));
    assert_eq!(wait.unwrap().value, "1");
    assert_eq!(ask(&served, reserve(ID, None)).await.overall_code(), RlsCode::OverLimit);
    let input = descriptor(&[("sluicegate.settle_input", ID)], Some(100));
    let output = descriptor(&[("sluicegate.settle_output", ID)], Some(20));
    ask(&served, vec![settle(ID), input, output]).await;
    assert_eq!(amounts(&served).await, (120, 400));
    // Without a number, the held amount is charged.
    ask(&served, vec![settle(second)]).await;
    ask(&served, vec![settle(second)]).await;
    assert_eq!(amounts(&served).await, (520, 0));
    // A check without an id charges its hits.
    ask(&served, vec![descriptor(&[("org", "acme")], Some(480))]).await;
    assert_eq!(amounts(&served).await, (1_000, 0));
    let spent = ask(&served, vec![descriptor(&[("org", "acme")], Some(0))]).await;
    assert_eq!(spent.overall_code(), RlsCode::OverLimit);
}

#[tokio::test]
async fn a_peek_reserves_and_settles_nothing() {
    let served = served(budget_engine(), Readiness::Ready).await;
    for key in ["sluicegate.reserve", "sluicegate.settle"] {
        let mut peek =
            tonic::Request::new(request(vec![descriptor(&[("org", "acme"), (key, ID)], None)]));
        peek.metadata_mut().insert(PEEK_HEADER, "1".parse().unwrap());
        assert_eq!(served.ask(peek).await.unwrap().overall_code(), RlsCode::Ok);
        assert_eq!(amounts(&served).await, (0, 0), "{key}");
    }
    let reserve = descriptor(&[("org", "acme"), ("sluicegate.reserve", ID)], None);
    assert_eq!(ask(&served, vec![reserve]).await.overall_code(), RlsCode::Ok, "the id is free");
    assert_eq!(amounts(&served).await, (0, 500));
}

#[tokio::test]
async fn permits_and_budgets_of_one_request_start_and_end_together() {
    let served = served(budget_engine(), Readiness::Ready).await;
    let start = |id| {
        vec![
            descriptor(&[("org", "acme"), ("sluicegate.acquire", id)], Some(0)),
            descriptor(&[("org", "acme"), ("sluicegate.reserve", id)], None),
        ]
    };
    let with_permit = |id| {
        let mut descriptors = start(id);
        descriptors[0].hits_addend = None;
        descriptors
    };
    let second = "0123456789abcdeg";
    assert_eq!(ask(&served, with_permit(ID)).await.overall_code(), RlsCode::Ok);
    assert_eq!(ask(&served, with_permit(second)).await.overall_code(), RlsCode::OverLimit);
    assert_eq!(amounts(&served).await, (0, 500), "a request without a permit reserves nothing");
    let end = vec![
        descriptor(&[("sluicegate.release", ID)], None),
        descriptor(&[("org", "acme"), ("sluicegate.settle", ID)], Some(30)),
    ];
    ask(&served, end).await;
    assert_eq!(amounts(&served).await, (30, 0));
    assert_eq!(ask(&served, with_permit(second)).await.overall_code(), RlsCode::Ok);
}

#[tokio::test]
async fn programs_reserve_settle_and_cancel() {
    let served = served(budget_engine(), Readiness::Ready).await;
    let mut client = BudgetsClient::new(served.channel.clone());
    let reserve = |id: &str, tokens| ReserveRequest {
        id: id.into(),
        domain: "d".into(),
        descriptors: acme(),
        tokens: Some(tokens),
    };
    let second = "0123456789abcdeg";
    let reply = client.reserve(reserve(ID, 400)).await.unwrap().into_inner();
    assert_eq!(reply.verdict(), Verdict::Allow);
    let repeated = client.reserve(reserve(ID, 400)).await.unwrap().into_inner();
    assert_eq!((repeated.verdict(), &*repeated.reason), (Verdict::Deny, "repeated_id"));
    assert_eq!(
        client.reserve(reserve("short", 1)).await.unwrap_err().code(),
        Code::InvalidArgument
    );
    client.reserve(reserve(second, 500)).await.unwrap();
    let denied = client.reserve(reserve("0123456789abcdeh", 200)).await.unwrap().into_inner();
    assert_eq!(
        (denied.verdict(), &*denied.reason, denied.status),
        (Verdict::Deny, "budget_held", 429)
    );
    let end = |id: &str| CancelRequest { id: id.into(), domain: "d".into(), descriptors: acme() };
    assert!(client.renew(end(second)).await.unwrap().into_inner().renewed);
    client.cancel(end(second)).await.unwrap();
    assert!(!client.renew(end(second)).await.unwrap().into_inner().renewed);
    let usage = TokenUsage { input: 50, cached_input: 60, ..TokenUsage::default() };
    let settle = |usage| SettleRequest {
        id: ID.into(),
        domain: "d".into(),
        descriptors: acme(),
        usage: Some(usage),
    };
    assert_eq!(client.settle(settle(usage)).await.unwrap_err().code(), Code::InvalidArgument);
    let usage = TokenUsage { input: 70, cached_input: 60, output: 5, other: 0 };
    let settled = client.settle(settle(usage)).await.unwrap().into_inner();
    assert_eq!((settled.budgets[0].settled, settled.budgets[0].held), (75, 0));
    assert!(settled.budgets[0].resets_in_us.unwrap() <= 3_600_000_000);
}
