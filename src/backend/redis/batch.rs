//! Questions that travel together: charges of questions, or messages of members.
//!
//! Guarantees: a question that comes while no call is under way goes at once, in its caller's own
//! task. One that comes while a call is under way waits until that call ends, or lingers for
//! [`LINGER`], or enough wait to fill a call; then all that wait go together. So do those of one Redis that are begun
//! together, and what comes while they are. A call is bounded, and so
//! are the calls under way and the questions that wait. What was given up before it was sent is not
//! sent. Who waits is answered whoever else goes away.
//! Leaves out: deadlines of those who wait, which are theirs; what a question means.
//!
//! A lane is for one place that runs scripts on its own: one Redis, or one slot of a Cluster.

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

/// How long a call keeps those who come after it waiting. A store on the same machine answers sooner; of one
/// that is far away each waits this long instead of a whole round trip, and it gets a call a millisecond.
const LINGER: Duration = Duration::from_millis(1);

/// How long one script may keep the store busy, in microseconds: nobody else is answered meanwhile.
const LONGEST_SCRIPT: usize = 1_000;

/// Calls under way in one lane: at a call a millisecond those of a store 32 ms away, and when they are full
/// 100,000 questions a second to one 80 ms away.
const MOST_UNDER_WAY: usize = 32;

/// What may wait in one lane, in microseconds of script: more than any deadline leaves time for.
const MOST_WAITING: usize = 64 * LONGEST_SCRIPT;

/// Slots of a Cluster.
const SLOTS: u16 = 16_384;

/// A question of the kind that one script answers.
pub(super) trait Asked: Sized + Send + Sync + 'static {
    /// Its answer.
    type Share: Debug + Send + 'static;

    /// How long the script may take for it, in microseconds.
    fn micros(&self) -> usize;

    /// One call for all of `questions`.
    ///
    /// # Errors
    /// Why there is no answer.
    fn call(
        live: &Live,
        questions: Vec<Self>,
    ) -> impl Future<Output = Result<Come<Self>, Cause>> + Send;
}

/// What came of a call: an answer to each of the first questions, in their order and to one at least, and the rest,
/// which is to be asked in a call of its own.
pub(super) type Come<Q> = (Vec<<Q as Asked>::Share>, Vec<Q>);

/// All questions of one kind that are asked of a Redis.
#[derive(Debug)]
pub(super) struct Calls<Q: Asked> {
    route: Route,
    deadline: Duration,
    batching: Batching,
    lanes: Box<[Mutex<Lane<Q>>]>,
}

/// What waits for one place, and what is under way to it.
#[derive(Debug)]
struct Lane<Q: Asked> {
    waiting: VecDeque<Waiting<Q>>,
    /// Of all that waits, in microseconds of script.
    micros: usize,
    /// How many were given up since the dead were last cleared away, at least of those who wait.
    given_up: usize,
    under_way: usize,
    calls: u64,
    /// The number of the call that keeps the others waiting.
    held_by: Option<u64>,
    /// How many begin questions together just now.
    gathering: usize,
}

#[derive(Debug)]
struct Waiting<Q: Asked> {
    question: Q,
    answer: oneshot::Sender<Result<Q::Share, Cause>>,
}

/// The right to have one call under way, until it is dropped.
struct Turn<Q: Asked> {
    calls: Arc<Calls<Q>>,
    slot: u16,
    /// Which call; none once it has ended.
    number: Option<u64>,
}

/// Questions are begun together, until it is dropped.
struct Gathering<'c, Q: Asked>(&'c Arc<Calls<Q>>);

/// What goes together, and the number of its call.
type Batch<Q> = (Vec<Waiting<Q>>, u64);

/// What becomes of a question that comes.
enum Arrival<Q: Asked> {
    /// It goes alone and at once.
    Alone(Q, Turn<Q>),
    /// It waits, and perhaps filled a call that can go.
    Waits(oneshot::Receiver<Result<Q::Share, Cause>>, Option<(Vec<Waiting<Q>>, Turn<Q>)>),
}

impl<Q: Asked> Default for Lane<Q> {
    fn default() -> Self {
        let (waiting, held_by) = (VecDeque::new(), None);
        Self { waiting, micros: 0, given_up: 0, under_way: 0, calls: 0, held_by, gathering: 0 }
    }
}

impl<Q: Asked> Calls<Q> {
    /// No calls yet.
    pub(super) fn new(route: Route, deadline: Duration, batching: Batching) -> Arc<Self> {
        let lanes = if route.is_clustered() { SLOTS } else { 1 };
        let lanes = (0..lanes).map(|_| Mutex::default()).collect();
        Arc::new(Self { route, deadline, batching, lanes })
    }

    /// Asks the place of `slot`.
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

    /// Runs `begin`, which polls questions for the first time: none goes before it is over. In a Cluster they go as ever,
    /// since each key is in a slot of its own.
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
        // Without a runtime nobody is left who waits.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(turn.drive(batch));
        }
    }
}

impl<Q: Asked> Lane<Q> {
    /// Whether a call may begin.
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

    /// The next call, if it may begin now.
    fn next(&mut self) -> Option<Batch<Q>> {
        if !self.may_go() {
            return None;
        }
        let batch = self.take();
        if batch.is_empty() { None } else { Some((batch, self.begin())) }
    }

    /// What goes together: as much as fits of those who still wait, and at least one of them.
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

    /// Clears the dead away once they are many: they hold no place for long, and looking for them costs
    /// each who gave up no more than a constant.
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
    /// Lets others go although this call is still under way.
    fn let_go(&self) {
        let next = {
            let mut lane = self.calls.lane(self.slot).lock();
            lane.let_go(self.number);
            lane.next()
        };
        self.calls.start(self.slot, next);
    }

    /// Runs `batch`, and then what has come meanwhile.
    async fn drive(mut self, mut batch: Vec<Waiting<Q>>) {
        loop {
            let (questions, askers): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|waiting| (waiting.question, waiting.answer)).unzip();
            let come = self.run(questions).await;
            // Who is late says so.
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

    /// One call, given up at the deadline.
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

    /// Ends the call; what goes next.
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

/// Gives every asker its share, or the one failure of the call; who is still to be answered.
fn tell<Q: Asked>(
    askers: Vec<oneshot::Sender<Result<Q::Share, Cause>>>,
    come: Result<Come<Q>, Cause>,
) -> Vec<Waiting<Q>> {
    let mut askers = askers.into_iter();
    // Who is gone is not told.
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

/// One who waits for an answer; dropped before that, it has given up.
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
        // Nobody drops who waits unless the process ends.
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
