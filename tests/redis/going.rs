//! A replica that goes while requests are in flight whose ends it sees by their streams: they go on, and count for the others.

use std::any::Any;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use sluicegate::edge::grpc::permits::api::hold_request::Ask;
use sluicegate::edge::grpc::permits::api::hold_response::Answer;
use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::edge::grpc::permits::api::{AcquireRequest, Descriptor, Entry, HoldRequest};
use tokio::runtime::Runtime;
use tokio_stream::StreamExt as _;

use super::strict::{door, hooks, runtime, stream};
use super::{Store, serve};
use crate::service::Service;
use crate::waiting::{now, until};

const CEILING: usize = 3;
/// Long enough for a crowded machine to take all places and to go within it.
const MAX_DURATION: Duration = Duration::from_secs(5);

/// What holds a place at a replica until it is dropped; none where there is no place.
type Opens = fn(&Runtime, &Service) -> Option<Box<dyn Any>>;

fn envoy(runtime: &Runtime, service: &Service) -> Option<Box<dyn Any>> {
    let held = runtime.block_on(stream(door(runtime, service)))?;
    Some(Box::new(held))
}

fn nginx(_: &Runtime, service: &Service) -> Option<Box<dyn Any>> {
    let mut stream = TcpStream::connect(service.http).unwrap();
    let request = "GET /hold HTTP/1.1\r\nhost: x\r\nx-hook: edge\r\nx-original-uri: /\r\n\
                   x-original-method: GET\r\nx-real-ip: 192.0.2.1\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut status = [0; 13];
    stream.read_exact(&mut status).unwrap();
    (status == *b"HTTP/1.1 200 ").then(|| Box::new(stream) as Box<dyn Any>)
}

fn program(runtime: &Runtime, service: &Service) -> Option<Box<dyn Any>> {
    let entries = vec![Entry { key: "upstream".into(), value: "all".into() }];
    let descriptors = vec![Descriptor { entries, hits: None }];
    let (id, domain) = ("request-0000000001".into(), "d".into());
    let asked = AcquireRequest { id, domain, descriptors, max_wait_us: None };
    let asked = [HoldRequest { ask: Some(Ask::Acquire(asked)) }];
    let asks = tokio_stream::iter(asked).chain(tokio_stream::pending());
    runtime.block_on(async {
        let mut client = PermitsClient::new(service.door().connect().await.unwrap());
        let mut answers = client.hold(asks).await.unwrap().into_inner();
        let answer = answers.message().await.unwrap().unwrap();
        let is_held = matches!(answer.answer, Some(Answer::Acquire(said)) if said.held);
        is_held.then(|| Box::new(answers) as Box<dyn Any>)
    })
}

/// How long after it took the first place nobody else came in, of a replica that holds all places and goes.
fn closed_for(mode: &str, opens: Opens) -> Duration {
    let (store, limits, runtime) = (Store::running(), tempfile::tempdir().unwrap(), runtime());
    let text = format!(
        "domain: d\ndescriptors:\n- key: upstream\n  concurrency: {{limit: {CEILING}, mode: {mode}, \
         max_duration: {}ms, on_backend_failure: deny}}\n",
        MAX_DURATION.as_millis()
    );
    std::fs::write(limits.path().join("d.yaml"), text).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let settings = hooks(&elsewhere);
    // What is said for the last time is said once, so that the store must hear of it.
    let flags = ["--settings", settings.to_str().unwrap(), "--backend-deadline", "2s"];
    let pace = ["--fleet-heartbeat", "200ms", "--fleet-term", "1s", "--drain-delay", "0s"];
    let replica = |node| {
        serve(limits.path(), &store.url(), &[&flags[..], &pace, &["--node-id", node]].concat())
    };
    let (mut goes, stays) = (replica("goes"), replica("stays"));
    let (mut held, mut began) = (Vec::new(), now());
    until("all places are held", || {
        if held.is_empty() {
            began = now();
        }
        held.extend(opens(&runtime, &goes));
        if held.len() == CEILING { Ok(()) } else { Err(goes.log()) }
    })
    .unwrap();
    assert!(opens(&runtime, &stays).is_none());
    goes.terminate();
    goes.ended().unwrap();
    assert!(began.elapsed() < MAX_DURATION, "gone before they are over: {}", goes.log());
    let opens = || opens(&runtime, &stays).map(drop).ok_or_else(|| stays.log());
    until("a place is free", opens).unwrap();
    began.elapsed()
}

#[test]
fn requests_whose_replica_goes_count_in_shares_until_max_duration_is_over() {
    for (who, opens) in [("envoy", envoy as Opens), ("nginx", nginx), ("program", program)] {
        let closed = closed_for("leased", opens);
        assert!(MAX_DURATION <= closed, "{who}: {closed:?}");
    }
}

#[test]
fn requests_whose_replica_goes_count_in_a_strict_ceiling_until_max_duration_is_over() {
    for (who, opens) in [("envoy", envoy as Opens), ("nginx", nginx), ("program", program)] {
        let closed = closed_for("strict", opens);
        assert!(MAX_DURATION <= closed, "{who}: {closed:?}");
    }
}
