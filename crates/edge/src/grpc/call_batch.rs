//! Runs the calls of one connection in the task of the connection, a batch for each read.
//!
//! The connection reads all that has arrived, runs the new calls, and then writes their replies together.
//! With a task for each call, the server's CPU for a check in memory was 1.15 of a handler that returns a
//! constant. It is 0.82 now (`benches/wire.rs`).
//!
//! Guarantees:
//! - Calls that need not wait are answered in the order of their arrival, with one write for a batch.
//! - A call that waits continues in a task of its own, so that it delays no other call.
//! - A batch has at most the calls that one connection may have open.
//!
//! Not covered:
//! - Calls of one connection that could run on several cores at the same time. Proxies open a
//!   connection for each worker thread.

use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use hyper::rt::Executor;
use parking_lot::Mutex;

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The calls of one connection that have arrived and have not run. Clones share them.
#[derive(Clone, Default)]
pub(super) struct CallBatch(Arc<Mutex<Vec<Call>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for CallBatch {
    fn execute(&self, call: F) {
        self.0.lock().push(Box::pin(call));
    }
}

impl CallBatch {
    /// Polls the connection, whose executor is this batch, and runs the calls that have arrived.
    pub(super) fn poll<C: Future>(
        &self,
        mut connection: Pin<&mut C>,
        cx: &mut Context<'_>,
    ) -> Poll<C::Output> {
        loop {
            let polled = connection.as_mut().poll(cx);
            let calls = take(&mut *self.0.lock());
            if calls.is_empty() || polled.is_ready() {
                calls.into_iter().for_each(spawn);
                return polled;
            }
            calls.into_iter().for_each(run);
        }
    }
}

/// Runs the call until it waits; then gives it a task.
fn run(mut call: Call) {
    // The task polls the call again, and so replaces this waker.
    if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        spawn(call);
    }
}

fn spawn(call: Call) {
    drop(tokio::spawn(call));
}
