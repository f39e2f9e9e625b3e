//! Requests of Envoy's `ext_proc` filter: each opens a stream, gets a permit for the request headers, and
//! releases it with the response headers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpHeaders, ProcessingRequest};
use tonic::transport::Channel;

use super::service::{CONNECTIONS, IN_FLIGHT, Server};

pub(crate) const LIMITS: &str = "domain: shop\ndescriptors:\n- key: api_key\n  \
                                 concurrency: {limit: 100000, max_duration: 60s}\n";

pub(crate) const SETTINGS: &str = "hooks:\n- name: edge\n  domain: shop\n  descriptors:\n  \
     - [{request_headers: {header_name: x-api-key, descriptor_key: api_key}}]\n";

type Client = ExternalProcessorClient<Channel>;

/// CPU nanoseconds of `server` per request, for `requests` requests of `keys` clients over
/// [`CONNECTIONS`] connections with [`IN_FLIGHT`] requests on each.
pub(crate) async fn cpu_per_request(server: &Server, keys: u64, requests: u64) -> f64 {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(Client::connect(server.url()).await.unwrap());
    }
    let left = Arc::new(AtomicU64::new(requests));
    let before = server.on_processors();
    let worker = |index: usize| {
        let (client, left) = (clients[index % CONNECTIONS].clone(), Arc::clone(&left));
        tokio::spawn(async move {
            while let Ok(number) = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
                send(client.clone(), number % keys).await;
            }
        })
    };
    for task in (0..CONNECTIONS * IN_FLIGHT).map(worker).collect::<Vec<_>>() {
        task.await.unwrap();
    }
    (server.on_processors() - before) as f64 / requests as f64
}

async fn send(mut client: Client, key: u64) {
    let (messages, stream) = tokio::sync::mpsc::channel(2);
    messages
        .send(of(Message::RequestHeaders, "x-api-key", format!("client-{key:04}")))
        .await
        .unwrap();
    let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
    let mut replies = client.process(stream).await.unwrap().into_inner();
    let started = replies.message().await.unwrap().unwrap().response;
    assert!(matches!(started, Some(Reply::RequestHeaders(_))), "{started:?}");
    messages.send(of(Message::ResponseHeaders, ":status", "200".into())).await.unwrap();
    let ended = replies.message().await.unwrap().unwrap().response;
    assert!(matches!(ended, Some(Reply::ResponseHeaders(_))), "{ended:?}");
}

fn of(phase: fn(HttpHeaders) -> Message, key: &str, value: String) -> ProcessingRequest {
    let line =
        HeaderValue { key: key.into(), raw_value: value.into_bytes(), ..HeaderValue::default() };
    let headers = Some(HeaderMap { headers: vec![line] });
    let message = phase(HttpHeaders { headers, ..HttpHeaders::default() });
    ProcessingRequest { request: Some(message), ..ProcessingRequest::default() }
}
