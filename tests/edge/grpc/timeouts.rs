//! Messages that arrive late, in parts or not at all.

use std::sync::Arc;

use sluicegate::edge::health::Readiness;
use sluicegate::kernel::concurrency::RequestOutcome;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request};

use super::{Bytes, CHECK, METHOD, PROCESS, SESSION, framed, limited, padded, served};
use crate::edge::{descriptor, engine_with_concurrency, request};
use crate::support::waiting::PATIENCE;

const LOGS: &str = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs";

/// Takes 15 seconds, the server's timeout for a complete message.
#[tokio::test]
async fn a_call_without_a_message_times_out() {
    let served = limited().await;
    let mut client = tonic::client::Grpc::new(served.channel.clone());
    client.ready().await.unwrap();
    let (never, path) = (tokio_stream::pending::<Vec<u8>>(), PathAndQuery::from_static(METHOD));
    let call = client.streaming(Request::new(never), path, Bytes);
    let ended = tokio::time::timeout(2 * PATIENCE, call).await.expect("it has to end");
    let refused = ended.map(|_| ()).unwrap_err();
    assert!(refused.message().contains("in time"), "{refused}");
}

/// Takes 15 seconds, the server's timeout for a complete message.
#[tokio::test]
async fn partial_messages_time_out_but_idle_streams_stay_open() {
    let served = limited().await;
    let (sender, receiver) = mpsc::channel(1);
    let mut quiet = served.open(SESSION, ReceiverStream::new(receiver)).await.unwrap();
    let mut gets_reply = async || {
        sender.send(Vec::new()).await.unwrap();
        let reply = tokio::time::timeout(PATIENCE, quiet.message()).await;
        reply.expect("an answer").unwrap().is_some()
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
    let ended = tokio::time::timeout(2 * PATIENCE, all).await.expect("all have to end");
    let (process, hold, check, _log) = ended;
    for refused in [process, hold, check] {
        assert!(refused.message().contains("in time"), "{refused}");
    }
    assert!(gets_reply().await, "it has nothing to bring to its end");
}

#[tokio::test]
async fn a_rejected_acquire_stores_no_early_release() {
    let engine = engine_with_concurrency("limit: 1");
    let served = served(Arc::clone(&engine), Readiness::Ready).await;
    let id = "0123456789abcdef";
    let mut asked = descriptor("k", &"v".repeat(1 << 16));
    asked.entries.extend(descriptor("sluicegate.acquire", id).entries);
    let refused = served.ask(request(vec![asked])).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(!engine.release(id, None, RequestOutcome::Success, None));
    assert_eq!(engine.early_releases().0, 0, "it takes no room among those that came early");
    served.shut_down().await.unwrap();
}

/// Takes 15 seconds, the server's timeout for a complete message.
#[tokio::test]
async fn an_unfinished_call_is_not_decoded() {
    let served = limited().await;
    let broken = framed(&[0xff; 9]);
    assert_eq!(served.code(CHECK, vec![0xff; 9]).await, Code::Internal);
    let ended = tokio::time::timeout(2 * PATIENCE, served.send_unfinished(CHECK, broken)).await;
    let refused = ended.expect("it has to end");
    assert!(refused.message().contains("in time"), "{refused}");
}
