//! Limits with `on_excess: charge` on the real binary, in memory and in Redis: checks of 0 hits when
//! a request starts, and reports of the used hits when it ends.

use std::fmt::Write as _;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::google::protobuf::UInt64Value;
use tonic::transport::Channel;

use super::{serve, wait_until_ready};
use crate::support::redis::Redis;
use crate::support::service::{Service, sluicegate};
use crate::support::waiting::for_a_day_with_a_minute_left;

const STRATEGIES: [&str; 4] = ["fixed_window", "gcra", "sliding_window", "sliding_log"];
const MODES: [&str; 2] = ["exact", "cached_deny"];
const CHARGES: [&str; 2] = ["each", "all_or_nothing"];

/// One domain for each charge mode, with 100 hits a day for each strategy and mode.
fn limits() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for charge in CHARGES {
        let mut text = format!(
            "domain: {charge}\ncharge: {charge}\ndescriptors:\n\
             - {{key: plain, rate_limit: {{unit: day, requests_per_unit: 2, strategy: gcra}}}}\n"
        );
        for (strategy, mode) in STRATEGIES.iter().flat_map(|s| MODES.map(|mode| (s, mode))) {
            let _ = writeln!(
                text,
                "- key: {strategy}-{mode}\n  rate_limit: {{unit: day, requests_per_unit: 100, \
                 strategy: {strategy}, mode: {mode}, on_excess: charge}}"
            );
        }
        std::fs::write(dir.path().join(format!("{charge}.yaml")), text).unwrap();
    }
    dir
}

/// A service over memory and one over Redis.
fn on_every_store(test: &impl AsyncFn(&mut Caller, &str)) {
    for_a_day_with_a_minute_left();
    let (limits, redis) = (limits(), Redis::start());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for url in ["memory", &redis.url()] {
        let service = serve(limits.path(), url, &[]);
        wait_until_ready(&service);
        runtime.block_on(async {
            let mut caller = Caller::connect(&service).await;
            test(&mut caller, url).await;
        });
    }
}

struct Caller(RateLimitServiceClient<Channel>);

impl Caller {
    async fn connect(service: &Service) -> Self {
        Self(RateLimitServiceClient::connect(format!("http://{}", service.grpc)).await.unwrap())
    }

    /// Sends one check with one descriptor for each key. Returns its verdict, then those of the
    /// descriptors.
    async fn ask(&mut self, domain: &str, descriptors: &[(&str, u64)]) -> Vec<Code> {
        let descriptors = descriptors.iter().map(|(key, hits)| RateLimitDescriptor {
            entries: vec![Entry { key: (*key).into(), value: "ann".into() }],
            hits_addend: Some(UInt64Value { value: *hits }),
            ..RateLimitDescriptor::default()
        });
        let descriptors = descriptors.collect();
        let request = RateLimitRequest { domain: domain.into(), descriptors, hits_addend: 0 };
        let reply = self.0.should_rate_limit(request).await.unwrap().into_inner();
        let statuses = reply.statuses.iter().map(DescriptorStatus::code);
        std::iter::once(reply.overall_code()).chain(statuses).collect()
    }
}

/// The right value of the case `usage-limit-gcra`: 120 of 100 have been used after three reports.
#[test]
fn six_reports_of_40_deny_from_the_fourth_check_on() {
    on_every_store(&async |caller: &mut Caller, url: &str| {
        for (charge, strategy) in CHARGES.iter().flat_map(|c| STRATEGIES.map(|s| (c, s))) {
            for mode in MODES {
                let key = format!("{strategy}-{mode}");
                let mut verdicts = Vec::new();
                for _ in 0..6 {
                    verdicts.push(caller.ask(charge, &[(&key, 0)]).await[0]);
                    caller.ask(charge, &[(&key, 40)]).await;
                }
                let mut right = vec![Code::Ok; 3];
                right.extend([Code::OverLimit; 3]);
                assert_eq!(verdicts, right, "{url} {charge} {key}");
            }
        }
    });
}

#[test]
fn all_or_nothing_charges_a_report_that_another_limit_denies() {
    on_every_store(&async |caller: &mut Caller, url: &str| {
        for strategy in STRATEGIES {
            let key = format!("{strategy}-exact");
            let both = caller.ask("all_or_nothing", &[(&key, 60), ("plain", 3)]).await;
            assert_eq!(both, [Code::OverLimit, Code::Ok, Code::OverLimit], "{url} {key}");
            let report = caller.ask("all_or_nothing", &[(&key, 60)]).await;
            assert_eq!(report[0], Code::OverLimit, "{url} {key}: 60 were charged");
            // The denial of the usage limit charges nothing to the other limit.
            let both = caller.ask("all_or_nothing", &[("plain", 1), (&key, 0)]).await;
            assert_eq!(both, [Code::OverLimit, Code::Ok, Code::OverLimit], "{url} {key}");
        }
        for right in [Code::Ok, Code::Ok, Code::OverLimit] {
            assert_eq!(caller.ask("all_or_nothing", &[("plain", 1)]).await[0], right, "{url}");
        }
    });
}

/// The right value of the case `peek-says-may-pass`, for all strategies.
#[test]
fn a_peek_denies_when_no_hit_remains() {
    for_a_day_with_a_minute_left();
    let dir = tempfile::tempdir().unwrap();
    let mut text = "domain: shop\ndescriptors:\n".to_owned();
    for strategy in STRATEGIES {
        let _ = writeln!(
            text,
            "- {{key: {strategy}, rate_limit: {{unit: day, requests_per_unit: 2, strategy: {strategy}}}}}"
        );
    }
    std::fs::write(dir.path().join("a.yaml"), text).unwrap();
    let service = serve(dir.path(), "memory", &[]);
    let ask = |strategy: &str, flag: &[&str]| {
        let address = service.grpc.to_string();
        let descriptor = format!("{strategy}=a");
        let mut command = sluicegate();
        command.args(["ask", "--address", &address, "--domain", "shop"]);
        let output = command.args(["--descriptor", &descriptor]).args(flag).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    for strategy in STRATEGIES {
        for left in [2, 1] {
            let (code, text) = ask(strategy, &["--peek"]);
            assert_eq!(code, Some(0), "{text}");
            assert!(text.starts_with(&format!("{strategy}=a: within, {left} of 2 ")), "{text}");
            assert_eq!(ask(strategy, &[]).0, Some(0), "{strategy}");
        }
        for _ in 0..2 {
            let (code, text) = ask(strategy, &["--peek"]);
            assert_eq!(code, Some(1), "{text}");
            assert!(text.starts_with(&format!("{strategy}=a: over, 0 of 2 ")), "{text}");
            let wait = text.lines().find_map(|line| line.strip_prefix("Retry-After: "));
            let wait: u64 = wait.unwrap_or_else(|| panic!("{text}")).parse().unwrap();
            match strategy {
                // One hit returns in half a day.
                "gcra" => assert!((43_140..=43_200).contains(&wait), "{text}"),
                "sliding_window" => assert!(wait <= 2 * 86_400, "{text}"),
                _ => assert!(wait <= 86_400, "{text}"),
            }
            assert!(text.ends_with("deny\n"), "{text}");
        }
    }
}
