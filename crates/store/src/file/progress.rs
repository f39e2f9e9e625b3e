//! The progress of the writer, for the checks that wait for a write and for the health of the store.
//!
//! Guarantees:
//! - A check that requests a batch after its charge waits for a batch that contains the charge.
//! - While writes fail, a check does not wait.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use crate::kernel::decision::StoreFailure;

#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The number of batches whose collection has begun.
    begun: AtomicU64,
    /// The number of the last batch that is on disk.
    saved: watch::Sender<u64>,
    is_failing: AtomicBool,
    request: Mutex<WriterRequest>,
    requested: Condvar,
}

/// What the writer does next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WriterRequest {
    /// A check waits for a batch.
    pub(super) is_batch_wanted: bool,
    /// The process ends.
    pub(super) is_closing: bool,
}

impl Progress {
    /// Requests a batch. Returns the sequence number (1, 2, …) of the first batch that contains all
    /// charges made before this call, for [`Self::wait_until_saved`].
    pub(super) fn request_batch(&self) -> u64 {
        let batch = self.begun.load(SeqCst) + 1;
        let mut request = self.request.lock();
        if !request.is_batch_wanted {
            request.is_batch_wanted = true;
            self.requested.notify_one();
        }
        batch
    }

    /// Waits until the batch with the sequence number `batch` is on disk.
    ///
    /// # Errors
    /// Fails if it is not on disk after `deadline`, or if writes fail.
    pub(super) async fn wait_until_saved(
        &self,
        batch: u64,
        deadline: Duration,
    ) -> Result<(), StoreFailure> {
        if self.is_failing() {
            return Err(StoreFailure::NotSaved);
        }
        let mut saved = self.saved.subscribe();
        let is_over = |saved: &u64| batch <= *saved || self.is_failing();
        match tokio::time::timeout(deadline, saved.wait_for(is_over)).await {
            Ok(Ok(saved)) if batch <= *saved => Ok(()),
            Ok(_) => Err(StoreFailure::NotSaved),
            Err(_elapsed) => Err(StoreFailure::TimedOut),
        }
    }

    pub(super) fn is_failing(&self) -> bool {
        self.is_failing.load(SeqCst)
    }

    /// Counts a new batch, before its counters are collected. Returns its number.
    pub(super) fn begin_batch(&self) -> u64 {
        self.begun.fetch_add(1, SeqCst) + 1
    }

    pub(super) fn finish_batch(&self, batch: u64) {
        self.is_failing.store(false, SeqCst);
        self.saved.send_replace(batch);
    }

    pub(super) fn fail_batch(&self) {
        self.is_failing.store(true, SeqCst);
        // Wakes the waiting checks.
        self.saved.send_modify(|_| {});
    }

    pub(super) fn close(&self) {
        self.request.lock().is_closing = true;
        self.requested.notify_all();
    }

    /// Waits for `pause` or until the process ends. Returns and resets the request.
    pub(super) fn wait_for_pause(&self, pause: Duration) -> WriterRequest {
        let mut request = self.request.lock();
        // A request for a batch wakes the thread, too. It need not end the pause.
        self.requested.wait_while_for(&mut request, |request| !request.is_closing, pause);
        take_request(&mut request)
    }

    /// Waits until a check requests a batch or the process ends. Returns and resets the request.
    pub(super) fn wait_for_request(&self) -> WriterRequest {
        let mut request = self.request.lock();
        let is_idle = |request: &mut WriterRequest| !request.is_batch_wanted && !request.is_closing;
        self.requested.wait_while(&mut request, is_idle);
        take_request(&mut request)
    }
}

fn take_request(request: &mut WriterRequest) -> WriterRequest {
    WriterRequest { is_batch_wanted: std::mem::take(&mut request.is_batch_wanted), ..*request }
}
