//! The Redis store: counters in a Redis that replicas share.
//!
//! Guarantees:
//! - One script call decides a check with any number of charges.
//! - Checks that arrive during a store call share the next call.
//! - The Lua scripts compute the same numbers as the Rust code in `crates/kernel`.
//! - Every charge has an outcome within the deadline: from Redis, or a [`StoreFailure`].
//! - A charge is sent at most once, and never after its caller stopped waiting.
//! - All instants are those of the clock of Redis, not of the replica.
//! - A replica starts and serves without Redis, and keeps reconnecting.
//! - No error and no log line contains the password.
//! - In a Cluster, a check makes one call for each slot.
//! - If one decision needs several slots, the check reserves hits, then commits or cancels all,
//!   within one deadline.
//!
//! One Redis process gets one connection: its single thread would not reply faster to more.

mod backoff;
mod batch;
mod breaker;
pub mod charge_call;
mod client;
mod cluster;
pub mod codec;
mod connection;
mod files;
pub mod inspect;
mod joint_decision;
mod keeper;
pub mod membership;
mod options;
mod permits;
mod recheck;
pub mod reference;
mod reservations;
mod route;
mod sentinel;
mod slot_map;
mod slot_parts;
mod store_group;
mod tls;

use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use smallvec::SmallVec;
use tokio::time::timeout;

use super::fleet::{MembershipHeartbeat, MembershipReply};
use super::heartbeat::{ShareRound, ShareRoundReply};
use super::lease::{LeaseMessage, LeaseOutcome};
use super::permits::{PermitReport, PermitReportReply, StrictPermitReply, StrictPermitRequest};
use super::stats::{ConnectionCounter, StoreStats};
use super::{
    Charge, ChargeMode, ChargeOutcome, Charges, CounterStore, FleetStore, Outcomes, Placement,
    StoreFailure, StoreReply,
};
use crate::kernel::units::Nanos;
use crate::telemetry::event::{LeaseCallSent, StoreCallSent};
use batch::{BatchItem, BatchReplies, Batcher};
use charge_call::{ChargeCall, CheckResults};
use codec::{ChargeResult, InvalidReply, heartbeat, lease};
use connection::LiveConnection;
use joint_decision::{JointDecision, can_reserve};
pub use options::{
    Address, Batching, ClientIdentity, Password, RedisOptions, RedisTls, RedisTopology,
    SentinelOptions,
};
use recheck::RecheckLimiter;
use reservations::{ReservationClient, Reservations};
use route::Route;
pub use store_group::StoreGroup;

/// The script that charges the hits of checks. Its protocol is documented in `head.lua`.
pub const CHARGE_SCRIPT: &str = concat!(
    include_str!("lua/head.lua"),
    include_str!("lua/plan.lua"),
    include_str!("lua/gcra.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/charge.lua"),
);

/// The script that applies lease messages, separate from [`CHARGE_SCRIPT`], so that the most
/// frequent script stays small. Its protocol is documented in `borrow.lua`.
pub const LEASE_SCRIPT: &str = concat!(
    include_str!("lua/head.lua"),
    include_str!("lua/debt.lua"),
    include_str!("lua/borrow.lua"),
    include_str!("lua/step.lua"),
    include_str!("lua/gcra.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/counter.lua"),
    include_str!("lua/lend.lua"),
);

/// The script that applies a share round. Its protocol is documented in `heartbeat.lua`.
pub const HEARTBEAT_SCRIPT: &str = include_str!("lua/heartbeat.lua");
/// The script that acquires a permit of a strict concurrency limit (protocol: `permits.lua` and
/// `acquire.lua`).
pub const ACQUIRE_SCRIPT: &str =
    concat!(include_str!("lua/permits.lua"), include_str!("lua/acquire.lua"));

/// The script that renews and releases permits of strict concurrency limits (protocol:
/// `permits.lua` and `tell.lua`).
pub const PERMIT_REPORT_SCRIPT: &str =
    concat!(include_str!("lua/permits.lua"), include_str!("lua/tell.lua"));

/// The script that reserves, commits and cancels the hits of a check over several slots or stores
/// (protocol: `hold.lua`).
pub const RESERVATION_SCRIPT: &str = concat!(
    include_str!("lua/head.lua"),
    include_str!("lua/debt.lua"),
    include_str!("lua/step.lua"),
    include_str!("lua/gcra.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/counter.lua"),
    include_str!("lua/hold.lua"),
);

/// A [`CounterStore`] whose counters are in Redis.
#[derive(Debug)]
pub struct RedisStore {
    route: Route,
    check_batcher: Arc<Batcher<codec::PackedCheck>>,
    lease_batcher: Arc<Batcher<lease::PackedMessage>>,
    reservation_client: Arc<ReservationClient>,
    recheck_limiter: RecheckLimiter,
    /// True if all counters of this process are in this Redis, under Sluicegate's own keys.
    is_only_store: bool,
    key_prefix: String,
    call_timeout: Duration,
    connection_counter: Arc<ConnectionCounter>,
}

impl RedisStore {
    /// Returns a store without a connection, and the task that connects it. Every charge fails
    /// unless that task runs.
    pub fn new(options: RedisOptions) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (key_prefix, call_timeout) = (options.key_prefix.clone(), options.call_timeout);
        let (batching, process_id) = (options.batching, options.jitter_seed);
        let connection_counter = Arc::clone(&options.connection_counter);
        let (route, keeper) = Route::new(options);
        let reservation_client =
            ReservationClient::new(route.clone(), &key_prefix, process_id, call_timeout);
        let store = Self {
            check_batcher: Batcher::new(route.clone(), call_timeout, batching),
            lease_batcher: Batcher::new(route.clone(), call_timeout, batching),
            reservation_client: Arc::new(reservation_client),
            recheck_limiter: RecheckLimiter::default(),
            is_only_store: true,
            route,
            key_prefix,
            call_timeout,
            connection_counter,
        };
        (store, keeper)
    }

    /// Marks that a check may also charge another Redis or envoyproxy/ratelimit's keys.
    fn beside_other_stores(self) -> Self {
        Self { is_only_store: false, ..self }
    }

    /// Returns the Cluster slot of each charge's key, or a single 0 outside a Cluster.
    fn slots_of(&self, charges: &Charges) -> SmallVec<[u16; 2]> {
        if !self.route.is_clustered() {
            return SmallVec::from_elem(0, 1);
        }
        let prefix = self.key_prefix.as_bytes();
        let key = |charge: &Charge| codec::counter_key(&charge.key, charge.placement, prefix);
        charges.list.iter().map(|charge| self.route.slot_of(&key(charge))).collect()
    }

    async fn charge_slot(&self, slot: u16, charges: &Charges) -> Outcomes {
        let packed_check = codec::pack(charges, self.key_prefix.as_bytes());
        let results = self.check_batcher.submit(slot, packed_check).await;
        results
            .and_then(|results| decode_outcomes(charges, &results))
            .unwrap_or_else(|cause| all_failed(charges, cause))
    }

    /// Sends the charges of each slot in one call, concurrently; slots decide independently.
    async fn charge_each_slot(&self, charges: &Charges, slots: &[u16]) -> Outcomes {
        let parts = slot_parts::split_by_slot(charges, slots);
        let calls = parts.iter().map(|part| self.charge_slot(part.slot, &part.charges));
        let mut outcomes = all_failed(charges, StoreFailure::InvalidReply);
        for (part, part_outcomes) in parts.iter().zip(join_all(calls).await) {
            part.write_to(part_outcomes, &mut outcomes);
        }
        outcomes
    }

    /// Reserves the charges in all slots. Then commits or cancels all, depending on all results.
    async fn charge_in_two_steps(&self, charges: &Charges, decision: JointDecision) -> Outcomes {
        let (list, step_timeout) = (&charges.list, self.call_timeout / 2);
        let all: SmallVec<[usize; 2]> = (0..list.len()).collect();
        let (reservable, others): (Vec<usize>, Vec<usize>) =
            all.iter().partition(|&&index| can_reserve(list, index));
        let mut reservations = Reservations::default();
        for &index in &reservable {
            reservations.add(&self.reservation_client, index, &list[index]);
        }
        let mut outcomes = all_failed(charges, StoreFailure::TimedOut);
        let others = others.into_iter().map(|index| (index, list[index].clone())).collect();
        let previews = self.charge_some(others, ChargeMode::Preview, step_timeout);
        let (previews, ()) =
            join(previews, reservations.reserve_all(step_timeout, &mut outcomes)).await;
        write_outcomes(previews, &mut outcomes);
        let second_step = decision.second_step(list, &all, &outcomes, &reservable);
        if decision.denies(list, &all, &outcomes) {
            reservations.cancel_all(step_timeout, &mut outcomes).await;
            return outcomes;
        }
        let charged = self.charge_some(second_step, ChargeMode::Each, step_timeout);
        let (charged, ()) =
            join(charged, reservations.commit_all(step_timeout, &mut outcomes)).await;
        write_outcomes(charged, &mut outcomes);
        outcomes
    }

    async fn charge_some(
        &self,
        charges: IndexedCharges,
        mode: ChargeMode,
        call_timeout: Duration,
    ) -> IndexedOutcomes {
        let (indexes, list): (SmallVec<[usize; 2]>, _) = charges.into_iter().unzip();
        let is_preview = matches!(mode, ChargeMode::Preview);
        let charges = Charges { list, mode };
        let slots = self.slots_of(&charges);
        let outcomes = timeout(call_timeout, self.charge_each_slot(&charges, &slots)).await;
        let outcomes = outcomes.unwrap_or_else(|_| all_failed(&charges, StoreFailure::TimedOut));
        let convert = |outcome| if is_preview { as_uncharged(outcome) } else { outcome };
        indexes.into_iter().zip(outcomes.into_iter().map(convert)).collect()
    }
}

impl RedisStore {
    async fn send_lease_message(
        &self,
        slot: u16,
        message: &LeaseMessage,
        packed: lease::PackedMessage,
    ) -> LeaseOutcome {
        let result = self.lease_batcher.submit(slot, packed).await;
        let outcome = result.and_then(|raw| {
            lease::read(message, &raw).map_err(|invalid| log_invalid_reply(&invalid))
        });
        outcome.unwrap_or_else(LeaseOutcome::Failed)
    }

    async fn send_share_reports(
        &self,
        live: Arc<LiveConnection>,
        slot: u16,
        round: &ShareRound,
    ) -> Result<ShareRoundReply, StoreFailure> {
        let call = heartbeat::pack(round, self.key_prefix.as_bytes(), live.run_id(), None);
        let pending = live.run_heartbeat(call.keys, call.args);
        let reply = self.route.call_within(self.call_timeout, slot, pending).await?;
        heartbeat::read(round, &reply).map_err(|invalid| log_invalid_reply(&invalid))
    }

    async fn send_membership_heartbeat(
        &self,
        live: Arc<LiveConnection>,
        heartbeat: &MembershipHeartbeat,
    ) -> Result<MembershipReply, StoreFailure> {
        let key = membership::members_key(&self.key_prefix);
        membership::decode_fleet(
            live.eval_rare_script(
                membership::MEMBERSHIP_SCRIPT,
                key,
                membership::encode_args(heartbeat),
            )
            .await?,
        )
    }
}

impl BatchItem for codec::PackedCheck {
    type Output = CheckResults;

    fn script_micros(&self) -> usize {
        self.micros()
    }

    async fn run_batch(
        live: &LiveConnection,
        checks: Vec<Self>,
    ) -> Result<BatchReplies<Self>, StoreFailure> {
        let mut call = ChargeCall::encode(checks, None);
        StoreCallSent { checks: call.check_count() }.emit();
        let reply = live.run_charge(take(&mut call.keys), take(&mut call.args)).await?;
        let results = call.split_reply(&reply).map_err(|invalid| log_invalid_reply(&invalid))?;
        Ok((results, Vec::new()))
    }
}

impl BatchItem for lease::PackedMessage {
    type Output = lease::RawLeaseResult;

    fn script_micros(&self) -> usize {
        self.micros()
    }

    async fn run_batch(
        live: &LiveConnection,
        mut messages: Vec<Self>,
    ) -> Result<BatchReplies<Self>, StoreFailure> {
        LeaseCallSent { messages: messages.len() }.emit();
        let (keys, args) = lease::encode_call(&messages);
        let reply = live.run_lease(keys, args).await?;
        let results = lease::split_reply(&reply, messages.len());
        let results = results.map_err(|invalid| log_invalid_reply(&invalid))?;
        let unsent = messages.split_off(results.len());
        Ok((results, unsent))
    }
}

fn decode_outcomes(charges: &Charges, results: &CheckResults) -> Result<Outcomes, StoreFailure> {
    let decoded = codec::read(charges, results).map_err(|invalid| log_invalid_reply(&invalid))?;
    Ok(decoded.into_iter().map(to_outcome).collect())
}

const fn to_outcome(result: ChargeResult) -> ChargeOutcome {
    match result {
        ChargeResult::Outcome(outcome) => outcome,
        ChargeResult::Stale(store_now) => ChargeOutcome::Stale(store_now),
        ChargeResult::Unreadable => ChargeOutcome::Failed(StoreFailure::WrongType),
    }
}

/// Charges of a check, each with its index in the check.
type IndexedCharges = SmallVec<[(usize, Charge); 2]>;

/// Outcomes of charges, each with the index of its charge in the check.
type IndexedOutcomes = SmallVec<[(usize, ChargeOutcome); 2]>;

/// Converts the outcome of a query or a reservation. After a lost connection nothing stays charged,
/// so the failure becomes [`StoreFailure::Unreachable`].
const fn as_uncharged(outcome: ChargeOutcome) -> ChargeOutcome {
    match outcome {
        ChargeOutcome::Failed(StoreFailure::ConnectionLost) => {
            ChargeOutcome::Failed(StoreFailure::Unreachable)
        }
        other => other,
    }
}

fn write_outcomes(indexed: IndexedOutcomes, outcomes: &mut Outcomes) {
    for (index, outcome) in indexed {
        outcomes[index] = outcome;
    }
}

fn log_invalid_reply(invalid: &InvalidReply) -> StoreFailure {
    tracing::error!(error = %invalid, "redis returned an invalid script reply");
    StoreFailure::InvalidReply
}

impl CounterStore for RedisStore {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        if charges.list.is_empty() {
            return StoreReply::Ready(Outcomes::new());
        }
        if charge_call::MAX_CHARGES < charges.list.len() {
            return StoreReply::Ready(all_failed(charges, StoreFailure::Overloaded));
        }
        let slots = self.slots_of(charges);
        let first_slot = slots.first().copied().unwrap_or_default();
        let joint_decision = JointDecision::from_mode(charges.mode);
        if slots.iter().all(|slot| *slot == first_slot) {
            let may_be_reserved =
                || charges.list.iter().any(|charge| self.reserved_for(charge).is_some());
            return match (self.route.connection(first_slot), joint_decision) {
                (Err(cause), _) => StoreReply::Ready(all_failed(charges, cause)),
                (Ok(_), Some(joint_decision)) if may_be_reserved() => StoreReply::Pending(
                    Box::pin(self.charge_with_recheck(now, first_slot, charges, joint_decision)),
                ),
                (Ok(_), _) => StoreReply::Pending(Box::pin(self.charge_slot(first_slot, charges))),
            };
        }
        StoreReply::Pending(Box::pin(async move {
            match joint_decision {
                Some(joint_decision) => self.charge_in_two_steps(charges, joint_decision).await,
                None => self.charge_each_slot(charges, &slots).await,
            }
        }))
    }

    fn reserved_for(&self, charge: &Charge) -> Option<Nanos> {
        // All counters of `Placement::WholeDomain` are in one slot.
        let is_one_slot =
            !self.route.is_clustered() || matches!(charge.placement, Placement::WholeDomain(_));
        (!self.is_only_store || !is_one_slot).then(|| self.reservation_client.lifetime())
    }

    fn node_of(&self, _now: Nanos, charge: &Charge) -> u32 {
        if !self.route.is_clustered() {
            return 0;
        }
        let key = codec::counter_key(&charge.key, charge.placement, self.key_prefix.as_bytes());
        self.route.slot_of(&key).into()
    }

    fn exchange_lease_message<'a>(
        &'a self,
        _now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        let packed = lease::pack(message, self.key_prefix.as_bytes(), None);
        let slot = self.route.slot_of(&packed.keys[0]);
        match self.route.connection(slot) {
            Ok(_) => StoreReply::Pending(Box::pin(self.send_lease_message(slot, message, packed))),
            Err(cause) => StoreReply::Ready(LeaseOutcome::Failed(cause)),
        }
    }

    fn batch_calls(&self, begin: &mut dyn FnMut()) {
        self.lease_batcher.send_together(begin);
    }

    fn max_wait(&self) -> Option<Nanos> {
        u64::try_from(self.call_timeout.as_nanos()).ok().map(Nanos)
    }

    fn current_failure(&self) -> Option<StoreFailure> {
        self.route.outage_cause()
    }

    fn stats(&self) -> StoreStats {
        StoreStats { connections: Some(self.connection_counter.counts()), ..StoreStats::default() }
    }
}

impl FleetStore for RedisStore {
    fn update_membership<'a>(
        &'a self,
        heartbeat: &'a MembershipHeartbeat,
    ) -> StoreReply<'a, Result<MembershipReply, StoreFailure>> {
        match self
            .route
            .connection(self.route.slot_of(membership::members_key(&self.key_prefix).as_bytes()))
        {
            Ok(live) => {
                StoreReply::Pending(Box::pin(self.send_membership_heartbeat(live, heartbeat)))
            }
            Err(cause) => StoreReply::Ready(Err(cause)),
        }
    }

    fn report_shares<'a>(
        &'a self,
        _now: Nanos,
        round: &'a ShareRound,
    ) -> StoreReply<'a, Result<ShareRoundReply, StoreFailure>> {
        let slot = self.route.slot_of(&heartbeat::incarnation_key(self.key_prefix.as_bytes()));
        match self.route.connection(slot) {
            Ok(live) => StoreReply::Pending(Box::pin(self.send_share_reports(live, slot, round))),
            Err(cause) => StoreReply::Ready(Err(cause)),
        }
    }

    fn acquire_strict_permit<'a>(
        &'a self,
        _now: Nanos,
        request: &'a StrictPermitRequest,
    ) -> StoreReply<'a, Result<StrictPermitReply, StoreFailure>> {
        self.acquire_permit(request)
    }

    fn report_strict_permits<'a>(
        &'a self,
        _now: Nanos,
        report: &'a PermitReport,
    ) -> StoreReply<'a, PermitReportReply> {
        StoreReply::Pending(Box::pin(self.report_permits(report)))
    }
}

fn all_failed(charges: &Charges, cause: StoreFailure) -> Outcomes {
    charges.list.iter().map(|_| ChargeOutcome::Failed(cause)).collect()
}
