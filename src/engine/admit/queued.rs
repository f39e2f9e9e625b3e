//! Whether the question that this task answers waits in the queue of a ceiling, and for how long it has.
//!
//! Guarantees: who answers a question [`with_places`] has a place for as long as it waits in a queue and no longer; one that
//! finds none waits no more and holds nothing. A question that does not wait costs no place, and one that is asked without
//! them a look at what this task knows where it begins and ends to wait. What [`with_wait`] says is all that was waited in
//! queues, whatever came of it.
//! Leaves out: how many places there are; waiting for a store, which has a deadline of its own.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use futures_util::FutureExt as _;

use crate::clock::Clock;
use crate::kernel::units::Nanos;

tokio::task_local! {
    /// The question that this task answers is in a queue.
    static IN_QUEUE: Cell<bool>;
    /// How long it was in queues that it has left.
    static WAITED: Cell<Nanos>;
}

/// In a queue until it is dropped.
#[derive(Debug)]
#[must_use = "it is over when this is dropped"]
pub(super) struct Queued<'c> {
    clock: &'c Clock,
    since: Nanos,
}

/// The question that this task answers is in a queue from now on.
pub(super) fn begins(clock: &Clock) -> Queued<'_> {
    tell(true);
    Queued { clock, since: clock.steady() }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        tell(false);
        let waited = self.clock.steady().since(self.since);
        // Nobody asks where a question is asked without a wait.
        let _unasked = WAITED.try_with(|cell| cell.set(cell.get().plus(waited)));
    }
}

fn tell(waits: bool) {
    // Nobody asks where a question is asked without places.
    let _unasked = IN_QUEUE.try_with(|cell| cell.set(waits));
}

/// What becomes of `answer`, with one of `places` while it waits in a queue; nothing where there is none for it, and
/// then it is dropped.
pub async fn with_places<T, P>(
    answer: impl Future<Output = T>,
    places: impl Fn() -> Option<P>,
) -> Option<T> {
    let mut answer = pin!(answer);
    let mut place = None;
    let polled = poll_fn(move |context| {
        if let Poll::Ready(answer) = answer.as_mut().poll(context) {
            return Poll::Ready(Some(answer));
        }
        let waits = IN_QUEUE.with(Cell::get);
        place = if waits { place.take().or_else(&places) } else { None };
        if waits && place.is_none() { Poll::Ready(None) } else { Poll::Pending }
    });
    IN_QUEUE.scope(Cell::new(false), polled).await
}

/// What becomes of `answer`, and how long it waited in queues. No `async fn`, which would keep room for `answer` twice.
pub fn with_wait<T>(answer: impl Future<Output = T>) -> impl Future<Output = (T, Nanos)> {
    WAITED.scope(Cell::new(Nanos(0)), answer.map(|answer| (answer, WAITED.with(Cell::get))))
}
