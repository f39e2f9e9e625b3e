//! The reservations of one check whose charges need several store calls.
//!
//! Guarantees:
//! - Each reservation is committed or canceled once.
//! - If the check is dropped or a result is unknown, its reservations are canceled.
//! - A reservation without a commit or cancellation expires in the store.
//! - Reservations in one Cluster slot share a call, up to [`MAX_CHARGES_PER_CALL`].
//!
//! Expired reservations of an idle counter are refunded by its next reservation or recheck
//! ([`super::recheck`]).

use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::StoreFailure;
use super::codec::lease::{PackedMessage, encode_call};
use super::codec::reservation::{
    RawReservationResult, ReservationAction, ReservationResult, pack, read, split_reply,
};
use super::outcome::{as_uncharged, log_invalid_reply, to_outcome};
use super::route::Route;
use super::script::LoadedScript;
use crate::kernel::decision::Cost;
use crate::kernel::lease::reservation::ReservationId;
use crate::kernel::rate::CounterDecision;
use crate::kernel::units::{Hits, Nanos};
use crate::{Charge, ChargeOutcome, Outcomes};

/// The shortest lifetime of a reservation, above every caller's deadline: an expired reservation
/// cannot be committed.
const MIN_LIFETIME: Duration = Duration::from_secs(1);

/// The most reservations in one call, which then blocks Redis for a few milliseconds.
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

#[derive(Debug)]
struct Reservation {
    /// The index of the reserved charge in the check.
    index: usize,
    client: Arc<ReservationClient>,
    id: ReservationId,
    charge: Charge,
    outcome: Option<ChargeOutcome>,
}

impl ReservationClient {
    pub(super) fn new(route: Route, key_prefix: &str, process_id: u64, deadline: Duration) -> Self {
        let lifetime = MIN_LIFETIME.max(deadline.saturating_mul(2));
        Self { route, key_prefix: key_prefix.into(), process_id, lifetime }
    }

    /// Returns the time after which Redis may refund a reservation without a commit.
    pub(super) fn lifetime(&self) -> Nanos {
        Nanos(u64::try_from(self.lifetime.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Reservations {
    pub(super) fn add(&mut self, client: &Arc<ReservationClient>, index: usize, charge: &Charge) {
        // One static number for all stores makes reservation ids unique in this process.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let id = ReservationId(client.process_id, NUMBER.fetch_add(1, Relaxed));
        let (client, charge) = (Arc::clone(client), charge.clone());
        self.open.push(Reservation { index, client, id, charge, outcome: None });
    }

    pub(super) async fn reserve_all(&mut self, step_timeout: Duration, outcomes: &mut Outcomes) {
        let results = run_step(self.open.iter(), ReservationStep::Reserve, step_timeout).await;
        for (reservation, result) in self.open.iter_mut().zip(results) {
            let outcome = result.map_or_else(ChargeOutcome::Failed, |result| match result {
                ReservationResult::Charged(charged) => to_outcome(charged),
                ReservationResult::Committed | ReservationResult::NotReserved => {
                    ChargeOutcome::Failed(StoreFailure::Overloaded)
                }
            });
            outcomes[reservation.index] = as_uncharged(outcome);
            reservation.outcome = Some(outcome);
        }
        self.open.retain(|reservation| reservation.can_be_reserved());
    }

    pub(super) async fn commit_all(&mut self, step_timeout: Duration, outcomes: &mut Outcomes) {
        let (reserved, unknown): (SmallVec<[Reservation; 2]>, _) =
            take(&mut self.open).into_iter().partition(Reservation::is_reserved);
        self.open = unknown;
        let results = run_step(reserved.iter(), ReservationStep::Commit, step_timeout).await;
        for (reservation, result) in reserved.iter().zip(results) {
            outcomes[reservation.index] = match (result, reservation.outcome) {
                (Ok(ReservationResult::Committed), Some(outcome)) => outcome,
                // Redis replied that the reservation expired before the commit.
                (Ok(_), _) => ChargeOutcome::Failed(StoreFailure::TimedOut),
                (Err(cause), _) => ChargeOutcome::Failed(cause),
            };
        }
    }

    /// Cancels the reservations. If a cancellation times out, its reservation expires in Redis.
    pub(super) async fn cancel_all(&mut self, step_timeout: Duration, outcomes: &mut Outcomes) {
        let reserved = || self.open.iter().filter(|reservation| reservation.is_reserved());
        let results = run_step(reserved(), ReservationStep::Cancel, step_timeout).await;
        for (reservation, result) in reserved().zip(results) {
            if let Ok(ReservationResult::Charged(charged)) = result
                && let remaining @ ChargeOutcome::Decided(CounterDecision::Allow(_)) =
                    to_outcome(charged)
            {
                outcomes[reservation.index] = remaining;
            }
        }
        self.open.retain(|reservation| !reservation.is_reserved());
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
                let lifetimes = open.iter().map(|reservation| reservation.client.lifetime);
                let step_timeout = lifetimes.max().unwrap_or_default();
                run_step(open.iter(), ReservationStep::Cancel, step_timeout).await;
            });
        }
    }
}

impl Reservation {
    fn is_reserved(&self) -> bool {
        let has_hits = matches!(self.charge.cost, Cost::Charge(Hits(1..)));
        has_hits && matches!(self.outcome, Some(ChargeOutcome::Decided(CounterDecision::Allow(_))))
    }

    /// Returns `true` if Redis made the reservation, or may have made it without a reply.
    fn can_be_reserved(&self) -> bool {
        self.is_reserved() || matches!(self.outcome, None | Some(ChargeOutcome::Failed(_)))
    }

    fn action(&self, step: ReservationStep) -> ReservationAction {
        match step {
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

/// Reserves, commits or cancels all given reservations before the timeout, and returns the results
/// in the same order.
async fn run_step<'o>(
    reservations: impl Iterator<Item = &'o Reservation>,
    step: ReservationStep,
    step_timeout: Duration,
) -> Vec<Result<ReservationResult, StoreFailure>> {
    let mut calls: Vec<ReservationCall<'o>> = Vec::new();
    let mut count = 0;
    for (index, reservation) in reservations.enumerate() {
        ReservationCall::add_to_call(&mut calls, (index, reservation), step);
        count = index + 1;
    }
    let mut results = vec![Err(StoreFailure::TimedOut); count];
    let replies = join_all(calls.iter().map(|call| call.run(step, step_timeout))).await;
    for (index, result) in replies.into_iter().flatten() {
        results[index] = result;
    }
    results
}

impl<'o> ReservationCall<'o> {
    fn add_to_call(
        calls: &mut Vec<Self>,
        (index, reservation): (usize, &'o Reservation),
        step: ReservationStep,
    ) {
        let client = &*reservation.client;
        let Reservation { charge, id, .. } = reservation;
        let packed =
            pack(charge, *id, reservation.action(step), client.key_prefix.as_bytes(), None);
        let slot = client.route.slot_of(&packed.keys[0]);
        let has_room = |call: &&mut Self| {
            std::ptr::eq(call.client, client)
                && call.slot == slot
                && call.reservations.len() < MAX_CHARGES_PER_CALL
        };
        match calls.iter_mut().find(has_room) {
            Some(call) => {
                call.reservations.push((index, reservation));
                call.packed.push(packed);
            }
            None => calls.push(Self {
                client,
                slot,
                reservations: vec![(index, reservation)],
                packed: vec![packed],
            }),
        }
    }

    async fn run(
        &self,
        step: ReservationStep,
        call_timeout: Duration,
    ) -> Vec<(usize, Result<ReservationResult, StoreFailure>)> {
        let raw_results = self.send(call_timeout).await;
        let decode = |(position, &(index, reservation)): (usize, &(usize, &Reservation))| {
            let result = raw_results.as_ref().map_err(|cause| *cause).and_then(|raw| {
                let result = read(&reservation.charge, reservation.action(step), &raw[position]);
                result.map_err(|invalid| log_invalid_reply(&invalid))
            });
            (index, result)
        };
        self.reservations.iter().enumerate().map(decode).collect()
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
        results.map_err(|invalid| log_invalid_reply(&invalid))
    }
}
