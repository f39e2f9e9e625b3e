//! Random messages of a hostile program that acquires, renews and releases permits.

use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::edge::grpc::permits::api::session_request::Request as SessionMessage;
use sluicegate::edge::grpc::permits::api::{
    AcquireRequest, Answer, Descriptor, Entry, Outcome, ReleaseRequest, RenewRequest,
    SessionRequest,
};
use tokio_stream::StreamExt as _;
use tonic::transport::Channel;

use super::{STREAM_MESSAGES, any_number};
use crate::support::dice::Dice;
use crate::support::waiting::soon;

/// The id of the honest program. No message has it.
const HONEST_ID: &str = "honest-5d1f0c7d9a3e4582";

/// A program with the only permit of the limit `quiet-strict`.
pub(super) struct HonestProgram {
    client: PermitsClient<Channel>,
}

impl HonestProgram {
    pub(super) async fn acquire(channel: Channel) -> Self {
        let mut program = Self { client: PermitsClient::new(channel) };
        // An empty store grants the first permit of a strict limit late.
        program.acquire_soon().await;
        program
    }

    async fn acquire_soon(&mut self) {
        let acquired = async {
            while !self.try_acquire(HONEST_ID).await {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        };
        soon("a permit", acquired).await;
    }

    async fn try_acquire(&mut self, id: &str) -> bool {
        let acquire = acquire(id.to_owned(), "quiet-strict", "a".to_owned());
        self.client.acquire(acquire).await.unwrap().into_inner().has_permits
    }

    /// Requires that the permit is in use and that its id releases it.
    pub(super) async fn expect_unchanged(&mut self) {
        assert!(!self.try_acquire("another-0123456789abcdef").await, "a second permit");
        let renew = RenewRequest { id: HONEST_ID.to_owned(), owner: String::new() };
        assert!(self.client.renew(renew).await.unwrap().into_inner().renewed);
        let outcome = Outcome::Success.into();
        let release = ReleaseRequest { id: HONEST_ID.to_owned(), outcome, ..Default::default() };
        assert!(self.client.release(release).await.unwrap().into_inner().had_permits);
        // The store learns of a release with the next report.
        self.acquire_soon().await;
    }
}

fn acquire(id: String, key: &str, value: String) -> AcquireRequest {
    let entries = vec![Entry { key: key.to_owned(), value }];
    let descriptors = vec![Descriptor { entries, hits: None }];
    AcquireRequest { id, domain: "d".to_owned(), descriptors, max_wait_us: None }
}

/// An id that is often in use, an invalid or a very long one.
fn any_id(dice: &mut Dice) -> String {
    match dice.up_to(9) {
        0 => "!".repeat(usize::try_from(dice.up_to(3)).unwrap()),
        1 => "x".repeat(usize::try_from(dice.up_to(100_000)).unwrap()),
        2..=3 => format!("hostile-0123456789-{}", dice.up_to(1 << 40)),
        _ => format!("hostile-0123456789-{}", dice.up_to(40)),
    }
}

fn any_acquire(dice: &mut Dice) -> AcquireRequest {
    let key = dice.pick(&["shared", "strict", "user", "queued", "none"]);
    let value = match dice.up_to(9) {
        0 => "v".repeat(usize::try_from(dice.up_to(300_000)).unwrap()),
        1..=4 => dice.up_to(1 << 40).to_string(),
        _ => "a".to_owned(),
    };
    let mut acquire = acquire(any_id(dice), key, value);
    if dice.once_in(9) {
        acquire.descriptors =
            vec![Descriptor::default(); usize::try_from(dice.up_to(1_100)).unwrap()];
    }
    acquire
        .descriptors
        .iter_mut()
        .for_each(|it| it.hits = dice.once_in(9).then(|| any_number(dice)));
    acquire.max_wait_us = dice.once_in(3).then(|| any_number(dice));
    acquire
}

fn any_owner(dice: &mut Dice) -> String {
    match dice.up_to(5) {
        0 => "x".repeat(usize::try_from(dice.up_to(100)).unwrap()),
        1 => sluicegate::engine::fleet::incarnation::incarnation_name("a", any_number(dice)).into(),
        _ => String::new(),
    }
}

fn any_release(dice: &mut Dice) -> ReleaseRequest {
    let any_status = |dice: &mut Dice| u32::try_from(dice.up_to(700)).unwrap();
    let answer = |dice: &mut Dice| Answer {
        http_status: dice.once_in(2).then(|| any_status(dice)),
        grpc_status: dice.once_in(2).then(|| any_status(dice) / 35),
        retry_after_us: dice.once_in(2).then(|| any_number(dice)),
    };
    ReleaseRequest {
        id: any_id(dice),
        outcome: i32::try_from(dice.up_to(4)).unwrap(),
        rtt_us: dice.once_in(2).then(|| any_number(dice)),
        owner: any_owner(dice),
        answer: dice.once_in(3).then(|| answer(dice)),
    }
}

fn any_message(dice: &mut Dice) -> Option<SessionMessage> {
    match dice.up_to(9) {
        0 => None,
        1..=2 => Some(SessionMessage::Release(any_release(dice))),
        3 => Some(SessionMessage::Renew(RenewRequest { id: any_id(dice), owner: any_owner(dice) })),
        _ => Some(SessionMessage::Acquire(any_acquire(dice))),
    }
}

/// Sends random messages on a stream, and then reads replies until it ends. Returns their number.
pub(super) async fn send_session(channel: &Channel, dice: &mut Dice) -> usize {
    let message = |_| SessionRequest { request: any_message(dice) };
    let messages: Vec<_> = (0..STREAM_MESSAGES).map(message).collect();
    let mut client = PermitsClient::new(channel.clone());
    let mut replies = client.session(tokio_stream::iter(messages)).await.unwrap().into_inner();
    while let Some(Ok(_)) = soon("the end of the stream", replies.next()).await {}
    STREAM_MESSAGES
}

/// Sends random messages, each in a call of its own. Returns their number.
pub(super) async fn send_calls(channel: &Channel, dice: &mut Dice) -> usize {
    let mut client = PermitsClient::new(channel.clone());
    for _ in 0..STREAM_MESSAGES {
        // Any reply and any error is right, as long as there is one.
        match any_message(dice) {
            Some(SessionMessage::Acquire(it)) => drop(soon("a reply", client.acquire(it)).await),
            Some(SessionMessage::Release(it)) => drop(soon("a reply", client.release(it)).await),
            Some(SessionMessage::Renew(it)) => drop(soon("a reply", client.renew(it)).await),
            None => {}
        }
    }
    STREAM_MESSAGES
}
