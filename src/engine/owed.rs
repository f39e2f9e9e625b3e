//! Hits that were admitted here while the store did not answer, until it is charged with them.
//!
//! Guarantees: at most [`MOST_KEYS`] counters and [`MOST_BYTES`] of their keys are remembered, and
//! what finds no room is counted as lost; what is owed is charged when the store answers again, one
//! call at a time, and what a counter would not hold any more is not. Once nothing is owed and the
//! store has answered for [`CALM`], this replica's own counters are dropped: the store's carry
//! them. A store that comes and goes faster than that meets one outage.
//! Leaves out: surviving the end of the process.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
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

    fn take(&self) -> Vec<Debt> {
        std::mem::take(&mut *self.book.lock()).debts.into_values().collect()
    }

    fn put_back(&self, debts: impl Iterator<Item = Debt>) {
        let mut book = self.book.lock();
        debts.for_each(|debt| book.add(debt));
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

/// The store does not answer.
struct Away;

impl Engine {
    /// Charges the store with what was counted here, whenever it is back; never ends.
    pub async fn pay_on(&self) {
        let Some(local) = self.local() else { return std::future::pending().await };
        loop {
            local.owed.counted.notified().await;
            while self.pay_until_calm(local).await.is_err() {
                sleep(LOOK).await;
            }
        }
    }

    /// Pays all there is, and drops what was counted here once the store has answered for long
    /// enough that the next outage is another one.
    async fn pay_until_calm(&self, local: &Local) -> Result<(), Away> {
        loop {
            if self.backend().trouble().is_some() {
                return Err(Away);
            }
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

    async fn pay(&self, local: &Local) -> Result<(), Away> {
        let mut debts = local.owed.take().into_iter();
        while let Some(debt) = debts.next() {
            let hits = local.still(&debt, self.clock().now());
            count(OwedOutcome::Rested, debt.hits.less(hits));
            if let Err(away) = self.pay_one(&debt, hits).await {
                local.owed.put_back(std::iter::once(debt).chain(debts));
                return Err(away);
            }
        }
        Ok(())
    }

    /// Charges what there is room for: the store's counter is never above its limit for it.
    async fn pay_one(&self, debt: &Debt, mut hits: Hits) -> Result<(), Away> {
        // Twice: what there was room for a moment ago there may not be.
        for _ in 0..2 {
            if hits == Hits(0) {
                return Ok(());
            }
            match charge(self.backend(), self.clock().now(), debt, hits).await {
                Outcome::Stepped(Step::Deny { room, .. } | Step::Never(room))
                    if !matches!(debt.charge.strategy, Strategy::FixedWindow(_)) =>
                {
                    count(OwedOutcome::Rested, hits.less(room.remaining));
                    hits = room.remaining;
                }
                // A fixed window has counted it, whatever it said.
                Outcome::Stepped(_) | Outcome::Counted(..) | Outcome::Refunded(_) => {
                    count(OwedOutcome::Charged, hits);
                    return Ok(());
                }
                Outcome::Failed(cause) if cause.may_be_charged() => break,
                Outcome::Full(_) | Outcome::Stale(_) => break,
                Outcome::Failed(_) => return Err(Away),
            }
        }
        count(OwedOutcome::Lost, hits);
        Ok(())
    }
}

async fn charge(backend: &dyn Backend, now: Nanos, debt: &Debt, hits: Hits) -> Outcome {
    let charges = Charges { list: [debt.of(hits)].into_iter().collect(), rule: Rule::Each };
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
