//! Tests leased limits through the engine: several engines with balances share one store.

mod all_or_nothing;
mod check;
mod denials;
mod forced_deny;
mod occupying;
mod refill;
mod refunds;
mod retry_after;
mod undecided;
mod utilization;
mod utilization_plot;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sluicegate::clock::Clock;
use sluicegate::engine::{CheckError, Decision, DecisionPolicy, Engine};
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};

use crate::support::engine::{check, publish};
use crate::support::faulty_store::FaultyStore;

/// 2026-01-01T00:00:00Z, the start of a window for all seven units.
const NEW_YEAR: Nanos = Nanos::from_secs(1_767_225_600);

/// An engine over `store` with a manual clock and these descriptors in domain `d`.
fn engine(store: &Arc<FaultyStore>, descriptors: &str) -> Engine {
    let engine = Engine::new(Clock::manual(NEW_YEAR), store.clone(), DecisionPolicy::default());
    publish(&engine, "", descriptors);
    engine
}

async fn send_check(
    engine: &Engine,
    entries: &[(&str, &str)],
    hits: u64,
) -> Result<Decision, CheckError> {
    let check = check(entries, Cost::Charge(Hits(hits)));
    let answer = engine.decide(&check).await;
    // Background borrows make progress here.
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
    answer
}

async fn is_allowed(engine: &Engine, entries: &[(&str, &str)], hits: u64) -> bool {
    send_check(engine, entries, hits).await.unwrap().verdict == Verdict::Allow
}

/// Polls a check once and returns its decision if it is ready.
fn poll_once(engine: &Engine, entries: &[(&str, &str)], hits: u64) -> Option<Decision> {
    let check = check(entries, Cost::Charge(Hits(hits)));
    let mut deciding = pin!(engine.decide(&check));
    match deciding.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer.unwrap()),
        Poll::Pending => None,
    }
}

/// The sum of the balances of all keys.
fn total_balance(engine: &Engine) -> u64 {
    engine.leases().unwrap().totals().hits.0
}
