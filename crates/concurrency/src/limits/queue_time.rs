//! Tracks whether, and for how long, the check of the current task waits in queues for permits.
//!
//! Guarantees:
//! - [`with_queue_slots`] occupies one slot exactly while its check waits in a queue.
//! - A check that finds no free slot is dropped with its queue entry.
//! - A check that does not queue needs no slot.
//! - [`with_queue_time`] measures the time in all queues, including waits that failed.
//!
//! Not covered:
//! - The number of slots: the caller provides them.
//! - Waiting for the store, which has its own timeout.
//!
//! Cost: if neither function is used, one access to task-local state before and after each wait.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use futures_util::FutureExt as _;
use sluicegate_lease::clock::Clock;

use crate::kernel::units::Nanos;

tokio::task_local! {
    /// `true` while the check of this task waits in a queue.
    static IN_QUEUE: Cell<bool>;
    /// The time that this task has spent in queues so far.
    static WAITED: Cell<Nanos>;
}

/// A wait in a queue for a permit. It ends when this value is dropped.
#[derive(Debug)]
#[must_use = "it is over when this is dropped"]
pub(super) struct QueueTimer<'c> {
    clock: &'c Clock,
    since: Nanos,
}

/// Starts to measure a wait in a queue.
pub(super) fn start_queue_timer(clock: &Clock) -> QueueTimer<'_> {
    set_in_queue(true);
    QueueTimer { clock, since: clock.steady() }
}

impl Drop for QueueTimer<'_> {
    fn drop(&mut self) {
        set_in_queue(false);
        let waited = self.clock.steady().since(self.since);
        // An error means that the caller does not use [`with_queue_time`].
        let _unasked = WAITED.try_with(|cell| cell.set(cell.get().plus(waited)));
    }
}

fn set_in_queue(waits: bool) {
    // An error means that the caller does not use [`with_queue_slots`].
    let _unasked = IN_QUEUE.try_with(|cell| cell.set(waits));
}

/// Runs the future, and occupies a slot from `slots` while its check waits in a queue. If no slot
/// is free, drops the future and returns `None`.
pub async fn with_queue_slots<T, P>(
    answer: impl Future<Output = T>,
    slots: impl Fn() -> Option<P>,
) -> Option<T> {
    let mut answer = pin!(answer);
    let mut place = None;
    let polled = poll_fn(move |context| {
        if let Poll::Ready(answer) = answer.as_mut().poll(context) {
            return Poll::Ready(Some(answer));
        }
        let waits = IN_QUEUE.with(Cell::get);
        place = if waits { place.take().or_else(&slots) } else { None };
        if waits && place.is_none() { Poll::Ready(None) } else { Poll::Pending }
    });
    IN_QUEUE.scope(Cell::new(false), polled).await
}

/// Runs the future, and returns its result with the time that its check waited in queues. Not an
/// `async fn`, because that would reserve the size of the future twice.
pub fn with_queue_time<T>(answer: impl Future<Output = T>) -> impl Future<Output = (T, Nanos)> {
    WAITED.scope(Cell::new(Nanos(0)), answer.map(|answer| (answer, WAITED.with(Cell::get))))
}
