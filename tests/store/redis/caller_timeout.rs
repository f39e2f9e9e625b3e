//! A caller's `grpc-timeout` bounds the time of its decision, even if the store may take longer.

use std::time::Duration;

use envoy_types::pb::envoy::service::auth::v3::CheckRequest;
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tempfile::TempDir;
use tonic::body::Body;
use tonic::codegen::http::Uri;
use tonic::{Request, Response, Status};

use super::fallback::descriptor;
use super::{UNLIMITED, failures, limits, serve, wait_until_ready};
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::now;

/// The caller's timeout. The store's timeout is minutes.
const TIMEOUT: Duration = Duration::from_millis(40);

/// The earliest time of a decision: the fallback decides 2 ms before the timeout of the caller.
const EARLIEST_DECISION: Duration = Duration::from_millis(38);

/// The number of checks while Redis is stopped.
const CHECKS: usize = 20;

/// An HTTP/2 client that sends `grpc-timeout` and ignores it. tonic's `Channel` would cancel a call
/// that a busy machine delays.
type PatientClient = Client<HttpConnector, Body>;

const HOOKS: &str = "hooks:
- name: edge
  domain: d
  descriptors:
  - [{generic_key: {descriptor_key: allow, descriptor_value: v}}]
";

struct HookedService {
    store: Redis,
    service: Service,
    client: PatientClient,
    origin: Uri,
    _files: [TempDir; 2],
}

impl HookedService {
    fn start() -> Self {
        let (store, limits, settings) = (Redis::start(), limits(10), tempfile::tempdir().unwrap());
        let file = settings.path().join("server.yaml");
        std::fs::write(&file, HOOKS).unwrap();
        let flags = ["--settings", file.to_str().unwrap(), "--store-timeout", "300s"];
        let service = serve(limits.path(), &store.url(), &flags);
        wait_until_ready(&service);
        let mut connector = HttpConnector::new();
        // Otherwise a delayed acknowledgment adds 40 ms.
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).http2_only(true).build(connector);
        let origin = format!("http://{}", service.grpc).parse().unwrap();
        Self { store, service, client, origin, _files: [limits, settings] }
    }

    fn rate_limits(&self) -> RateLimitServiceClient<PatientClient> {
        RateLimitServiceClient::with_origin(self.client.clone(), self.origin.clone())
    }

    /// The time of a check that needs no store.
    async fn control_time(&self) -> Duration {
        let began = now();
        self.rate_limits().should_rate_limit(check_of(UNLIMITED)).await.unwrap();
        began.elapsed()
    }

    /// Sends a check while Redis runs, then checks while Redis is stopped. Returns the last reply.
    async fn decision_while_stopped<Q: Clone, A>(
        &self,
        question: Q,
        check: impl AsyncFn(Request<Q>) -> Result<Response<A>, Status>,
    ) -> A {
        check(Request::new(question.clone())).await.unwrap();
        assert_eq!(failures(&self.service, "timed_out"), 0, "{}", self.service.log());
        self.store.signal("STOP");
        let (mut times, mut control_times, mut last) = (Vec::new(), Vec::new(), None);
        for _ in 0..CHECKS {
            let mut request = Request::new(question.clone());
            request.set_timeout(TIMEOUT);
            let began = now();
            last = Some(check(request).await.unwrap().into_inner());
            times.push(began.elapsed());
            control_times.push(self.control_time().await);
        }
        assert!(0 < failures(&self.service, "timed_out"));
        let earliest = times.iter().min().copied();
        assert!(Some(EARLIEST_DECISION) <= earliest, "{earliest:?}: {}", self.service.log());
        let (time, control_time) = (median(times), median(control_times));
        assert!(time <= TIMEOUT + 4 * control_time, "{time:?}, and {control_time:?} without Redis");
        last.unwrap()
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn check_of(key: &str) -> RateLimitRequest {
    RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor(key)], hits_addend: 0 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rls_uses_the_fallback_before_the_grpc_timeout() {
    let scene = HookedService::start();
    let check = async |request| scene.rate_limits().should_rate_limit(request).await;
    let reply = scene.decision_while_stopped(check_of("allow"), check).await;
    assert_eq!(reply.overall_code(), Code::Ok);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ext_authz_uses_the_fallback_before_the_grpc_timeout() {
    let scene = HookedService::start();
    let client = AuthorizationClient::with_origin(scene.client.clone(), scene.origin.clone());
    let check = async |request| client.clone().check(request).await;
    let reply = scene.decision_while_stopped(CheckRequest::default(), check).await;
    assert_eq!(reply.status.unwrap().code, 0, "OK");
}
