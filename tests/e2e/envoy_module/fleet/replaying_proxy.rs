//! A deliberately broken proxy, which shows that the bound of the fleet can be exceeded.
//!
//! Guarantees:
//! - Each lease is spent, reported as spent, and spent again.

use std::net::SocketAddr;

use sluicegate_lease_protocol::api::leases_client::LeasesClient;
use sluicegate_lease_protocol::api::{
    BorrowMessage, LeaseEntry, LeaseMessage, LeasedCounter, ProxyHello, ProxyMessage, RuleReply,
    RuleRequest, borrow_result, lease_message, proxy_message,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

use crate::support::http1::Connection;
use crate::support::waiting::soon;

/// Hits of one request to borrow.
const WANTED: u64 = 100;

/// Borrows `hits` or a little more, and sends two requests to the upstream for each.
pub fn spend_leases_twice(replica: &Endpoint, upstream: SocketAddr, hits: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut proxy = Proxy::connect(replica).await;
        let rule = proxy.rule().await;
        let (mut number, mut borrowed) = (1, 0);
        while borrowed < hits {
            let granted = proxy.borrow(&rule, number).await;
            assert!(0 < granted, "{borrowed} of {hits} borrowed");
            spend(upstream, 2 * granted);
            (number, borrowed) = (number + 1, borrowed + granted);
        }
    });
}

fn spend(upstream: SocketAddr, hits: u64) {
    let mut connection = Connection::open(upstream).unwrap();
    for _ in 0..hits {
        assert_eq!(connection.get(&[]).unwrap(), 200);
    }
}

/// A stream.
struct Proxy {
    sender: mpsc::Sender<ProxyMessage>,
    replies: Streaming<LeaseMessage>,
}

impl Proxy {
    async fn connect(replica: &Endpoint) -> Self {
        let (sender, receiver) = mpsc::channel(8);
        let (name, software) = ("replaying".to_owned(), "test".to_owned());
        let hello = ProxyHello { protocol: 1, incarnation: 1, name, software };
        let hello = proxy_message::Message::Hello(hello);
        sender.send(ProxyMessage { id: 0, message: Some(hello) }).await.unwrap();
        let mut client = LeasesClient::new(replica.connect().await.unwrap());
        let replies = client.exchange(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Self { sender, replies }
    }

    /// Reports that all leased hits are spent, and returns the newly granted hits.
    async fn borrow(&mut self, rule: &RuleReply, number: u64) -> u64 {
        let limit = &rule.leased[0];
        let counter = LeasedCounter {
            domain: "shop".to_owned(),
            entries: rule.counter.clone(),
            limit: limit.name.clone(),
            strategy: limit.strategy.clone(),
        };
        let message = BorrowMessage {
            counter: Some(counter),
            number,
            last_lease: number - 1,
            wanted: WANTED,
            demand: WANTED,
            ..BorrowMessage::default()
        };
        let reply = self.call(proxy_message::Message::Borrow(message)).await;
        let lease_message::Message::Borrow(reply) = reply else { panic!("{reply:?}") };
        match reply.result {
            Some(borrow_result::Result::Applied(reply)) => reply.granted,
            other => panic!("{other:?}"),
        }
    }

    async fn rule(&mut self) -> RuleReply {
        let entries = vec![LeaseEntry { key: "api_key".to_owned(), value: "all".to_owned() }];
        let request = RuleRequest { domain: "shop".to_owned(), entries };
        let reply = self.call(proxy_message::Message::Rule(request)).await;
        let lease_message::Message::Rule(rule) = reply else { panic!("{reply:?}") };
        rule
    }

    async fn call(&mut self, message: proxy_message::Message) -> lease_message::Message {
        self.sender.send(ProxyMessage { id: 1, message: Some(message) }).await.unwrap();
        loop {
            let reply = soon("the reply", self.replies.message()).await.unwrap().unwrap();
            if reply.id == 1 {
                return reply.message.unwrap();
            }
        }
    }
}
