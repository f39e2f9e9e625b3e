//! A caller that says how long it waits (`grpc-timeout`) is answered before that, though the store may take longer.

use std::time::Duration;

use envoy_types::pb::envoy::service::auth::v3::CheckRequest;
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::degrade::descriptor;
use super::{Store, failures, limits, serve, wait_until_whole};
use crate::service::Service;
use crate::waiting::now;

/// How long the caller waits; the store may take 10 s.
const WAITS: Duration = Duration::from_millis(40);

/// When it is answered that the store did not: 2 ms before.
const LEAVES: Duration = Duration::from_millis(38);

/// On a crowded machine an answer may be longer than that on its way: one of so many is not.
const TRIES: usize = 50;

const HOOKS: &str = "hooks:
- name: edge
  domain: d
  descriptors:
  - [{generic_key: {descriptor_key: allow, descriptor_value: v}}]
";

/// A service over a store that can be stopped.
struct Scene {
    store: Store,
    service: Service,
    door: Channel,
    _files: [TempDir; 2],
}

impl Scene {
    fn start() -> Self {
        let (store, limits, settings) =
            (Store::running(), limits(10), tempfile::tempdir().unwrap());
        let file = settings.path().join("server.yaml");
        std::fs::write(&file, HOOKS).unwrap();
        let flags = ["--settings", file.to_str().unwrap(), "--backend-deadline", "10s"];
        let service = serve(limits.path(), &store.url(), &flags);
        wait_until_whole(&service);
        let door = service.door().connect_lazy();
        Self { store, service, door, _files: [limits, settings] }
    }

    /// What it is answered while the store is stopped; before, the store answers.
    async fn answer<Q: Clone, A>(
        &self,
        question: Q,
        ask: impl AsyncFn(Request<Q>) -> Result<Response<A>, Status>,
    ) -> A {
        ask(Request::new(question.clone())).await.unwrap();
        assert_eq!(failures(&self.service, "late"), 0, "{}", self.service.log());
        self.store.signal("STOP");
        let mut refused = None;
        for _ in 0..TRIES {
            let mut request = Request::new(question.clone());
            request.set_timeout(WAITS);
            let began = now();
            match ask(request).await {
                Ok(answer) => {
                    assert!(LEAVES <= began.elapsed(), "{}", self.service.log());
                    assert!(0 < failures(&self.service, "late"));
                    return answer.into_inner();
                }
                Err(status) => refused = Some(status),
            }
        }
        panic!("not one in time: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_waits_for_less_than_the_deadline_is_told_what_holds_without_the_store() {
    let scene = Scene::start();
    let asked = RateLimitRequest {
        domain: "d".to_owned(),
        descriptors: vec![descriptor("allow")],
        hits_addend: 0,
    };
    let client = RateLimitServiceClient::new(scene.door.clone());
    let ask = async |request| client.clone().should_rate_limit(request).await;
    assert_eq!(scene.answer(asked, ask).await.overall_code(), Code::Ok);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ext_authz_that_waits_for_less_than_the_deadline_is_told_what_holds_without_the_store() {
    let scene = Scene::start();
    let client = AuthorizationClient::new(scene.door.clone());
    let ask = async |request| client.clone().check(request).await;
    let reply = scene.answer(CheckRequest::default(), ask).await;
    assert_eq!(reply.status.unwrap().code, 0, "OK");
}
