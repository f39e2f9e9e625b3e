//! The reservations of one check whose charges need several store calls.
//!
//! Guarantees:
//! - Each reservation is committed or canceled once.
//! - If the check is dropped or a result is unknown, its reservations are canceled.
//! - A reservation without a commit or cancellation expires in the store.
//! - Reservations in one Cluster slot share a call, up to [`MAX_CHARGES_PER_CALL`].
//!
//! Not covered:
//! - The decision to commit or to cancel ([`super::joint_decision`]).
//! - Expired reservations of an idle counter: its next reservation or recheck refunds them
//!   ([`super::recheck`]).

use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::codec::lease::{PackedMessage, encode_call};
use super::codec::reservation::{
    RawReservationResult, ReservationAction, ReservationResult, pack, read, split_reply,
};
use super::outcome::{as_uncharged, log_invalid_reply, to_outcome};
use super::route::Route;
use super::script::LoadedScript;
use super::{StoreFailure, codec};
use crate::kernel::decision::Cost;
use crate::kernel::lease::reservation::ReservationId;
use crate::kernel::rate::CounterDecision;
use crate::kernel::units::{Hits, Nanos};
use crate::store::{Charge, ChargeOutcome, Outcomes};

/// The shortest lifetime of a reservation. It must exceed every caller's deadline, because an
/// expired reservation cannot be committed.
const MIN_LIFETIME: Duration = Duration::from_secs(1);

/// The most reservations in one call. A call of this size blocks Redis for a few milliseconds.
const MAX_CHARGES_PER_CALL: usize = 64;

#[derive(Clone, Copy, Debug)]
enum ReservationStep {
    Reserve,
    Commit,
    Cancel,
}

/// The connection to one Redis, and the process id that makes its reservations unique.
#[derive(Clone, Debug)]
pub(super) struct ReservationClient {
    route: Route,
    key_prefix: Arc<str>,
    process_id: u64,
    lifetime: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Reservations {
    open: SmallVec<[Reservation; 2]>,
}

/// One reservation, before or after the reply of Redis.
#[derive(Debug)]
struct Reservation {
    /// The index of the reserved charge in the check.
    index: usize,
    client: Arc<ReservationClient>,
    id: ReservationId,
    charge: Charge,
    /// The outcome of the reservation; `None` before the reply.
    outcome: Option<ChargeOutcome>,
}

impl ReservationClient {
    pub(super) fn new(route: Route, key_prefix: &str, process: u64, deadline: Duration) -> Self {
        let term = MIN_LIFETIME.max(deadline.saturating_mul(2));
        Self { route, key_prefix: key_prefix.into(), process_id: process, lifetime: term }
    }

    /// Returns the time after which Redis may refund a reservation that was not committed.
    pub(super) fn lifetime(&self) -> Nanos {
        Nanos(u64::try_from(self.lifetime.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Reservations {
    pub(super) fn add(&mut self, client: &Arc<ReservationClient>, index: usize, charge: &Charge) {
        // One static number for all stores, so that reservation ids are unique in this process.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let id = ReservationId(client.process_id, NUMBER.fetch_add(1, Relaxed));
        let (holder, charge) = (Arc::clone(client), charge.clone());
        self.open.push(Reservation { index, client: holder, id, charge, outcome: None });
    }

    pub(super) async fn reserve_all(&mut self, step_timeout: Duration, outcomes: &mut Outcomes) {
        let answers = run_step(self.open.iter(), ReservationStep::Reserve, step_timeout).await;
        for (open, answered) in self.open.iter_mut().zip(answers) {
            let answered = answered.map_or_else(ChargeOutcome::Failed, |held| match held {
                ReservationResult::Charged(answer) => to_outcome(answer),
                ReservationResult::Committed | ReservationResult::NotReserved => {
                    ChargeOutcome::Failed(StoreFailure::Overloaded)
                }
            });
            outcomes[open.index] = as_uncharged(answered);
            open.outcome = Some(answered);
        }
        self.open.retain(|open| open.can_be_reserved());
    }

    pub(super) async fn commit_all(&mut self, step_timeout: Duration, outcomes: &mut Outcomes) {
        let (reserved, unknown) =
            take(&mut self.open).into_iter().partition(Reservation::is_reserved);
        self.open = unknown;
        let held: SmallVec<[Reservation; 2]> = reserved;
        let commit_results = run_step(held.iter(), ReservationStep::Commit, step_timeout).await;
        for (open, kept) in held.iter().zip(commit_results) {
            outcomes[open.index] = match (kept, open.outcome) {
                (Ok(ReservationResult::Committed), Some(held)) => held,
                // Redis replied that the reservation expired before the commit.
                (Ok(_), _) => ChargeOutcome::Failed(StoreFailure::TimedOut),
                (Err(cause), _) => ChargeOutcome::Failed(cause),
            };
        }
    }

    /// Cancels the reservations. Reservations whose cancellation times out expire in Redis.
    pub(super) async fn cancel_all(&mut self, step_timeout: Duration, outcomes: &mut Outcomes) {
        let reserved = || self.open.iter().filter(|open| open.is_reserved());
        let cancel_results = run_step(reserved(), ReservationStep::Cancel, step_timeout).await;
        for (open, given) in reserved().zip(cancel_results) {
            if let Ok(ReservationResult::Charged(answer)) = given
                && let left @ ChargeOutcome::Decided(CounterDecision::Allow(_)) = to_outcome(answer)
            {
                outcomes[open.index] = left;
            }
        }
        self.open.retain(|open| !open.is_reserved());
    }
}

impl Drop for Reservations {
    fn drop(&mut self) {
        let open = take(&mut self.open);
        if open.is_empty() {
            return;
        }
        // Without a Tokio runtime the process is ending; the reservations then expire in Redis.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                let patience =
                    open.iter().map(|open| open.client.lifetime).max().unwrap_or_default();
                run_step(open.iter(), ReservationStep::Cancel, patience).await;
            });
        }
    }
}

impl Reservation {
    fn is_reserved(&self) -> bool {
        let charges = matches!(self.charge.cost, Cost::Charge(Hits(1..)));
        charges && matches!(self.outcome, Some(ChargeOutcome::Decided(CounterDecision::Allow(_))))
    }

    /// Returns `true` if Redis has made the reservation, or may have made it without a reply.
    fn can_be_reserved(&self) -> bool {
        self.is_reserved() || matches!(self.outcome, None | Some(ChargeOutcome::Failed(_)))
    }

    fn action(&self, does: ReservationStep) -> ReservationAction {
        match does {
            ReservationStep::Reserve => ReservationAction::Reserve(self.client.lifetime),
            ReservationStep::Commit => ReservationAction::Commit,
            ReservationStep::Cancel => ReservationAction::Cancel,
        }
    }
}

/// One script call for several reservations in one Cluster slot.
struct ReservationCall<'o> {
    client: &'o ReservationClient,
    slot: u16,
    /// Each reservation of the call, with its index in the caller's list.
    reservations: Vec<(usize, &'o Reservation)>,
    packed: Vec<PackedMessage>,
}

/// Reserves, commits or cancels all given reservations before the timeout. Returns the results in
/// the same order.
async fn run_step<'o>(
    open: impl Iterator<Item = &'o Reservation>,
    does: ReservationStep,
    patience: Duration,
) -> Vec<Result<ReservationResult, StoreFailure>> {
    let mut calls: Vec<ReservationCall<'o>> = Vec::new();
    let mut count = 0;
    for (at, open) in open.enumerate() {
        ReservationCall::add_to_call(&mut calls, (at, open), does);
        count = at + 1;
    }
    let mut all = vec![Err(StoreFailure::TimedOut); count];
    let answers = join_all(calls.iter().map(|call| call.run(does, patience))).await;
    for (at, answer) in answers.into_iter().flatten() {
        all[at] = answer;
    }
    all
}

impl<'o> ReservationCall<'o> {
    fn add_to_call(
        calls: &mut Vec<Self>,
        (at, open): (usize, &'o Reservation),
        does: ReservationStep,
    ) {
        let client = &*open.client;
        let packed =
            pack(&open.charge, open.id, open.action(does), client.key_prefix.as_bytes(), None);
        let slot = client.route.slot_of(&packed.keys[0]);
        let is_its = |call: &&mut Self| {
            std::ptr::eq(call.client, client)
                && call.slot == slot
                && call.reservations.len() < MAX_CHARGES_PER_CALL
        };
        match calls.iter_mut().find(is_its) {
            Some(call) => {
                call.reservations.push((at, open));
                call.packed.push(packed);
            }
            None => calls.push(Self {
                client,
                slot,
                reservations: vec![(at, open)],
                packed: vec![packed],
            }),
        }
    }

    async fn run(
        &self,
        does: ReservationStep,
        patience: Duration,
    ) -> Vec<(usize, Result<ReservationResult, StoreFailure>)> {
        let results = self.send(patience).await;
        let each = self.reservations.iter().enumerate().map(|(place, &(at, open))| {
            let answer = results.as_ref().map_err(|cause| *cause).and_then(|said| {
                let answer = read(&open.charge, open.action(does), &said[place]);
                answer.map_err(|refused: codec::InvalidReply| log_invalid_reply(&refused))
            });
            (at, answer)
        });
        each.collect()
    }

    async fn send(
        &self,
        call_timeout: Duration,
    ) -> Result<Vec<RawReservationResult>, StoreFailure> {
        let route = &self.client.route;
        let live = route.connection(self.slot)?;
        let (keys, args) = encode_call(&self.packed);
        let reply = route
            .call_within(call_timeout, self.slot, live.run(LoadedScript::Reservation, keys, args))
            .await?;
        let results = split_reply(&reply, self.reservations.len());
        results.map_err(|refused: codec::InvalidReply| log_invalid_reply(&refused))
    }
}
