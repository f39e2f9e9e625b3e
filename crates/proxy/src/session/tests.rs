//! The calls of a session: their bound, their replies, stalls and the end of the stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::mpsc;

use super::{MAX_CALLS, Session};
use crate::call::CallFailure;
use crate::kernel::units::Nanos;
use crate::wire::api::{LeaseMessage, LimitsChanged, ProxyMessage, RuleRequest};
use crate::wire::api::{lease_message, proxy_message};

const WAIT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(3_600);

fn open(capacity: usize) -> (Arc<Session>, mpsc::Receiver<ProxyMessage>) {
    let (outgoing, queue) = mpsc::channel(capacity);
    (Arc::new(Session::new(outgoing)), queue)
}

fn request() -> proxy_message::Message {
    proxy_message::Message::Rule(RuleRequest::default())
}

/// A reply with a number, by which a test recognizes it.
fn reply(id: u64, limits: u64) -> LeaseMessage {
    let message = lease_message::Message::LimitsChanged(LimitsChanged { limits });
    LeaseMessage { id, message: Some(message) }
}

const fn millis(millis: u64) -> Nanos {
    Nanos(millis * 1_000_000)
}

/// A session with a call of the instant 1 s that had no reply in time.
async fn stalled() -> (Arc<Session>, mpsc::Receiver<ProxyMessage>) {
    let (session, queue) = open(8);
    let failed = session.call(request(), millis(1_000), WAIT).await;
    assert_eq!(failed, Err(CallFailure::TimedOut));
    (session, queue)
}

fn poll<T>(call: &mut Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn a_stalled_session_gets_one_call_per_250_ms() {
    let (session, _queue) = stalled().await;
    let accepted: Vec<u64> =
        (1_020..2_020).filter(|at| session.accepts_calls(millis(*at))).collect();
    assert_eq!(accepted, [1_020, 1_270, 1_520, 1_770]);
}

#[tokio::test(start_paused = true)]
async fn any_reply_ends_a_stall() {
    let (session, _queue) = stalled().await;
    session.receive(reply(99, 0), millis(1_021));
    assert!((1_021..1_100).all(|at| session.accepts_calls(millis(at))));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_after_a_later_reply_is_no_stall() {
    let (session, _queue) = open(8);
    let late = session.call(request(), millis(1_000), WAIT);
    let other = async { session.receive(reply(99, 0), millis(1_001)) };
    let (late, ()) = tokio::join!(late, other);
    assert_eq!(late, Err(CallFailure::TimedOut));
    assert!((1_020..1_100).all(|at| session.accepts_calls(millis(at))));
}

#[tokio::test(start_paused = true)]
async fn close_fails_all_calls_and_refuses_new_ones() {
    let (session, _queue) = open(8);
    let mut calls: Vec<_> =
        (0..8).map(|_| Box::pin(session.call(request(), millis(0), LONG))).collect();
    assert!(calls.iter_mut().all(|call| poll(call).is_pending()));
    session.close();
    for call in calls {
        assert_eq!(call.await, Err(CallFailure::Lost));
    }
    assert_eq!(session.call(request(), millis(0), LONG).await, Err(CallFailure::NotConnected));
}

#[tokio::test(start_paused = true)]
async fn replies_in_any_order_reach_their_calls() {
    let (session, mut queue) = open(8);
    let [mut first, mut second] =
        [(), ()].map(|()| Box::pin(session.call(request(), millis(0), LONG)));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    let (first_id, second_id) = (queue.recv().await.unwrap().id, queue.recv().await.unwrap().id);
    session.receive(reply(second_id, 2), millis(1));
    session.receive(reply(first_id, 1), millis(1));
    assert_eq!(first.await.ok(), reply(0, 1).message);
    assert_eq!(second.await.ok(), reply(0, 2).message);
}

#[tokio::test(start_paused = true)]
async fn calls_are_bounded_and_dropped_calls_wait_no_longer() {
    let (session, mut queue) = open(2 * MAX_CALLS);
    let mut calls: Vec<_> =
        (0..MAX_CALLS).map(|_| Box::pin(session.call(request(), millis(0), LONG))).collect();
    assert!(calls.iter_mut().all(|call| poll(call).is_pending()));
    let refused = session.call(request(), millis(0), LONG).await;
    assert_eq!(refused, Err(CallFailure::Overloaded));
    assert_eq!(queue.len(), MAX_CALLS, "a refused call is not sent");
    drop(calls);
    let mut call = Box::pin(session.call(request(), millis(0), LONG));
    assert!(poll(&mut call).is_pending());
    while let Ok(ProxyMessage { id, .. }) = queue.try_recv() {
        session.receive(reply(id, id), millis(1));
    }
    assert!(call.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_fails_a_call_at_once() {
    let (session, mut queue) = open(1);
    assert!(session.send(request()));
    assert!(!session.send(request()));
    let mut call = Box::pin(session.call(request(), millis(0), LONG));
    assert_eq!(poll(&mut call), Poll::Ready(Err(CallFailure::Overloaded)));
    assert_eq!(queue.recv().await.unwrap().id, 0, "a message without a reply has the id 0");
    assert!(session.accepts_calls(millis(0)), "a message that was not sent is no stall");
}
