//! Streams that outlive their draining replica: their permits count until `max_duration`.

use std::any::Any;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::edge::grpc::permits::api::session_request::Request as StreamRequest;
use sluicegate::edge::grpc::permits::api::session_response::Response as StreamResponse;
use sluicegate::edge::grpc::permits::api::{AcquireRequest, Descriptor, Entry, SessionRequest};
use tokio::runtime::Runtime;
use tokio_stream::StreamExt as _;

use super::serve;
use super::strict_concurrency::{channel, open_stream, runtime, write_hook_settings};
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::{now, until};

const LIMIT: usize = 3;

/// The values of `max_duration`, in order. A busy machine may need longer to acquire all permits
/// and to drain.
const MAX_DURATIONS: [u64; 6] = [5, 10, 20, 40, 80, 160];

/// Acquires a permit that is released on drop. Returns `None` if it was denied.
type AcquirePermit = fn(&Runtime, &Service) -> Option<Box<dyn Any>>;

fn envoy(runtime: &Runtime, service: &Service) -> Option<Box<dyn Any>> {
    let permits = runtime.block_on(open_stream(channel(runtime, service)))?;
    Some(Box::new(permits))
}

fn nginx(_: &Runtime, service: &Service) -> Option<Box<dyn Any>> {
    let mut stream = TcpStream::connect(service.http).unwrap();
    let request = "GET /acquire HTTP/1.1\r\nhost: x\r\nx-hook: edge\r\nx-original-uri: /\r\n\
                   x-original-method: GET\r\nx-real-ip: 192.0.2.1\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut status = [0; 13];
    stream.read_exact(&mut status).unwrap();
    (status == *b"HTTP/1.1 200 ").then(|| Box::new(stream) as Box<dyn Any>)
}

fn api_client(runtime: &Runtime, service: &Service) -> Option<Box<dyn Any>> {
    let entries = vec![Entry { key: "upstream".into(), value: "all".into() }];
    let descriptors = vec![Descriptor { entries, hits: None }];
    let (id, domain) = ("request-0000000001".into(), "d".into());
    let asked = AcquireRequest { id, domain, descriptors, max_wait_us: None };
    let asked = [SessionRequest { request: Some(StreamRequest::Acquire(asked)) }];
    let asks = tokio_stream::iter(asked).chain(tokio_stream::pending());
    runtime.block_on(async {
        let mut client = PermitsClient::new(service.door().connect().await.unwrap());
        let mut answers = client.session(asks).await.unwrap().into_inner();
        let answer = answers.message().await.unwrap().unwrap();
        let is_held =
            matches!(answer.response, Some(StreamResponse::Acquire(said)) if said.has_permits);
        is_held.then(|| Box::new(answers) as Box<dyn Any>)
    })
}

/// Drains a replica that has all permits. Asserts that they stay in use until `max_duration`.
fn assert_requests_outlive(mode: &str, client: &str, acquire: AcquirePermit) {
    let mut limits = MAX_DURATIONS.into_iter().map(Duration::from_secs);
    let drained = limits.find_map(|limit| Some((limit, time_until_free(mode, limit, acquire)?)));
    let (max_duration, free_after) = drained.expect("the drain ends before the permits");
    assert!(max_duration <= free_after, "{client}: {free_after:?} of {max_duration:?}");
}

/// Drains a replica that has all permits. Returns the time from its first acquire to the next free
/// permit, or `None` if the drain took longer than `max_duration`.
fn time_until_free(mode: &str, max_duration: Duration, acquire: AcquirePermit) -> Option<Duration> {
    let (store, limits, runtime) = (Redis::start(), tempfile::tempdir().unwrap(), runtime());
    let text = format!(
        "domain: d\ndescriptors:\n- key: upstream\n  concurrency: {{limit: {LIMIT}, mode: {mode}, \
         max_duration: {}ms, on_store_failure: deny}}\n",
        max_duration.as_millis()
    );
    std::fs::write(limits.path().join("d.yaml"), text).unwrap();
    let settings_dir = tempfile::tempdir().unwrap();
    let settings = write_hook_settings(&settings_dir);
    let flags = ["--settings", settings.to_str().unwrap()];
    let pace =
        ["--fleet-heartbeat", "200ms", "--fleet-share-expiry", "1s", "--listen-drain-delay", "0s"];
    let replica = |node| {
        serve(
            limits.path(),
            &store.url(),
            &[&flags[..], &pace, &["--fleet-replica-name", node]].concat(),
        )
    };
    let (mut draining, remaining) = (replica("goes"), replica("stays"));
    let (mut permits, mut began) = (Vec::new(), now());
    until("all places are held", || {
        if permits.is_empty() {
            began = now();
        }
        permits.extend(acquire(&runtime, &draining));
        if permits.len() == LIMIT { Ok(()) } else { Err(draining.log()) }
    })
    .unwrap();
    assert!(acquire(&runtime, &remaining).is_none());
    draining.terminate();
    draining.ended().unwrap();
    if max_duration <= began.elapsed() {
        return None;
    }
    let acquire = || acquire(&runtime, &remaining).map(drop).ok_or_else(|| remaining.log());
    until("a place is free", acquire).unwrap();
    Some(began.elapsed())
}

/// Checks all clients at once, each with a fleet of its own: most of the time is `max_duration`.
fn assert_all_requests_outlive(mode: &str) {
    std::thread::scope(|scope| {
        for (client, acquire) in
            [("envoy", envoy as AcquirePermit), ("nginx", nginx), ("program", api_client)]
        {
            scope.spawn(move || assert_requests_outlive(mode, client, acquire));
        }
    });
}

#[test]
fn requests_outlive_their_replica_in_a_shared_limit() {
    assert_all_requests_outlive("shared");
}

#[test]
fn requests_outlive_their_replica_in_a_strict_limit() {
    assert_all_requests_outlive("strict");
}
