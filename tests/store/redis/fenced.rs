//! A replica whose store is gone tells the callers with requests in flight that its share expired.
//!
//! Guarantees:
//! - `Session` gets one message for each acquire, `Renew` and `Release` a field, `ext_proc` a header.
//! - While the share is valid, no caller is told.

use std::process::Output;

use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpHeaders, ProcessingRequest, ProcessingResponse,
};
use sluicegate::edge::grpc::ext_proc::FENCED_HEADER;
use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::edge::grpc::permits::api::session_request::Request as StreamRequest;
use sluicegate::edge::grpc::permits::api::session_response::Response as StreamResponse;
use sluicegate::edge::grpc::permits::api::{
    AcquireRequest, Descriptor, Entry, Outcome, ReleaseRequest, RenewRequest, SessionRequest,
    SessionResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::serve;
use super::strict_concurrency::{channel, runtime, write_hook_settings};
use crate::support::redis::Redis;
use crate::support::service::sluicegate;
use crate::support::waiting::soon;

const LIMITS: &str = "domain: d\ndescriptors:\n- key: upstream\n  concurrency: \
    {limit: 9, mode: shared, max_duration: 10m, on_store_failure: deny}\n";

const MAX_DURATION_US: u64 = 600_000_000;

/// The share expires after ten heartbeats: a busy machine delays one, but not ten.
const PACE: [&str; 4] = ["--fleet-heartbeat", "1s", "--fleet-share-expiry", "10s"];

fn acquire(id: &str) -> AcquireRequest {
    let entries = vec![Entry { key: "upstream".into(), value: "all".into() }];
    let descriptors = vec![Descriptor { entries, hits: None }];
    AcquireRequest { id: id.into(), domain: "d".into(), descriptors, max_wait_us: None }
}

fn release(id: &str) -> ReleaseRequest {
    let outcome = Outcome::Success.into();
    ReleaseRequest { id: id.into(), outcome, ..ReleaseRequest::default() }
}

fn renew(id: &str) -> RenewRequest {
    RenewRequest { id: id.into(), owner: String::new() }
}

/// A stream of one protocol: its requests, and its responses.
struct Stream<Q, R> {
    requests: mpsc::Sender<Q>,
    responses: Streaming<R>,
}

impl<Q, R> Stream<Q, R> {
    async fn call(&mut self, request: Q) -> R {
        assert!(self.requests.send(request).await.is_ok());
        self.response().await
    }

    async fn response(&mut self) -> R {
        soon("a response", self.responses.message()).await.unwrap().unwrap()
    }
}

async fn session(channel: Channel) -> Stream<SessionRequest, SessionResponse> {
    let (requests, sent) = mpsc::channel(1);
    let responses = PermitsClient::new(channel).session(ReceiverStream::new(sent)).await.unwrap();
    Stream { requests, responses: responses.into_inner() }
}

async fn ext_proc(channel: Channel) -> Stream<ProcessingRequest, ProcessingResponse> {
    let (requests, sent) = mpsc::channel(1);
    let mut client = ExternalProcessorClient::new(channel);
    let responses = client.process(ReceiverStream::new(sent)).await.unwrap().into_inner();
    let mut stream = Stream { requests, responses };
    let reply = stream.call(http(Message::RequestHeaders(HttpHeaders::default()))).await;
    assert!(matches!(reply.response, Some(Reply::RequestHeaders(_))), "{reply:?}");
    stream
}

fn http(message: Message) -> ProcessingRequest {
    ProcessingRequest { request: Some(message), ..ProcessingRequest::default() }
}

/// The names of the headers that are added to the response of a request.
async fn added_headers(stream: &mut Stream<ProcessingRequest, ProcessingResponse>) -> Vec<String> {
    let reply = stream.call(http(Message::ResponseHeaders(HttpHeaders::default()))).await;
    let Some(Reply::ResponseHeaders(reply)) = reply.response else { panic!("{reply:?}") };
    let mutation = reply.response.and_then(|common| common.header_mutation).unwrap_or_default();
    mutation.set_headers.into_iter().filter_map(|option| Some(option.header?.key)).collect()
}

#[test]
fn callers_learn_that_the_share_of_their_request_expired() {
    let (mut store, limits, runtime) = (Redis::start(), tempfile::tempdir().unwrap(), runtime());
    std::fs::write(limits.path().join("d.yaml"), LIMITS).unwrap();
    let mut start = sluicegate();
    let Output { status, .. } =
        start.args(["fleet", "start", "--store-url", &store.url()]).output().unwrap();
    assert!(status.success());
    let settings_dir = tempfile::tempdir().unwrap();
    let settings = write_hook_settings(&settings_dir);
    let flags = [&["--settings", settings.to_str().unwrap()], &PACE[..]].concat();
    let service = serve(limits.path(), &store.url(), &flags);
    let to_service = channel(&runtime, &service);
    let [in_session, later, alone] =
        ["session", "later", "alone"].map(|name| format!("{name}-0123456789abcdef"));
    runtime.block_on(async {
        let mut unary = PermitsClient::new(to_service.clone());
        let mut stream = session(to_service.clone()).await;
        let request = |request| SessionRequest { request: Some(request) };
        let acquired = stream.call(request(StreamRequest::Acquire(acquire(&in_session)))).await;
        assert!(
            matches!(acquired.response, Some(StreamResponse::Acquire(reply)) if reply.has_permits)
        );
        assert!(unary.acquire(acquire(&alone)).await.unwrap().into_inner().has_permits);
        assert!(!unary.renew(renew(&alone)).await.unwrap().into_inner().fenced);
        let (mut before, mut after) =
            (ext_proc(to_service.clone()).await, ext_proc(to_service.clone()).await);
        assert_eq!(added_headers(&mut before).await, [""; 0]);

        store.kill();
        let SessionResponse { id, response } = stream.response().await;
        let Some(StreamResponse::Fenced(fenced)) = response else { panic!("{response:?}") };
        assert_eq!(id, in_session);
        assert!((1..MAX_DURATION_US).contains(&fenced.abort_within_us), "{fenced:?}");

        let renewed = unary.renew(renew(&alone)).await.unwrap().into_inner();
        assert!(renewed.renewed && renewed.fenced, "{renewed:?}");
        let released = unary.release(release(&alone)).await.unwrap().into_inner();
        assert!(released.had_permits && released.fenced, "{released:?}");
        assert_eq!(added_headers(&mut after).await, [FENCED_HEADER]);

        // Each acquire is told once: the next message is the reply.
        let released = stream.call(request(StreamRequest::Release(release(&in_session)))).await;
        let Some(StreamResponse::Release(released)) = released.response else {
            panic!("{released:?}")
        };
        assert!(released.had_permits && released.fenced, "{released:?}");
        let denied = stream.call(request(StreamRequest::Acquire(acquire(&later)))).await;
        assert!(
            matches!(denied.response, Some(StreamResponse::Acquire(reply)) if !reply.has_permits)
        );
    });
}
