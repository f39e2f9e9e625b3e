//! Fallback debt: hits that this replica allowed during
//! a store outage and charges to the store afterwards.
//!
//! Guarantees:
//! - At most [`MOST_KEYS`] counters with [`MOST_BYTES`] of
//!   keys have debt. Hits beyond that are counted as lost.
//! - Debt is charged one call at a time when its store node is available again.
//! - Hits that the counter has forgotten in the meantime are not charged.
//! - Attempts at an unavailable node never overlap, and take a tenth of the time.
//! - Without debt and after [`CALM`] of replies, the local counters are cleared.
//!
//! Not covered:
//! - A restart of the process: its debt is lost.
//!
//! Outages less than [`CALM`] apart count as one, so their hits share the local counters.

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

const MOST_KEYS: usize = 65_536;

/// The largest total size of their keys.
const MOST_BYTES: usize = 16 << 20;

/// The shortest pause between two attempts during an outage.
const LOOK: Duration = Duration::from_millis(20);

const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The pause is this multiple of the last attempt's duration, up to the longest pause.
const LOOKING_PART: u32 = 10;

/// The time for which the store must be available before an outage has ended.
const CALM: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(super) struct Debt {
    /// The last charge, for the counter and the strategy of the store.
    charge: Charge,
    /// The strategy of the local counter.
    pub(super) part: Strategy,
    pub(super) hits: Hits,
}

impl Debt {
    pub(super) fn of(&self, hits: Hits) -> Charge {
        Charge { cost: Cost::Charge(hits), ..self.charge.clone() }
    }
}

#[derive(Debug, Default)]
pub(super) struct Owed {
    book: Mutex<Book>,
    /// Notified after each local charge.
    counted: Notify,
}

#[derive(Debug, Default)]
struct Book {
    debts: HashMap<CounterKey, Debt>,
    bytes: usize,
}

impl Owed {
    /// Starts the repayment after a local charge.
    pub(super) fn wake(&self) {
        self.counted.notify_one();
    }

    /// Adds an allowed charge to the debt, or subtracts a refund.
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

    fn keys(&self) -> Vec<CounterKey> {
        self.book.lock().debts.keys().cloned().collect()
    }

    fn look<T>(&self, key: &CounterKey, of: impl FnOnce(&Charge) -> T) -> Option<T> {
        self.book.lock().debts.get(key).map(|debt| of(&debt.charge))
    }

    /// Takes the debt of one counter. The others stay in
    /// the table, where refunds can still reduce them.
    fn take(&self, key: &CounterKey) -> Option<Debt> {
        let mut book = self.book.lock();
        let debt = book.debts.remove(key)?;
        book.bytes = book.bytes.saturating_sub(key.as_bytes().len());
        Some(debt)
    }

    /// Adds to debt that was recorded in the meantime, and keeps the newer limit.
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

/// At least one store node is unavailable. Contains the start of the attempt.
struct Away {
    began: Nanos,
}

enum Paid {
    /// The debt is settled.
    All,
    /// The node is unavailable, and nothing was charged.
    Nothing,
    /// Unknown after a timeout. Counted as lost, because a retry might count the hits twice.
    Perhaps,
}

/// The debts between two yields. Needed because debts
/// of unavailable nodes are skipped without an await.
const IN_ONE_GO: usize = 64;

impl Engine {
    /// Repays fallback debt whenever the store is available again. Never returns.
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

    /// Repays all debt. Clears the local counters once the store has been available for [`CALM`].
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

    /// Charges the hits that fit, so that debt never raises the counter above its limit.
    async fn pay_one(&self, debt: &mut Debt) -> Paid {
        // A second attempt, because the remaining hits may have changed since the first reply.
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
                // A fixed window counts the hits even if it denies them.
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
