//! The rules of the stream itself: its first message, invalid messages, and a second stream.

use sluicegate_lease_protocol::api::leases_client::LeasesClient;
use sluicegate_lease_protocol::api::{
    BorrowMessage, LeaseMessage, ProxyHello, ProxyMessage, RuleRequest, lease_message,
    proxy_message,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::{LEASED, Served, engine, serve};
use crate::support::waiting::soon;

fn hello(protocol: u32, incarnation: u64) -> proxy_message::Message {
    let (name, software) = ("edge".to_owned(), "test".to_owned());
    proxy_message::Message::Hello(ProxyHello { protocol, incarnation, name, software })
}

type Open = (mpsc::Sender<ProxyMessage>, Streaming<LeaseMessage>);

async fn open(served: &Served, first: proxy_message::Message) -> Open {
    let (sender, receiver) = mpsc::channel(8);
    sender.send(ProxyMessage { id: 0, message: Some(first) }).await.unwrap();
    let mut client = LeasesClient::new(served.channel.clone());
    let replies = client.exchange(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    (sender, replies)
}

/// The end of the stream after all replies.
async fn end(mut replies: Streaming<LeaseMessage>) -> Result<(), Status> {
    let read = async {
        while replies.message().await?.is_some() {}
        Ok(())
    };
    soon("the end of the stream", read).await
}

#[tokio::test]
async fn a_stream_begins_with_a_valid_hello() {
    let engine = engine(LEASED);
    let served = serve(&engine).await;
    let rule = proxy_message::Message::Rule(RuleRequest::default());
    for (first, code) in [
        (hello(2, 7), Code::FailedPrecondition),
        (hello(1, 0), Code::InvalidArgument),
        (hello(1, 1 << 53), Code::InvalidArgument),
        (rule, Code::InvalidArgument),
    ] {
        let (_sender, replies) = open(&served, first.clone()).await;
        assert_eq!(end(replies).await.unwrap_err().code(), code, "{first:?}");
    }
    let (_sender, mut replies) = open(&served, hello(1, 7)).await;
    let welcome = soon("the welcome", replies.message()).await.unwrap().unwrap();
    assert!(matches!(welcome.message, Some(lease_message::Message::Welcome(_))));
}

#[tokio::test]
async fn an_invalid_message_ends_the_stream() {
    let engine = engine(LEASED);
    let served = serve(&engine).await;
    let rule = |id| (id, Some(proxy_message::Message::Rule(RuleRequest::default())));
    let borrow = Some(proxy_message::Message::Borrow(BorrowMessage::default()));
    for (id, message) in [rule(1), rule(0), (1, borrow), (1, None), (1, Some(hello(1, 7)))] {
        let (sender, replies) = open(&served, hello(1, 7)).await;
        sender.send(ProxyMessage { id, message: message.clone() }).await.unwrap();
        assert_eq!(end(replies).await.unwrap_err().code(), Code::InvalidArgument, "{message:?}");
    }
}

#[tokio::test]
async fn a_second_stream_of_a_process_replaces_the_first() {
    let engine = engine(LEASED);
    let served = serve(&engine).await;
    let (_first, replies) = open(&served, hello(1, 7)).await;
    let (_other, mut others) = open(&served, hello(1, 8)).await;
    others.message().await.unwrap();
    let (_second, mut seconds) = open(&served, hello(1, 7)).await;
    seconds.message().await.unwrap();
    assert_eq!(end(replies).await.unwrap_err().code(), Code::Aborted);
    assert_eq!(engine.proxies().count(), 2);
}
