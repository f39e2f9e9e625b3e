//! The items of a batch, their results, and the callers that wait for them.
//!
//! Not covered:
//! - The queue of the items (see [`super::lane`]).

use std::fmt::Debug;

use tokio::sync::oneshot;

use crate::StoreFailure;
use crate::redis::connection::LiveConnection;

/// A check or a lease message that shares a script call with others of its kind.
pub(in crate::redis) trait BatchItem: Sized + Send + Sync + 'static {
    type Output: Debug + Send + 'static;

    /// The estimated script time in microseconds.
    fn script_micros(&self) -> usize;

    /// Makes one script call for all items. Fails if Redis sends no usable reply.
    fn run_batch(
        live: &LiveConnection,
        items: Vec<Self>,
    ) -> impl Future<Output = Result<BatchReplies<Self>, StoreFailure>> + Send;
}

/// The results of the first items (at least one), and the items that the script did not execute,
/// which need another call.
pub(in crate::redis) type BatchReplies<T> = (Vec<<T as BatchItem>::Output>, Vec<T>);

#[derive(Debug)]
pub(super) struct QueuedItem<T: BatchItem> {
    pub(super) item: T,
    pub(super) sender: oneshot::Sender<Result<T::Output, StoreFailure>>,
}

/// Sends each caller its result, or the failure of the call. Returns the items that need another
/// call.
pub(super) fn deliver<T: BatchItem>(
    senders: Vec<oneshot::Sender<Result<T::Output, StoreFailure>>>,
    call_result: Result<BatchReplies<T>, StoreFailure>,
) -> Vec<QueuedItem<T>> {
    let mut senders = senders.into_iter();
    // A send fails only if the caller no longer waits, so the error is ignored.
    match call_result {
        Ok((results, unsent)) => {
            for (result, sender) in results.into_iter().zip(&mut senders) {
                drop(sender.send(Ok(result)));
            }
            let waiting = unsent.into_iter().zip(senders).filter(|(_, sender)| !sender.is_closed());
            waiting.map(|(item, sender)| QueuedItem { item, sender }).collect()
        }
        Err(cause) => {
            senders.for_each(|sender| drop(sender.send(Err(cause))));
            Vec::new()
        }
    }
}
