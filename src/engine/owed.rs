//! Hits that were admitted here while the store did not answer, until it is charged with them.
//!
//! Guarantees: at most [`MOST_KEYS`] counters and [`MOST_BYTES`] of their keys are remembered, and
//! what finds no room is counted as lost; what is owed is charged when its place in the store answers
//! again, whatever others do, one call at a time, and what a counter would not hold any more is not. Of a
//! place that does not answer one charge is tried at a time, and trying takes a tenth of the time. Once nothing is owed and the
//! store has answered for [`CALM`], this replica's own counters are dropped: the store's carry
//! them. A store that comes and goes faster than that meets one outage.
//! Leaves out: surviving the end of the process.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::Engine;
use super::local::Local;
use crate::backend::{Backend, Charge, Charges, Outcome, Reply, Rule};
use crate::kernel::decision::{Cause, Cost};
use crate::kernel::key::CounterKey;
use crate::kernel::rate::{Step, Strategy};
use crate::kernel::units::{Hits, Nanos};
use crate::telemetry::event::{HitsOwed, OwedOutcome};

/// The most counters that hits are owed to.
const MOST_KEYS: usize = 65_536;

/// The most bytes of their keys.
const MOST_BYTES: usize = 16 << 20;

/// How often the store is looked at while it does not answer.
const LOOK: Duration = Duration::from_millis(20);

/// The longest pause between two looks, however much is owed.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A look takes no more than one part in so many of the time, while pauses are not at their longest.
const LOOKING_PART: u32 = 10;

/// How long the store must answer before an outage is over.
const CALM: Duration = Duration::from_secs(5);

/// What is owed to one counter.
#[derive(Clone, Debug)]
pub(super) struct Debt {
    /// The last charge of these: to which counter, and how the store counts.
    charge: Charge,
    /// How this replica counted.
    pub(super) part: Strategy,
    pub(super) hits: Hits,
}

impl Debt {
    /// A charge of `hits` to the counter.
    pub(super) fn of(&self, hits: Hits) -> Charge {
        Charge { cost: Cost::Charge(hits), ..self.charge.clone() }
    }
}

/// What is owed to all counters.
#[derive(Debug, Default)]
pub(super) struct Owed {
    book: Mutex<Book>,
    /// Something was counted here.
    counted: Notify,
}

#[derive(Debug, Default)]
struct Book {
    debts: HashMap<CounterKey, Debt>,
    bytes: usize,
}

impl Owed {
    /// Something was counted in this replica's memory.
    pub(super) fn wake(&self) {
        self.counted.notify_one();
    }

    /// Notes what a charge that passed here, or a refund, owes.
    pub(super) fn note(&self, charge: &Charge, part: Strategy) {
        let mut book = self.book.lock();
        match charge.cost {
            Cost::Charge(Hits(0)) => {}
            Cost::Charge(hits) => {
                book.add(Debt { charge: charge.clone(), part, hits });
            }
            Cost::Refund(hits) => {
                if let Some(debt) = book.debts.get_mut(&charge.key) {
                    debt.hits = debt.hits.less(hits);
                }
            }
        }
    }

    /// The counters that hits are owed to now.
    fn keys(&self) -> Vec<CounterKey> {
        self.book.lock().debts.keys().cloned().collect()
    }

    /// What `of` says of what is owed to a counter.
    fn look<T>(&self, key: &CounterKey, of: impl FnOnce(&Charge) -> T) -> Option<T> {
        self.book.lock().debts.get(key).map(|debt| of(&debt.charge))
    }

    /// One by one: refunds lessen what is in the book.
    fn take(&self, key: &CounterKey) -> Option<Debt> {
        let mut book = self.book.lock();
        let debt = book.debts.remove(key)?;
        book.bytes = book.bytes.saturating_sub(key.as_bytes().len());
        Some(debt)
    }

    /// Meanwhile there may be more for the same counter, under the limit of now.
    fn put_back(&self, debt: Debt) {
        let mut book = self.book.lock();
        match book.debts.get_mut(&debt.charge.key) {
            Some(newer) => newer.hits = newer.hits.plus(debt.hits),
            None => book.add(debt),
        }
    }

    fn is_empty(&self) -> bool {
        self.book.lock().debts.is_empty()
    }
}

impl Book {
    fn add(&mut self, debt: Debt) {
        if let Some(held) = self.debts.get_mut(&debt.charge.key) {
            let hits = held.hits.plus(debt.hits);
            *held = Debt { hits, ..debt };
            return;
        }
        let bytes = self.bytes.saturating_add(debt.charge.key.as_bytes().len());
        if MOST_KEYS <= self.debts.len() || MOST_BYTES < bytes {
            HitsOwed { hits: debt.hits, outcome: OwedOutcome::Lost }.emit();
            return;
        }
        self.bytes = bytes;
        self.debts.insert(debt.charge.key.clone(), debt);
    }
}

/// Some place does not answer, and when that was first looked at.
struct Away {
    began: Nanos,
}

/// What became of a debt that was to be paid.
enum Paid {
    /// All that is to be.
    All,
    /// Nothing, because its place does not answer.
    Nothing,
    /// It is not known, for the same: it is lost.
    Perhaps,
}

/// After so many debts others have their turn: of one that does not answer none is waited for.
const IN_ONE_GO: usize = 64;

impl Engine {
    /// Charges the store with what was counted here, whenever it is back; never ends.
    pub async fn pay_on(&self) {
        let Some(local) = self.local() else { return std::future::pending().await };
        loop {
            local.owed.counted.notified().await;
            while let Err(Away { began }) = self.pay_until_calm(local).await {
                let took = Duration::from_nanos(self.clock().steady().since(began).0);
                sleep(took.saturating_mul(LOOKING_PART).clamp(LOOK, LONGEST_PAUSE)).await;
            }
        }
    }

    /// Pays all there is, and drops what was counted here once the store has answered for long
    /// enough that the next outage is another one.
    async fn pay_until_calm(&self, local: &Local) -> Result<(), Away> {
        loop {
            self.pay(local).await?;
            match timeout(CALM, local.owed.counted.notified()).await {
                Ok(()) => sleep(LOOK).await,
                Err(_calm) if local.owed.is_empty() && self.backend().trouble().is_none() => {
                    local.memory.clear();
                    return Ok(());
                }
                Err(_calm) => {}
            }
        }
    }

    /// Pays what is owed wherever it is taken.
    async fn pay(&self, local: &Local) -> Result<(), Away> {
        let began = self.clock().steady();
        let mut away = HashSet::new();
        for (at, key) in local.owed.keys().into_iter().enumerate() {
            if at % IN_ONE_GO == IN_ONE_GO - 1 {
                yield_now().await;
            }
            let place = |charge: &Charge| self.backend().place_of(self.clock().now(), charge);
            let Some(place) = local.owed.look(&key, place) else { continue };
            if away.contains(&place) {
                continue;
            }
            let Some(mut debt) = local.owed.take(&key) else { continue };
            let hits = local.still(&debt, self.clock().now());
            count(OwedOutcome::Rested, debt.hits.less(hits));
            debt.hits = hits;
            match self.pay_one(&mut debt).await {
                Paid::All => continue,
                Paid::Nothing => local.owed.put_back(debt),
                Paid::Perhaps => count(OwedOutcome::Lost, debt.hits),
            }
            away.insert(place);
        }
        if away.is_empty() { Ok(()) } else { Err(Away { began }) }
    }

    /// Charges what there is room for: the store's counter is never above its limit for it.
    async fn pay_one(&self, debt: &mut Debt) -> Paid {
        // Twice: what there was room for a moment ago there may not be.
        for _ in 0..2 {
            if debt.hits == Hits(0) {
                return Paid::All;
            }
            match charge(self.backend(), self.clock().now(), debt).await {
                Outcome::Stepped(Step::Deny { room, .. } | Step::Never(room))
                    if !matches!(debt.charge.strategy, Strategy::FixedWindow(_)) =>
                {
                    count(OwedOutcome::Rested, debt.hits.less(room.remaining));
                    debt.hits = room.remaining;
                }
                // A fixed window has counted it, whatever it said.
                Outcome::Stepped(_) | Outcome::Counted(..) | Outcome::Refunded(_) => {
                    count(OwedOutcome::Charged, debt.hits);
                    return Paid::All;
                }
                Outcome::Failed(Cause::Late | Cause::Cut) => return Paid::Perhaps,
                Outcome::Failed(cause) if !cause.may_be_charged() => return Paid::Nothing,
                Outcome::Failed(_) | Outcome::Full(_) | Outcome::Stale(_) => break,
            }
        }
        count(OwedOutcome::Lost, debt.hits);
        Paid::All
    }
}

async fn charge(backend: &dyn Backend, now: Nanos, debt: &Debt) -> Outcome {
    let charges = Charges { list: [debt.of(debt.hits)].into_iter().collect(), rule: Rule::Each };
    let outcomes = match backend.charge(now, &charges) {
        Reply::Now(outcomes) => outcomes,
        Reply::Later(outcomes) => outcomes.await,
    };
    outcomes.into_iter().next().unwrap_or(Outcome::Failed(Cause::NotUnderstood))
}

fn count(outcome: OwedOutcome, hits: Hits) {
    if hits != Hits(0) {
        HitsOwed { hits, outcome }.emit();
    }
}
