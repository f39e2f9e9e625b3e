//! Runs the calls of one connection in the task of the connection.
//!
//! The connection reads the bytes that have arrived. Then the calls run that an event has woken, and the
//! new calls. Then one write sends their replies. A task for each call takes more CPU (`benches/wire.rs`).
//!
//! Guarantees:
//! - Calls that need not wait are answered in the order of their arrival, with one write for a batch.
//! - A call that waits delays no other call.
//! - After calls have run for [`MAX_BATCH_TIME`], other connections run.
//! - The end of the connection drops its calls, also those that have not run.
//!
//! Not covered:
//! - Calls of one connection that could run on several cores at the same time. Proxies open a
//!   connection for each worker thread.
//! - A panic in a call: it ends the connection.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The time for calls of one connection, before other connections run. A call that has begun runs until it
/// waits or ends.
const MAX_BATCH_TIME: Duration = Duration::from_micros(500);

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The executor of one connection: the calls that have arrived and have not run. Clones share them.
#[derive(Clone, Default)]
pub(super) struct CallBatch(Arc<Mutex<VecDeque<Call>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for CallBatch {
    fn execute(&self, call: F) {
        self.0.lock().push_back(Box::pin(call));
    }
}

impl CallBatch {
    fn next(&self) -> Option<Call> {
        self.0.lock().pop_front()
    }
}

/// A connection with its calls.
pub(super) struct RunningCalls<C> {
    connection: Pin<Box<C>>,
    arrived: CallBatch,
    waiting: FuturesUnordered<Call>,
}

impl<C> Drop for RunningCalls<C> {
    fn drop(&mut self) {
        // Each call has a clone of its executor, so calls in it would keep each other.
        while self.arrived.next().is_some() {}
    }
}

impl<C: Future> RunningCalls<C> {
    /// Runs `connection`, whose executor is `arrived`.
    pub(super) fn new(connection: C, arrived: CallBatch) -> Self {
        Self { connection: Box::pin(connection), arrived, waiting: FuturesUnordered::new() }
    }

    /// Returns the connection.
    pub(super) fn connection(&mut self) -> Pin<&mut C> {
        self.connection.as_mut()
    }

    /// Runs the next new call until it ends or waits. Returns `false` if there is none.
    fn run_arrived(&mut self) -> bool {
        let Some(mut call) = self.arrived.next() else { return false };
        // A call that waits is polled again, which replaces this waker.
        if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.waiting.push(call);
        }
        true
    }
}

impl<C: Future> Future for RunningCalls<C> {
    type Output = C::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        let this = self.get_mut();
        let mut began = None;
        loop {
            let polled = this.connection.as_mut().poll(cx);
            if polled.is_ready() {
                return polled;
            }
            let began = *began.get_or_insert_with(Instant::now);
            let mut has_run = false;
            while this.waiting.poll_next_unpin(cx) == Poll::Ready(Some(())) || this.run_arrived() {
                has_run = true;
                if MAX_BATCH_TIME <= began.elapsed() {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
            if !has_run {
                return Poll::Pending;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// Five calls that run for the whole time of a batch and are then counted. With `waits`, they wait once
    /// before.
    fn long_calls(waits: bool) -> (RunningCalls<impl Future<Output = ()>>, Arc<AtomicUsize>) {
        let (arrived, ended) = (CallBatch::default(), Arc::new(AtomicUsize::new(0)));
        for _ in 0..5 {
            let (counted, mut must_wait) = (Arc::clone(&ended), waits);
            // As hyper does.
            let executor = arrived.clone();
            arrived.execute(poll_fn(move |cx| {
                let _executor = &executor;
                if std::mem::take(&mut must_wait) {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                let began = Instant::now();
                while began.elapsed() < MAX_BATCH_TIME {}
                counted.fetch_add(1, Relaxed);
                Poll::Ready(())
            }));
        }
        (RunningCalls::new(pending(), arrived), ended)
    }

    #[test]
    fn one_poll_runs_calls_for_the_time_of_a_batch() {
        let (mut calls, ended) = long_calls(false);
        for polls in 1..=5 {
            let polled = Pin::new(&mut calls).poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
            assert_eq!(ended.load(Relaxed), polls);
        }
    }

    #[test]
    fn calls_that_an_event_has_woken_have_the_same_bound() {
        let (mut calls, ended) = long_calls(true);
        for polls in 1..=100 {
            let _pending = Pin::new(&mut calls).poll(&mut Context::from_waker(Waker::noop()));
            assert!(ended.load(Relaxed) <= polls);
        }
        assert_eq!(ended.load(Relaxed), 5);
    }

    #[test]
    fn calls_that_have_not_run_end_with_the_connection() {
        let (calls, ended) = long_calls(false);
        assert_eq!(Arc::strong_count(&ended), 6);
        drop(calls);
        assert_eq!(Arc::strong_count(&ended), 1);
    }
}
