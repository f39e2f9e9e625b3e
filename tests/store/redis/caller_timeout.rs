//! A caller's `grpc-timeout` bounds the time of its decision, even if the store may take longer.

use std::time::Duration;

use envoy_types::pb::envoy::service::auth::v3::CheckRequest;
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::fallback::descriptor;
use super::{failures, limits, serve, wait_until_ready};
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::now;

/// The caller's timeout. The store's timeout is 10 s.
const TIMEOUT: Duration = Duration::from_millis(40);

/// The earliest time of a decision: the fallback decides 2 ms before the timeout of the caller.
const EARLIEST_DECISION: Duration = Duration::from_millis(38);

/// The number of attempts: a loaded machine may delay one reply, but not so many in a row.
const TRIES: usize = 50;

const HOOKS: &str = "hooks:
- name: edge
  domain: d
  descriptors:
  - [{generic_key: {descriptor_key: allow, descriptor_value: v}}]
";

struct HookedService {
    store: Redis,
    service: Service,
    channel: Channel,
    _files: [TempDir; 2],
}

impl HookedService {
    fn start() -> Self {
        let (store, limits, settings) = (Redis::start(), limits(10), tempfile::tempdir().unwrap());
        let file = settings.path().join("server.yaml");
        std::fs::write(&file, HOOKS).unwrap();
        let flags = ["--settings", file.to_str().unwrap(), "--store-deadline", "10s"];
        let service = serve(limits.path(), &store.url(), &flags);
        wait_until_ready(&service);
        let channel = service.door().connect_lazy();
        Self { store, service, channel, _files: [limits, settings] }
    }

    /// Sends a check while Redis runs, then returns the reply to a check while Redis is stopped.
    async fn decision_while_stopped<Q: Clone, A>(
        &self,
        question: Q,
        check: impl AsyncFn(Request<Q>) -> Result<Response<A>, Status>,
    ) -> A {
        check(Request::new(question.clone())).await.unwrap();
        assert_eq!(failures(&self.service, "timed_out"), 0, "{}", self.service.log());
        self.store.signal("STOP");
        let mut refused = None;
        for _ in 0..TRIES {
            let mut request = Request::new(question.clone());
            request.set_timeout(TIMEOUT);
            let began = now();
            match check(request).await {
                Ok(answer) => {
                    assert!(EARLIEST_DECISION <= began.elapsed(), "{}", self.service.log());
                    assert!(0 < failures(&self.service, "timed_out"));
                    return answer.into_inner();
                }
                Err(status) => refused = Some(status),
            }
        }
        panic!("not one in time: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rls_uses_the_fallback_before_the_grpc_timeout() {
    let scene = HookedService::start();
    let asked = RateLimitRequest {
        domain: "d".to_owned(),
        descriptors: vec![descriptor("allow")],
        hits_addend: 0,
    };
    let client = RateLimitServiceClient::new(scene.channel.clone());
    let check = async |request| client.clone().should_rate_limit(request).await;
    assert_eq!(scene.decision_while_stopped(asked, check).await.overall_code(), Code::Ok);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ext_authz_uses_the_fallback_before_the_grpc_timeout() {
    let scene = HookedService::start();
    let client = AuthorizationClient::new(scene.channel.clone());
    let check = async |request| client.clone().check(request).await;
    let reply = scene.decision_while_stopped(CheckRequest::default(), check).await;
    assert_eq!(reply.status.unwrap().code, 0, "OK");
}
