//! Leased limits on the whole path of a question: engines with balances over one store.
//!
//! The store is the one in memory, held at a distance: engines take it for one that has to be asked.

mod all_or_nothing;
mod denials;
mod frozen;
mod path;
mod plot;
mod refunds;
mod share;
mod told;
mod undecided;
mod waiting;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use sluicegate::backend::lease::{Lent, Message};
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::backend::{Backend, Cause, Charges, Outcome, Outcomes, Reply};
use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::engine::{Answer, Engine, Policy, Refusal};
use sluicegate::kernel::decision::{Cost, Descriptor, Question, Verdict};
use sluicegate::kernel::rate::Step;
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use tokio::sync::Semaphore;

/// 2026-01-01T00:00:00Z, where every window of the seven units begins.
const NEW_YEAR: Nanos = Nanos::from_secs(1_767_225_600);

/// A store that counts how often it is asked, may be away, and may leave its callers standing.
#[derive(Debug)]
pub struct Far {
    memory: Memory,
    pub calls: AtomicU64,
    /// Of these, how many began together with others.
    together: AtomicU64,
    pub is_away: AtomicBool,
    /// Whether it is known to be away, so that nothing is sent there.
    pub is_cut_off: AtomicBool,
    /// Why messages are refused after a moment in which they waited to be sent, if they are.
    refuses: Mutex<Option<Cause>>,
    /// How long after it was sent a message is taken, in nanoseconds.
    pub way: AtomicU64,
    /// How far its clock is ahead of the engines', in nanoseconds.
    pub ahead: AtomicU64,
    /// How long a question may wait, in nanoseconds; 0 for ever.
    pub deadline: AtomicU64,
    /// Whether calls stand from now on until they are told to go on.
    stands: AtomicBool,
    /// Whether the store takes them at once, and only their answers stand.
    takes: AtomicBool,
    /// Every call that stood, in the order that they came in.
    standing: Mutex<Vec<Arc<Stand>>>,
}

/// Where a call stands: before the store has it, and before its answer is there.
#[derive(Debug)]
struct Stand {
    taken: Semaphore,
    answered: Semaphore,
}

impl Far {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: Memory::new(1_000_000, WhenFull::Deny, [7; 16]),
            calls: AtomicU64::new(0),
            together: AtomicU64::new(0),
            is_away: AtomicBool::new(false),
            is_cut_off: AtomicBool::new(false),
            refuses: Mutex::default(),
            way: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            deadline: AtomicU64::new(0),
            stands: AtomicBool::new(false),
            takes: AtomicBool::new(false),
            standing: Mutex::default(),
        })
    }

    /// What its clock shows at `now`.
    fn time(&self, now: Nanos) -> Nanos {
        now.plus(Nanos(self.ahead.load(Relaxed)))
    }

    fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// The store takes the call that was the `at`th to stand.
    fn take(&self, at: usize) {
        self.standing.lock()[at].taken.add_permits(1);
    }

    /// Its answer is there.
    fn answer(&self, at: usize) {
        self.standing.lock()[at].answered.add_permits(1);
    }

    /// The answers to all calls that stand are there.
    fn answer_all(&self) {
        for stand in &*self.standing.lock() {
            stand.answered.add_permits(1);
        }
    }

    /// All calls that stand go on.
    fn go_on(&self) {
        for stand in &*self.standing.lock() {
            stand.taken.add_permits(1);
            stand.answered.add_permits(1);
        }
    }

    fn is_away(&self) -> bool {
        self.is_away.load(Relaxed)
    }

    /// What `act` comes to after a moment, in which others have their turn, or when the call is told to go on.
    fn later<'a, T: Send + 'a>(&'a self, act: impl FnOnce() -> T + Send + 'a) -> Reply<'a, T> {
        self.calls.fetch_add(1, Relaxed);
        if !self.stands.load(Relaxed) {
            let came = act();
            return Reply::Later(Box::pin(async move {
                tokio::task::yield_now().await;
                came
            }));
        }
        let taken = Semaphore::new(usize::from(self.takes.load(Relaxed)));
        let answered = Semaphore::new(0);
        let stand = Arc::new(Stand { taken, answered });
        self.standing.lock().push(Arc::clone(&stand));
        Reply::Later(Box::pin(async move {
            stand.taken.acquire().await.unwrap().forget();
            let came = act();
            stand.answered.acquire().await.unwrap().forget();
            came
        }))
    }
}

/// The answer of a store at hand.
fn at_hand<T>(reply: Reply<'_, T>) -> T {
    let Reply::Now(answer) = reply else { panic!("memory answers at once") };
    answer
}

impl Backend for Far {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> Reply<'a, Outcomes> {
        if self.is_cut_off.load(Relaxed) {
            let failed = |_| Outcome::Failed(Cause::Unreachable);
            return Reply::Now(charges.list.iter().map(failed).collect());
        }
        self.later(move || {
            if self.is_away() {
                return charges.list.iter().map(|_| Outcome::Failed(Cause::Late)).collect();
            }
            let at = self.time(now);
            let mut outcomes = at_hand(self.memory.charge(at, charges));
            // As a store tells it whose clock is another one.
            for stale in outcomes.iter_mut().filter(|o| **o == Outcome::Stepped(Step::Stale)) {
                *stale = Outcome::Stale(at);
            }
            outcomes
        })
    }

    fn borrow<'a>(&'a self, now: Nanos, message: &'a Message) -> Reply<'a, Lent> {
        if self.is_cut_off.load(Relaxed) {
            return Reply::Now(Lent::Failed(Cause::Unreachable));
        }
        if let Some(cause) = *self.refuses.lock() {
            return Reply::Later(Box::pin(async move {
                tokio::task::yield_now().await;
                Lent::Failed(cause)
            }));
        }
        self.later(move || {
            if self.is_away() {
                return Lent::Failed(Cause::Late);
            }
            let taken = self.time(now).plus(Nanos(self.way.load(Relaxed)));
            at_hand(self.memory.borrow(taken, message))
        })
    }

    fn together(&self, begin: &mut dyn FnMut()) {
        let before = self.calls();
        begin();
        self.together.fetch_add(self.calls() - before, Relaxed);
    }

    fn deadline(&self) -> Option<Nanos> {
        Some(Nanos(self.deadline.load(Relaxed))).filter(|deadline| *deadline != Nanos(0))
    }
}

/// An engine over `store`, with these descriptors in domain `d`, whose clock stands.
fn engine(store: &Arc<Far>, descriptors: &str) -> Engine {
    let engine = Engine::new(Clock::manual(NEW_YEAR), store.clone(), Policy::default());
    publish(&engine, "", descriptors);
    engine
}

/// Puts `descriptors` in force, of a domain that says `words` too.
fn publish(engine: &Engine, words: &str, descriptors: &str) {
    let text = format!("domain: d\n{words}descriptors:\n{descriptors}");
    let (config, _) = config::load([("a.yaml", text.as_bytes())], Revision(1), false).unwrap();
    engine.publish(Arc::new(config));
}

fn pass(engine: &Engine, time: Nanos) {
    let Clock::Manual(clock) = engine.clock() else { panic!("a clock that is set by hand") };
    clock.advance(time);
}

/// A question with one descriptor of one entry for each of these.
fn question<'a>(entries: &[(&'a str, &'a str)], cost: Cost) -> Question<'a> {
    let descriptor = |entry: &(&'a str, &'a str)| Descriptor {
        entries: [*entry].into_iter().collect(),
        cost,
        limit: None,
    };
    Question { domain: "d", descriptors: entries.iter().map(descriptor).collect() }
}

async fn ask(engine: &Engine, entries: &[(&str, &str)], hits: u64) -> Result<Answer, Refusal> {
    let question = question(entries, Cost::Charge(Hits(hits)));
    let answer = engine.decide(&question).await;
    // What is borrowed in the background has its turn.
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
    answer
}

async fn admits(engine: &Engine, entries: &[(&str, &str)], hits: u64) -> bool {
    ask(engine, entries, hits).await.unwrap().verdict == Verdict::Admit
}

/// The answer, where it is there at the first poll.
fn at_once(engine: &Engine, entries: &[(&str, &str)], hits: u64) -> Option<Answer> {
    let question = question(entries, Cost::Charge(Hits(hits)));
    let mut deciding = pin!(engine.decide(&question));
    match deciding.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer.unwrap()),
        Poll::Pending => None,
    }
}

/// Hits that the engine holds of all keys.
fn held(engine: &Engine) -> u64 {
    engine.leases().unwrap().sum().hits.0
}
