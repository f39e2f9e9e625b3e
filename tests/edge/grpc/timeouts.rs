//! Messages that arrive late, in parts or not at all.

use std::sync::Arc;
use std::time::Duration;

use sluicegate::edge::grpc::GrpcTimeouts;
use sluicegate::edge::health::Readiness;
use sluicegate::kernel::concurrency::RequestOutcome;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request};

use super::{Bytes, CHECK, METHOD, PROCESS, SESSION, Served, framed, limited_with, padded, served};
use crate::edge::{descriptor, engine_with_concurrency, request};
use crate::support::waiting::{now, soon};

const LOGS: &str = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs";

/// The server's timeout for a complete message in these tests.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(2);

async fn impatient() -> Served {
    limited_with(GrpcTimeouts { message: MESSAGE_TIMEOUT, ..GrpcTimeouts::default() }).await
}

#[tokio::test]
async fn a_call_without_a_message_times_out() {
    let served = impatient().await;
    let mut client = tonic::client::Grpc::new(served.channel.clone());
    client.ready().await.unwrap();
    let (never, path) = (tokio_stream::pending::<Vec<u8>>(), PathAndQuery::from_static(METHOD));
    let began = now();
    let call = client.streaming(Request::new(never), path, Bytes);
    let refused = soon("the end of the call", call).await.map(|_| ()).unwrap_err();
    assert!(refused.message().contains("in time"), "{refused}");
    assert!(MESSAGE_TIMEOUT <= began.elapsed(), "ended after {:?}", began.elapsed());
}

#[tokio::test]
async fn partial_messages_time_out_but_idle_streams_stay_open() {
    let served = impatient().await;
    let (sender, receiver) = mpsc::channel(1);
    let mut quiet = served.open(SESSION, ReceiverStream::new(receiver)).await.unwrap();
    let mut gets_reply = async || {
        sender.send(Vec::new()).await.unwrap();
        soon("an answer", quiet.message()).await.unwrap().is_some()
    };
    assert!(gets_reply().await);
    let mut cut = framed(&padded(vec![], 1_000));
    cut.pop();
    // On the second stream, a complete message precedes the incomplete one.
    let second = [framed(&[]), cut.clone()].concat();
    let all = async {
        tokio::join!(
            served.send_unfinished(PROCESS, cut.clone()),
            served.send_unfinished(SESSION, second),
            served.send_unfinished(CHECK, cut.clone()),
            served.send_unfinished(LOGS, cut.clone()),
        )
    };
    let (process, hold, check, _log) = soon("the end of all calls", all).await;
    for refused in [process, hold, check] {
        assert!(refused.message().contains("in time"), "{refused}");
    }
    assert!(gets_reply().await, "it has nothing to bring to its end");
}

#[tokio::test]
async fn a_stream_is_charged_only_while_a_message_is_incomplete() {
    let served = impatient().await;
    let (sender, receiver) = mpsc::channel(1);
    let mut stream = served.open(SESSION, ReceiverStream::new(receiver)).await.unwrap();
    sender.send(padded(vec![], 1 << 20)).await.unwrap();
    assert!(soon("an answer", stream.message()).await.unwrap().is_some());
    assert_eq!(served.bodies.in_use(), 0, "the stream is open");
    let mut cut = framed(&padded(vec![], 500_000));
    cut.pop();
    let charged = async {
        while served.bodies.in_use() < 400_000 {
            tokio::task::yield_now().await;
        }
    };
    let both = async { tokio::join!(served.send_unfinished(SESSION, cut), charged) };
    let (refused, ()) = soon("the end of the message", both).await;
    assert!(refused.message().contains("in time"), "{refused}");
    let freed = async {
        while served.bodies.in_use() != 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("the memory is free", freed).await;
}

#[tokio::test]
async fn a_rejected_acquire_stores_no_early_release() {
    let engine = engine_with_concurrency("limit: 1");
    let served = served(Arc::clone(&engine), Readiness::Ready).await;
    let id = "0123456789abcdef";
    let mut asked = descriptor(&"k".repeat(1 << 16), "v");
    asked.entries.extend(descriptor("sluicegate.acquire", id).entries);
    let refused = served.ask(request(vec![asked])).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(!engine.release(id, None, RequestOutcome::Success, None));
    assert_eq!(engine.early_releases().0, 0, "it takes no room among those that came early");
    served.shut_down().await.unwrap();
}

#[tokio::test]
async fn an_unfinished_call_is_not_decoded() {
    let served = impatient().await;
    let broken = framed(&[0xff; 9]);
    assert_eq!(served.code(CHECK, vec![0xff; 9]).await, Code::Internal);
    let refused = soon("the end of the call", served.send_unfinished(CHECK, broken)).await;
    assert!(refused.message().contains("in time"), "{refused}");
}
