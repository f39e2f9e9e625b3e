//! An answer that is still to come.
//!
//! Guarantees:
//! - The wake function runs once: when the answer is known, or at once if it already is.
//! - Dropping a pending answer ends its wait, and releases its permits. A borrow in flight continues.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::AbortHandle;

use crate::permits::Admission;

type Wake = Box<dyn FnOnce() + Send>;

/// An answer that is still to come.
#[derive(Debug)]
pub struct PendingAnswer {
    slot: Arc<AnswerSlot>,
    task: AbortHandle,
}

/// The place of an answer.
#[derive(Default)]
pub(crate) struct AnswerSlot(Mutex<SlotState>);

#[derive(Default)]
struct SlotState {
    is_answered: bool,
    admission: Option<Admission>,
    wake: Option<Wake>,
}

impl std::fmt::Debug for AnswerSlot {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("AnswerSlot").finish_non_exhaustive()
    }
}

impl AnswerSlot {
    /// Sets the answer, and runs the wake function if there is one.
    pub(crate) fn set(&self, admission: Admission) {
        let wake = {
            let mut state = self.0.lock();
            state.is_answered = true;
            state.admission = Some(admission);
            state.wake.take()
        };
        if let Some(wake) = wake {
            wake();
        }
    }
}

impl PendingAnswer {
    pub(crate) const fn new(slot: Arc<AnswerSlot>, task: AbortHandle) -> Self {
        Self { slot, task }
    }

    /// Sets the function that runs when the answer is known, on any thread. It must not block.
    pub fn wake_with(&self, wake: Box<dyn FnOnce() + Send>) {
        let mut state = self.slot.0.lock();
        if state.is_answered {
            drop(state);
            wake();
        } else {
            state.wake = Some(wake);
        }
    }

    /// Takes the answer with its permits, if it is known.
    #[must_use]
    pub fn take(&self) -> Option<Admission> {
        self.slot.0.lock().admission.take()
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        self.task.abort();
        // The function may own something of the caller, which must not outlive it.
        let wake = self.slot.0.lock().wake.take();
        drop(wake);
    }
}

#[cfg(test)]
mod tests;
