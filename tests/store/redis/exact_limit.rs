//! Four processes over one store enforce the exact limit of one key.

use std::collections::BTreeMap;
use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::transport::Channel;

use super::fault_watch::print_row;
use super::{failures, failures_of_any_kind, serve, wait_until_ready};
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::for_a_day_with_a_minute_left;

const PROCESSES: usize = 4;

/// The number of checks, of which a tenth is allowed.
#[derive(Clone, Copy, Debug)]
struct CheckCount {
    all: usize,
    /// The largest number of checks that wait for one process.
    at_once: usize,
}

impl CheckCount {
    const REDIS: Self = Self { all: 10_000, at_once: 2_500 };

    /// PostgreSQL serializes the checks of one row, and ends a transaction after four seconds.
    const POSTGRES: Self = Self { all: 1_000, at_once: 16 };

    fn of(url: &str) -> Self {
        if url.starts_with("postgres") { Self::POSTGRES } else { Self::REDIS }
    }

    const fn limit(self) -> usize {
        self.all / 10
    }
}

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
    let count = CheckCount::of(url);
    let limits = limits(count.limit());
    // A long timeout, because this test measures exactness and not speed.
    let all = [&["--store-timeout", "300s", "--telemetry-log-level", "warn"], flags].concat();
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
    let turns = [(); PROCESSES].map(|()| Arc::new(Semaphore::new(count.at_once)));
    for strategy in STRATEGIES {
        let spawn_check = |number: usize| {
            let at = number % PROCESSES;
            let (channel, turns) = (channels[at].clone(), Arc::clone(&turns[at]));
            tokio::spawn(async move {
                let _turn = turns.acquire().await.unwrap();
                check(channel, strategy).await
            })
        };
        let tasks: Vec<_> = (0..count.all).map(spawn_check).collect();
        let mut codes: BTreeMap<&str, usize> = BTreeMap::new();
        for task in tasks {
            let answer = task.await.unwrap();
            let code = answer.unwrap_or_else(|why| panic!("{strategy}: {why:?}{}", log(&fleet)));
            *codes.entry(code.as_str_name()).or_default() += 1;
        }
        let limit = count.limit();
        let exactly = [("OK", limit), ("OVER_LIMIT", count.all - limit)].into();
        assert_eq!(codes, exactly, "{strategy}: {}", log(&fleet));
    }
    let what = format!("4 processes, {} questions at once", count.all);
    let promised = format!("exactly {} pass, with each strategy", count.limit());
    let late = fleet.iter().map(|service| failures(service, "timed_out")).sum();
    print_row(&what, &promised, None, &[late, 0], None);
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

fn limits(limit: usize) -> tempfile::TempDir {
    let rule = |strategy: &str| {
        format!(
            "- key: strategy\n  value: {strategy}\n  \
             rate_limit: {{unit: day, requests_per_unit: {limit}, strategy: {strategy}}}\n"
        )
    };
    let rules: String = STRATEGIES.into_iter().map(rule).collect();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("d.yaml"), format!("domain: d\ndescriptors:\n{rules}")).unwrap();
    dir
}
