//! Four processes over one store enforce the exact limit of one key.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::runtime::{Builder, Runtime};
use tonic::Status;
use tonic::transport::Channel;

use super::fault_watch::print_row;
use super::{failures, failures_of_any_kind, serve, wait_until_ready};
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::for_a_day_with_a_minute_left;

const PROCESSES: usize = 4;

const LIMIT: usize = 1_000;

const CHECKS: usize = 10_000;

const STRATEGIES: [&str; 4] = ["fixed_window", "gcra", "sliding_window", "sliding_log"];

#[test]
fn four_processes_together_allow_exactly_the_limit() {
    let store = Redis::start();
    assert_exact_limit(&store.url(), &[]);
}

/// Asserts that four processes over the store at `url` allow exactly the limit.
pub fn assert_exact_limit(url: &str, flags: &[&str]) {
    // The connections to the services have their own threads, so that ten thousand concurrent
    // callers do not block them.
    let [connection_runtime, caller_runtime] = [PROCESSES, 1].map(|threads| {
        Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap()
    });
    caller_runtime.block_on(check_all_strategies(url, flags, &connection_runtime));
}

async fn check_all_strategies(url: &str, flags: &[&str], connection_runtime: &Runtime) {
    for_a_day_with_a_minute_left();
    let limits = limits();
    // A long timeout, because this test measures exactness and not speed.
    let all = [&["--store-deadline", "60s", "--telemetry-log-level", "warn"], flags].concat();
    let fleet: Vec<_> = (0..PROCESSES).map(|_| serve(limits.path(), url, &all)).collect();
    fleet.iter().for_each(wait_until_ready);
    let mut channels = Vec::new();
    for service in &fleet {
        let endpoint = service.door();
        channels.push(
            connection_runtime
                .spawn(async move { endpoint.connect().await })
                .await
                .unwrap()
                .unwrap(),
        );
    }
    for strategy in STRATEGIES {
        let tasks: Vec<_> = (0..CHECKS)
            .map(|number| tokio::spawn(check(channels[number % PROCESSES].clone(), strategy)))
            .collect();
        let mut codes: BTreeMap<&str, usize> = BTreeMap::new();
        for task in tasks {
            let answer = task.await.unwrap();
            let code = answer.unwrap_or_else(|why| panic!("{strategy}: {why:?}{}", log(&fleet)));
            *codes.entry(code.as_str_name()).or_default() += 1;
        }
        let exactly = [("OK", LIMIT), ("OVER_LIMIT", CHECKS - LIMIT)].into();
        assert_eq!(codes, exactly, "{strategy}: {}", log(&fleet));
    }
    let what = "4 processes, 10,000 questions at once, 1,000 allowed";
    let promised = "exactly 1,000 pass, with each strategy";
    let late = fleet.iter().map(|service| failures(service, "timed_out")).sum();
    print_row(what, promised, None, &[late, 0], None);
    assert_eq!(fleet.iter().map(failures_of_any_kind).sum::<u64>(), 0);
}

async fn check(channel: Channel, strategy: &str) -> Result<Code, Status> {
    let entry = Entry { key: "strategy".to_owned(), value: strategy.to_owned() };
    let request = RateLimitRequest {
        domain: "d".to_owned(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![entry],
            ..RateLimitDescriptor::default()
        }],
        hits_addend: 0,
    };
    let answer = RateLimitServiceClient::new(channel).should_rate_limit(request).await?;
    Ok(answer.into_inner().overall_code())
}

fn log(fleet: &[Service]) -> String {
    fleet.iter().map(Service::log).collect()
}

fn limits() -> tempfile::TempDir {
    let rule = |strategy: &str| {
        format!(
            "- key: strategy\n  value: {strategy}\n  \
             rate_limit: {{unit: day, requests_per_unit: {LIMIT}, strategy: {strategy}}}\n"
        )
    };
    let rules: String = STRATEGIES.into_iter().map(rule).collect();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("d.yaml"), format!("domain: d\ndescriptors:\n{rules}")).unwrap();
    dir
}
