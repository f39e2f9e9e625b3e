//! Budgets: reserves the estimated cost of a request, and settles what it cost.
//!
//! | step | call | effect |
//! |---|---|---|
//! | the request starts | `Engine::admit_request` | holds in all budgets, or a rejection |
//! | the request ends | `Engine::settle` | the holds become charges |
//! | the usage is unknown | the same | the holds are charged as they are |
//!
//! Guarantees:
//! - A check reserves in every budget that its descriptors meet, in all of them or in none.
//! - Dropping a future of a reserve cancels its holds.
//! - A rate limit that denies afterwards cancels the holds.
//! - A check without an id charges its hits to its budgets. A check of 0 hits only reads.
//! - If the store fails, the strictest `on_store_failure` of the budgets decides. A settle or charge
//!   that fails is repeated until the store replies, at most for the time limit ([`retries`]).
//! - A budget that is reserved and never settled is a finding ([`watch`]).
//! - The budgets that requests met last are listed ([`met`]).
//!
//! Not covered:
//! - What a budget holds and charges (see [`crate::kernel::budget`]).
//! - The forms in which proxies report usage (`edge`).

mod calls;
mod guard;
mod learned;
mod met;
mod plan;
mod retries;
mod start;
mod store_calls;
mod watch;

use std::hash::Hasher as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128 as _, SipHasher24};

use crate::config::budget::BudgetUnit;
use crate::config::prices::TokenCounts;
use crate::kernel::budget::{Amount, BudgetView, EndedHold, HoldId, PeriodUsage};
use crate::kernel::decision::Check;
use crate::kernel::key::CounterKey;
use crate::kernel::units::Nanos;

pub(crate) use guard::HeldBudgets;
pub(crate) use learned::LearnedCosts;
pub(crate) use met::MetBudgets;
pub(crate) use retries::Retries;
pub(crate) use start::BudgetAnswer;
pub use watch::SettleFinding;
pub(crate) use watch::SettleWatch;

/// The budgets that a request uses.
#[derive(Clone, Copy, Debug)]
pub enum BudgetUse<'u, 'q> {
    /// The request reserves, and settles when it ends.
    Reserve(Reserve<'u, 'q>),
    /// The request charges the hits of its descriptors, without an id.
    Charge,
}

/// A reserve.
#[derive(Clone, Copy, Debug)]
pub struct Reserve<'u, 'q> {
    /// The request id, which the settle repeats.
    pub id: &'u str,
    /// The descriptors whose budgets are reserved. They are among those of the check.
    pub covered: &'u Check<'q>,
    /// The largest number of tokens that the request may use, if the caller knows it.
    pub tokens: Option<u64>,
}

/// The end of a request. The format of recordings contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestUsage {
    /// The tokens that the request used.
    Tokens(TokenCounts),
    /// The usage is unknown: the held amounts are charged.
    Unknown,
    /// The request used nothing, because it failed before it reached the provider.
    Nothing,
}

/// A budget that a call met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetStatus {
    /// The path of the rule.
    pub path: Arc<str>,
    /// The budget's key.
    pub key: CounterKey,
    /// The unit that the budget counts.
    pub unit: BudgetUnit,
    /// The amount of a period, or the sum of the top-ups.
    pub total: Amount,
    /// The amounts after the call.
    pub view: BudgetView,
    /// The hold that the call ended.
    pub ended: Option<EndedHold>,
    /// The usage of the last periods, if the call read them.
    pub periods: Vec<PeriodUsage>,
}

impl BudgetStatus {
    /// Returns the settled and held part of the amount, in millionths. It may be above 1,000,000.
    #[must_use]
    pub fn used_millionths(&self) -> u128 {
        let used = self.view.usage.settled.0.saturating_add(self.view.held.0);
        u128::from(used) * 1_000_000 / u128::from(self.total.0.max(1))
    }

    /// Returns the instant at which the budget is spent if requests cost as much as they did since the
    /// start of the period. `None` if that is after its end, or if nothing was settled.
    #[must_use]
    pub fn spent_at(&self, now: Nanos) -> Option<Nanos> {
        let (settled, end) = (self.view.usage.settled, self.view.end?);
        let (elapsed, left) =
            (now.since(self.view.usage.start), self.total.0.checked_sub(settled.0));
        let Some(left) = left else { return Some(now) };
        let wait = (u128::from(left) * u128::from(elapsed.0)).checked_div(settled.0.into())?;
        let at = now.plus(Nanos(u64::try_from(wait).unwrap_or(u64::MAX)));
        (at < end).then_some(at)
    }
}

/// Returns the id of a hold: a hash of the domain and the request id, the same in all replicas.
#[must_use]
pub fn hold_id(domain: &str, id: &str) -> HoldId {
    hash_id(b'r', domain, id)
}

/// Returns the id of a top-up. It never equals that of a request.
#[must_use]
pub fn top_up_id(domain: &str, id: &str) -> HoldId {
    hash_id(b't', domain, id)
}

fn hash_id(kind: u8, domain: &str, id: &str) -> HoldId {
    // Without a secret, because all replicas must compute the same id. Two requests with one hash are
    // one request, so a client that finds such ids is denied, as with one id.
    let mut hasher = SipHasher24::new();
    hasher.write_u8(kind);
    hasher.write(domain.as_bytes());
    // A byte that never occurs in UTF-8 separates the two strings.
    hasher.write(&[0xff]);
    hasher.write(id.as_bytes());
    let hash = hasher.finish128();
    HoldId(hash.h1, hash.h2)
}
