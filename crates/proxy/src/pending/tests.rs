//! The wake function runs once, and a dropped answer ends its task.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use tokio::sync::oneshot;

use super::{AnswerSlot, PendingAnswer};
use crate::answer::Answer;
use crate::kernel::decision::RuleVerdict;

/// A pending answer, and a receiver that fails when its task ends.
fn pending() -> (Arc<AnswerSlot>, PendingAnswer, oneshot::Receiver<()>) {
    let (slot, (running, ended)) = (Arc::new(AnswerSlot::default()), oneshot::channel());
    let task = tokio::spawn(async move {
        let _running: oneshot::Sender<()> = running;
        std::future::pending::<()>().await;
    });
    let answer = PendingAnswer::new(Arc::clone(&slot), task.abort_handle());
    (slot, answer, ended)
}

fn counter() -> (Arc<AtomicUsize>, Box<dyn FnOnce() + Send>) {
    let woken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&woken);
    let wake = move || {
        counted.fetch_add(1, SeqCst);
    };
    (woken, Box::new(wake))
}

fn answer(pending: &PendingAnswer) -> Option<Answer> {
    pending.take().map(|admission| admission.answer)
}

fn denial() -> Answer {
    Answer { verdict: RuleVerdict::Deny, ..Answer::unlimited() }
}

#[tokio::test]
async fn an_answer_wakes_once_and_is_taken_once() {
    let (slot, pending, _ended) = pending();
    let (woken, wake) = counter();
    pending.wake_with(wake);
    assert_eq!((answer(&pending), woken.load(SeqCst)), (None, 0));
    slot.set(denial().into());
    assert_eq!(woken.load(SeqCst), 1);
    assert_eq!((answer(&pending), answer(&pending)), (Some(denial()), None));
    drop(pending);
    assert_eq!(woken.load(SeqCst), 1);
}

#[tokio::test]
async fn a_known_answer_wakes_at_once() {
    let (slot, pending, _ended) = pending();
    slot.set(denial().into());
    let (woken, wake) = counter();
    pending.wake_with(wake);
    assert_eq!((answer(&pending), woken.load(SeqCst)), (Some(denial()), 1));
}

#[tokio::test]
async fn a_concurrent_answer_wakes_once() {
    for _ in 0..500 {
        let (slot, pending, _ended) = pending();
        let (woken, wake) = counter();
        thread::scope(|scope| {
            scope.spawn(|| slot.set(denial().into()));
            pending.wake_with(wake);
        });
        assert_eq!((answer(&pending), woken.load(SeqCst)), (Some(denial()), 1));
    }
}

#[tokio::test]
async fn dropping_a_pending_answer_ends_its_task_and_its_wake_function() {
    let (slot, pending, ended) = pending();
    let (woken, wake) = counter();
    pending.wake_with(wake);
    drop(pending);
    assert!(ended.await.is_err(), "the task was aborted");
    assert_eq!(Arc::strong_count(&woken), 1, "the wake function was dropped");
    slot.set(denial().into());
    assert_eq!(woken.load(SeqCst), 0);
}
