//! The list `rate_limits` on the real binary, over gRPC, in memory and in Redis: its limits count
//! like those of separate descriptors.

use std::fmt::Write as _;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use tonic::transport::Channel;

use super::{serve, wait_until_ready};
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;
use crate::support::waiting::for_a_day_with_a_minute_left;

const CHARGES: [&str; 2] = ["each", "all_or_nothing"];
const CASES: [&str; 7] = [
    "strategy: fixed_window",
    "strategy: gcra",
    "strategy: sliding_window",
    "strategy: sliding_log",
    "strategy: gcra, mode: cached_deny",
    "strategy: fixed_window, mode: cached_deny",
    "strategy: sliding_log, on_excess: charge",
];

/// One domain for each charge mode. Case `n` has the list `n`, and its limits as the rules `a-n` and
/// `b-n`.
fn limits() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for charge in CHARGES {
        let mut text = format!("domain: {charge}\ncharge: {charge}\ndescriptors:\n");
        for (number, case) in CASES.iter().enumerate() {
            let (tight, wide) = (
                format!("{{unit: day, requests_per_unit: 6, {case}}}"),
                format!("{{unit: week, requests_per_unit: 9, {case}}}"),
            );
            let _ = write!(
                text,
                "- {{key: list-{number}, rate_limits: [{tight}, {wide}]}}\n\
                 - {{key: a-{number}, rate_limit: {tight}}}\n\
                 - {{key: b-{number}, rate_limit: {wide}}}\n"
            );
        }
        text.push_str(
            "- {key: leased, rate_limits: [{unit: day, requests_per_unit: 10, mode: leased, \
             max_overshoot: 0}, {unit: week, requests_per_unit: 1000}]}\n",
        );
        std::fs::write(dir.path().join(format!("{charge}.yaml")), text).unwrap();
    }
    dir
}

struct Caller(RateLimitServiceClient<Channel>);

impl Caller {
    async fn ask(&mut self, domain: &str, keys: &[&str], hits: u64) -> RateLimitResponse {
        let descriptors = keys.iter().map(|key| RateLimitDescriptor {
            entries: vec![Entry { key: (*key).to_owned(), value: "ann".into() }],
            hits_addend: Some(UInt64Value { value: hits }),
            ..RateLimitDescriptor::default()
        });
        let descriptors = descriptors.collect();
        let request = RateLimitRequest { domain: domain.into(), descriptors, hits_addend: 0 };
        self.0.should_rate_limit(request).await.unwrap().into_inner()
    }
}

fn on_every_store(test: &impl AsyncFn(&mut Caller, &str)) {
    for_a_day_with_a_minute_left();
    let (limits, redis) = (limits(), Redis::start());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for url in ["memory", &redis.url()] {
        // A busy machine is no store failure.
        let service = serve(limits.path(), url, &["--store-timeout", "5s"]);
        wait_until_ready(&service);
        runtime.block_on(async {
            let address = format!("http://{}", service.grpc);
            let mut caller = Caller(RateLimitServiceClient::connect(address).await.unwrap());
            test(&mut caller, url).await;
        });
    }
}

#[test]
fn a_list_decides_as_one_descriptor_per_limit_in_every_store() {
    let seed = seed();
    on_every_store(&async |caller: &mut Caller, url: &str| {
        let mut dice = Dice::new(seed);
        for (charge, number) in CHARGES.iter().flat_map(|c| (0..CASES.len()).map(move |n| (c, n))) {
            let [list, a, b] = ["list", "a", "b"].map(|name| format!("{name}-{number}"));
            for step in 0..12 {
                let hits = dice.up_to(3);
                let one = caller.ask(charge, &[&list], hits).await;
                let two = caller.ask(charge, &[&a, &b], hits).await;
                let context = format!("seed {seed}, {url}, {charge}, {}, {step}", CASES[number]);
                assert_eq!(one.overall_code(), two.overall_code(), "{context}");
                assert_eq!(one.statuses.len(), 1, "{context}");
                let fewest = |reply: &RateLimitResponse| {
                    reply.statuses.iter().map(|status| status.limit_remaining).min()
                };
                if one.overall_code() == Code::Ok {
                    assert_eq!(fewest(&one), fewest(&two), "{context}");
                }
            }
        }
    });
}

#[test]
fn a_leased_limit_of_a_list_allows_exactly_its_hits() {
    on_every_store(&async |caller: &mut Caller, url: &str| {
        for charge in CHARGES {
            let mut allowed = 0;
            for _ in 0..30 {
                let reply = caller.ask(charge, &["leased"], 1).await;
                allowed += u32::from(reply.overall_code() == Code::Ok);
            }
            assert_eq!(allowed, 10, "{url} {charge}");
            let reply = caller.ask(charge, &["leased"], 1).await;
            let limit = reply.statuses[0].current_limit.clone().unwrap();
            assert_eq!(limit.name, "per-day", "{url} {charge}");
        }
    });
}
