//! A client of `sluicegate.v1.Leases`.

use std::sync::Arc;

use sluicegate::config::hooks::Hooks;
use sluicegate::edge::health::Readiness;
use sluicegate::engine::Engine;
use sluicegate_lease_protocol::api::borrow_result::Result as Borrowed;
use sluicegate_lease_protocol::api::lease_message::Message as Reply;
use sluicegate_lease_protocol::api::leases_client::LeasesClient;
use sluicegate_lease_protocol::api::proxy_message::Message;
use sluicegate_lease_protocol::api::{
    BorrowMessage, LeaseEntry, LeaseMessage, LeasedCounter, ProxyHello, ProxyMessage, RateStrategy,
    RuleReply, RuleRequest,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::edge::grpc::{Served, served_with};
use crate::support::waiting::soon;

/// A leased limit of 100 hits a day, of which 20 may be outstanding.
pub const LEASED: &str = "- key: k\n  rate_limit: {unit: day, requests_per_unit: 100, mode: leased, max_overshoot: 20}\n";

pub async fn serve(engine: &Arc<Engine>) -> Served {
    served_with(Arc::clone(engine), Readiness::Ready, Hooks::default()).await
}

pub fn hello(incarnation: u64) -> ProxyHello {
    ProxyHello {
        protocol: 1,
        incarnation,
        name: "edge-1".into(),
        software: "envoy-module/0.1.0".into(),
    }
}

pub fn entries(entries: &[(&str, &str)]) -> Vec<LeaseEntry> {
    let entry = |(key, value): &(&str, &str)| LeaseEntry {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    entries.iter().map(entry).collect()
}

/// A message about the counter of the entry `k`, `v`, without its strategy.
pub fn borrow(number: u64, hits: u64, wanted: u64) -> BorrowMessage {
    BorrowMessage { number, hits, wanted, demand: wanted, ..BorrowMessage::default() }
}

/// The counter of the entry `k`, `value`.
pub fn counter_of(value: &str, strategy: impl Into<Option<RateStrategy>>) -> LeasedCounter {
    let (domain, entries) = ("d".into(), entries(&[("k", value)]));
    LeasedCounter { domain, entries, limit: String::new(), strategy: strategy.into() }
}

/// The stream of one proxy process.
pub struct ProxyStream {
    messages: mpsc::Sender<ProxyMessage>,
    replies: Streaming<LeaseMessage>,
    next_id: u64,
}

impl ProxyStream {
    /// Opens a stream, and reads the welcome.
    pub async fn open(served: &Served, incarnation: u64) -> Self {
        Self::connect(served.channel.clone(), incarnation).await
    }

    pub async fn connect(channel: Channel, incarnation: u64) -> Self {
        let first = ProxyMessage { id: 0, message: Some(Message::Hello(hello(incarnation))) };
        let mut stream = Self::start(channel, first).await;
        let welcome = stream.next().await.unwrap().unwrap();
        assert!(matches!(welcome.message, Some(Reply::Welcome(_))), "{welcome:?}");
        stream
    }

    pub async fn open_unread(served: &Served, hello: ProxyHello) -> Self {
        Self::open_with(served, ProxyMessage { id: 0, message: Some(Message::Hello(hello)) }).await
    }

    pub async fn open_with(served: &Served, first: ProxyMessage) -> Self {
        Self::start(served.channel.clone(), first).await
    }

    async fn start(channel: Channel, first: ProxyMessage) -> Self {
        let (messages, receiver) = mpsc::channel(64);
        messages.send(first).await.unwrap();
        let mut client = LeasesClient::new(channel);
        let replies = client.exchange(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Self { messages, replies, next_id: 1 }
    }

    pub async fn send(&self, message: ProxyMessage) {
        self.messages.send(message).await.unwrap();
    }

    /// Reads the next message; `None` at the end of the stream.
    pub async fn next(&mut self) -> Result<Option<LeaseMessage>, Status> {
        soon("a reply", self.replies.message()).await
    }

    /// Reads the error that ends the stream.
    pub async fn end(&mut self) -> Code {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return Code::Ok,
                Err(status) => return status.code(),
            }
        }
    }

    /// Sends a request and returns its reply. Skips announcements of new limits.
    pub async fn ask(&mut self, message: Message) -> Reply {
        let id = self.next_id;
        self.next_id += 1;
        self.send(ProxyMessage { id, message: Some(message) }).await;
        loop {
            let reply = self.next().await.unwrap().unwrap();
            if reply.id == id {
                return reply.message.unwrap();
            }
            assert!(matches!(reply.message, Some(Reply::LimitsChanged(_))), "{reply:?}");
        }
    }

    pub async fn rule(&mut self, domain: &str, of: &[(&str, &str)]) -> RuleReply {
        let request = RuleRequest { domain: domain.into(), entries: entries(of) };
        match self.ask(Message::Rule(request)).await {
            Reply::Rule(rule) => rule,
            other => panic!("{other:?}"),
        }
    }

    pub async fn borrow(
        &mut self,
        of: BorrowMessage,
        strategy: impl Into<Option<RateStrategy>>,
    ) -> Borrowed {
        let message = BorrowMessage { counter: Some(counter_of("v", strategy)), ..of };
        match self.ask(Message::Borrow(message)).await {
            Reply::Borrow(result) => result.result.unwrap(),
            other => panic!("{other:?}"),
        }
    }
}
