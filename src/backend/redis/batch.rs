//! Batches the items of many callers into few script calls. An item is a check or a lease message.
//!
//! Guarantees:
//! - Without a call in flight, an item is sent at once in its caller's task.
//! - During a call, items wait for its end, for [`LINGER`], or for a full batch.
//! - Items of one Redis that start together are sent together.
//! - Call sizes, calls in flight and waiting items are bounded.
//! - An item that was abandoned before it was sent is never sent.
//! - Each caller gets its result even if other callers leave.
//!
//! Not covered:
//! - Deadlines of waiting callers, which they keep themselves.
//! - The meaning of an item.
//!
//! A lane is the queue of one Redis, or of one slot
//! of a Cluster. Each runs its scripts independently.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::connection::Live;
use super::route::Route;
use super::{Batching, Cause};

/// The longest time that a call delays later items. A store on the same
/// machine replies sooner. For a distant store, an item waits this long and
/// not a whole round trip, and the store receives one call per millisecond.
const LINGER: Duration = Duration::from_millis(1);

/// The longest script in microseconds. Redis serves no other client meanwhile.
const LONGEST_SCRIPT: usize = 1_000;

/// The most calls in flight in one lane. At one call per millisecond this suffices for a
/// store 32 ms away. Full calls carry 100,000 checks per second to a store 80 ms away.
const MOST_UNDER_WAY: usize = 32;

/// The most script time that may wait in one lane, in microseconds: more than any deadline allows.
const MOST_WAITING: usize = 64 * LONGEST_SCRIPT;

const SLOTS: u16 = 16_384;

/// A check or a lease message that one script executes.
pub(super) trait Asked: Sized + Send + Sync + 'static {
    type Share: Debug + Send + 'static;

    /// The estimated script time in microseconds.
    fn micros(&self) -> usize;

    /// Makes one call for all items.
    ///
    /// # Errors
    /// The reason for the missing reply.
    fn call(
        live: &Live,
        questions: Vec<Self>,
    ) -> impl Future<Output = Result<Come<Self>, Cause>> + Send;
}

/// The results of the first items (at least one), and the remaining items, which need another call.
pub(super) type Come<Q> = (Vec<<Q as Asked>::Share>, Vec<Q>);

/// The batched calls of one script to one store.
#[derive(Debug)]
pub(super) struct Calls<Q: Asked> {
    route: Route,
    deadline: Duration,
    batching: Batching,
    lanes: Box<[Mutex<Lane<Q>>]>,
}

/// The waiting items and the calls in flight of one lane.
#[derive(Debug)]
struct Lane<Q: Asked> {
    waiting: VecDeque<Waiting<Q>>,
    /// The script time of the waiting items, in microseconds.
    micros: usize,
    /// An upper bound of the abandoned items in `waiting`.
    given_up: usize,
    under_way: usize,
    calls: u64,
    /// The number of the call that delays the others.
    held_by: Option<u64>,
    /// The number of [`Calls::together`] blocks in progress.
    gathering: usize,
}

#[derive(Debug)]
struct Waiting<Q: Asked> {
    question: Q,
    answer: oneshot::Sender<Result<Q::Share, Cause>>,
}

/// The right to have one call in flight. Dropping it releases the right.
struct Turn<Q: Asked> {
    calls: Arc<Calls<Q>>,
    slot: u16,
    /// The number of the call; `None` after its end.
    number: Option<u64>,
}

/// Delays the sending of items until it is dropped.
struct Gathering<'c, Q: Asked>(&'c Arc<Calls<Q>>);

/// The items of one call, and its number.
type Batch<Q> = (Vec<Waiting<Q>>, u64);

enum Arrival<Q: Asked> {
    /// Sent at once and alone.
    Alone(Q, Turn<Q>),
    /// Queued. The second field is the batch that it completed, if any.
    Waits(oneshot::Receiver<Result<Q::Share, Cause>>, Option<(Vec<Waiting<Q>>, Turn<Q>)>),
}

impl<Q: Asked> Default for Lane<Q> {
    fn default() -> Self {
        let (waiting, held_by) = (VecDeque::new(), None);
        Self { waiting, micros: 0, given_up: 0, under_way: 0, calls: 0, held_by, gathering: 0 }
    }
}

impl<Q: Asked> Calls<Q> {
    pub(super) fn new(route: Route, deadline: Duration, batching: Batching) -> Arc<Self> {
        let lanes = if route.is_clustered() { SLOTS } else { 1 };
        let lanes = (0..lanes).map(|_| Mutex::default()).collect();
        Arc::new(Self { route, deadline, batching, lanes })
    }

    /// Sends an item to the store of `slot`, and waits for the result.
    pub(super) async fn ask(self: &Arc<Self>, slot: u16, question: Q) -> Result<Q::Share, Cause> {
        let arrival = self.arrive(slot, question)?;
        let unanswered = self.route.unanswered(slot);
        match arrival {
            Arrival::Alone(question, turn) => {
                let shares = turn.run(vec![question]).await;
                unanswered.settle();
                self.route.saw(slot, shares.as_ref().err().copied());
                shares.and_then(|(mut shares, _)| shares.pop().ok_or(Cause::NotUnderstood))
            }
            Arrival::Waits(answer, full) => {
                if let Some((batch, turn)) = full {
                    tokio::spawn(turn.drive(batch));
                }
                let answer = Waiter { calls: self, slot, answer, is_told: false }.wait().await;
                unanswered.settle();
                if matches!(answer, Err(Cause::Late)) {
                    self.route.saw(slot, Some(Cause::Late));
                }
                answer
            }
        }
    }

    /// Runs `begin`, which polls items for the first time, and sends them only afterwards.
    /// In a Cluster they are sent as usual, because each key has its own slot.
    pub(super) fn together(self: &Arc<Self>, begin: &mut dyn FnMut()) {
        if self.route.is_clustered() {
            return begin();
        }
        self.lane(0).lock().gathering += 1;
        let gathering = Gathering(self);
        begin();
        drop(gathering);
    }

    fn arrive(self: &Arc<Self>, slot: u16, question: Q) -> Result<Arrival<Q>, Cause> {
        let turn = |number| Turn { calls: Arc::clone(self), slot, number: Some(number) };
        let mut lane = self.lane(slot).lock();
        let alone = lane.waiting.is_empty() && lane.may_go();
        if alone || self.batching == Batching::Off {
            let number = lane.begin();
            return Ok(Arrival::Alone(question, turn(number)));
        }
        if MOST_WAITING < lane.micros {
            return Err(Cause::Overloaded);
        }
        let (sender, receiver) = oneshot::channel();
        lane.micros += question.micros();
        lane.waiting.push_back(Waiting { question, answer: sender });
        let full = lane.next();
        drop(lane);
        Ok(Arrival::Waits(receiver, full.map(|(batch, number)| (batch, turn(number)))))
    }

    fn lane(&self, slot: u16) -> &Mutex<Lane<Q>> {
        &self.lanes[usize::from(slot) % self.lanes.len()]
    }

    fn start(self: &Arc<Self>, slot: u16, next: Option<Batch<Q>>) {
        let Some((batch, number)) = next else { return };
        let turn = Turn { calls: Arc::clone(self), slot, number: Some(number) };
        // Without a runtime the process is ending, and no caller waits.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(turn.drive(batch));
        }
    }
}

impl<Q: Asked> Lane<Q> {
    fn may_go(&self) -> bool {
        let is_full = LONGEST_SCRIPT <= self.micros;
        let is_held = self.held_by.is_some() && !is_full;
        self.gathering == 0 && self.under_way < MOST_UNDER_WAY && !is_held
    }

    fn begin(&mut self) -> u64 {
        self.calls += 1;
        self.under_way += 1;
        self.held_by = Some(self.calls);
        self.calls
    }

    fn end(&mut self, number: u64) {
        self.under_way = self.under_way.saturating_sub(1);
        self.let_go(Some(number));
    }

    fn let_go(&mut self, number: Option<u64>) {
        if self.held_by == number {
            self.held_by = None;
        }
    }

    fn next(&mut self) -> Option<Batch<Q>> {
        if !self.may_go() {
            return None;
        }
        let batch = self.take();
        if batch.is_empty() { None } else { Some((batch, self.begin())) }
    }

    /// Removes the next batch from the queue: as many items as fit, and at least one.
    fn take(&mut self) -> Vec<Waiting<Q>> {
        let (mut batch, mut micros) = (Vec::with_capacity(self.waiting.len().min(256)), 0);
        while let Some(first) = self.waiting.front() {
            let its = first.question.micros();
            let is_dead = first.answer.is_closed();
            if !is_dead && !batch.is_empty() && LONGEST_SCRIPT < micros + its {
                break;
            }
            self.micros -= its;
            if is_dead {
                self.waiting.pop_front();
                self.given_up = self.given_up.saturating_sub(1);
                continue;
            }
            micros += its;
            batch.extend(self.waiting.pop_front());
        }
        batch
    }

    /// Counts an abandoned item. Removes the abandoned ones as soon as they
    /// may be more than half of the queue. Amortized cost: O(1) for each.
    fn give_up(&mut self) {
        self.given_up += 1;
        if self.waiting.len() < 2 * self.given_up {
            self.given_up = 0;
            self.waiting.retain(|waiting| !waiting.answer.is_closed());
            self.micros = self.waiting.iter().map(|waiting| waiting.question.micros()).sum();
        }
    }
}

impl<Q: Asked> Turn<Q> {
    /// Lets other calls start although this call is still in flight.
    fn let_go(&self) {
        let next = {
            let mut lane = self.calls.lane(self.slot).lock();
            lane.let_go(self.number);
            lane.next()
        };
        self.calls.start(self.slot, next);
    }

    /// Runs `batch`, and then further batches until none is ready.
    async fn drive(mut self, mut batch: Vec<Waiting<Q>>) {
        loop {
            let (questions, askers): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|waiting| (waiting.question, waiting.answer)).unzip();
            let come = self.run(questions).await;
            // Each waiting caller reports its own timeout.
            if !matches!(come, Err(Cause::Late)) {
                self.calls.route.saw(self.slot, come.as_ref().err().copied());
            }
            let rest = tell(askers, come);
            if !rest.is_empty() {
                batch = rest;
                continue;
            }
            let Some((next, number)) = self.end() else { return };
            (batch, self.number) = (next, Some(number));
        }
    }

    /// Makes one call until the deadline. After [`LINGER`], other calls may start.
    async fn run(&self, questions: Vec<Q>) -> Result<Come<Q>, Cause> {
        let live = self.calls.route.live(self.slot)?;
        let mut called = pin!(Q::call(&live, questions));
        let deadline = self.calls.deadline;
        let linger = LINGER.min(deadline);
        match timeout(linger, &mut called).await {
            Ok(shares) => shares,
            Err(_elapsed) => {
                self.let_go();
                let left = deadline.saturating_sub(linger);
                timeout(left, called).await.unwrap_or(Err(Cause::Late))
            }
        }
    }

    /// Ends the call and returns the next batch.
    fn end(&mut self) -> Option<Batch<Q>> {
        let number = self.number.take()?;
        let mut lane = self.calls.lane(self.slot).lock();
        lane.end(number);
        lane.next()
    }
}

impl<Q: Asked> Drop for Turn<Q> {
    fn drop(&mut self) {
        let next = self.end();
        self.calls.start(self.slot, next);
    }
}

impl<Q: Asked> Drop for Gathering<'_, Q> {
    fn drop(&mut self) {
        let next = {
            let mut lane = self.0.lane(0).lock();
            lane.gathering -= 1;
            lane.next()
        };
        self.0.start(0, next);
    }
}

/// Sends each caller its result, or the failure of the
/// call. Returns the items that still need a call.
fn tell<Q: Asked>(
    askers: Vec<oneshot::Sender<Result<Q::Share, Cause>>>,
    come: Result<Come<Q>, Cause>,
) -> Vec<Waiting<Q>> {
    let mut askers = askers.into_iter();
    // A send fails only if its caller has left.
    match come {
        Ok((shares, rest)) => {
            shares
                .into_iter()
                .zip(&mut askers)
                .for_each(|(share, asker)| drop(asker.send(Ok(share))));
            let rest = rest.into_iter().zip(askers).filter(|(_, asker)| !asker.is_closed());
            rest.map(|(question, answer)| Waiting { question, answer }).collect()
        }
        Err(cause) => {
            askers.for_each(|asker| drop(asker.send(Err(cause))));
            Vec::new()
        }
    }
}

/// A caller that waits for its result. Dropping it early abandons the item.
struct Waiter<'c, Q: Asked> {
    calls: &'c Calls<Q>,
    slot: u16,
    answer: oneshot::Receiver<Result<Q::Share, Cause>>,
    is_told: bool,
}

impl<Q: Asked> Waiter<'_, Q> {
    async fn wait(mut self) -> Result<Q::Share, Cause> {
        let answer = timeout(self.calls.deadline, &mut self.answer).await;
        self.is_told = answer.is_ok();
        // A sender is dropped unused only when the process ends.
        answer.map_or(Err(Cause::Late), |told| told.unwrap_or(Err(Cause::Unreachable)))
    }
}

impl<Q: Asked> Drop for Waiter<'_, Q> {
    fn drop(&mut self) {
        if !self.is_told {
            self.answer.close();
            self.calls.lane(self.slot).lock().give_up();
        }
    }
}
