//! Sluicegate as a store of counters and of concurrency limits.
//!
//! Guarantees:
//! - The failure of an unsent message has its own causes, so that the message is undone.
//! - A wait for a reply ends after [`MAX_WAIT`], for a report after [`REPORT_WAIT`].

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sluicegate_concurrency::store::FleetStore;
use sluicegate_concurrency::store::fleet::{FleetReply, FleetReport};
use sluicegate_concurrency::store::permits::{StrictPermitReply, StrictPermitRequest};
use sluicegate_lease::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate_lease::store::{
    Charge, ChargeOutcome, Charges, CounterStore, Outcomes, StoreFailure, StoreReply,
};

use crate::call::CallFailure;
use crate::connection::Connection;
use crate::kernel::decision::{Cost, Verdict};
use crate::kernel::key::{CounterKey, ParsedKey};
use crate::kernel::rate::{CounterDecision, Strategy};
use crate::kernel::units::{Hits, Nanos};
use crate::wire::api::{borrow_result, charge_result, lease_message, proxy_message};
use crate::wire::{self, api};

/// The longest wait for a reply. The deadline of a request may be shorter; then the call continues
/// without it.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// The longest wait for the reply to a report about shares and permits. Requests wait for a shorter
/// time.
const REPORT_WAIT: Duration = Duration::from_millis(500);

/// The counters and limits of Sluicegate, behind a connection.
#[derive(Debug)]
pub(crate) struct ServiceStore(Arc<Connection>);

impl ServiceStore {
    pub(crate) const fn new(connection: Arc<Connection>) -> Self {
        Self(connection)
    }

    async fn borrow(&self, message: &LeaseMessage) -> Result<LeaseOutcome, CallFailure> {
        let number = message.borrow.number;
        let counter = counter(&message.key, &message.strategy)?;
        let call = proxy_message::Message::Borrow(wire::borrow_message(counter, &message.borrow));
        let lease_message::Message::Borrow(reply) = self.0.call(call, MAX_WAIT).await? else {
            return Err(CallFailure::InvalidReply);
        };
        match reply.result.ok_or(CallFailure::InvalidReply)? {
            borrow_result::Result::Applied(reply) => wire::borrow_reply(&reply, number)
                .map(LeaseOutcome::Applied)
                .ok_or(CallFailure::InvalidReply),
            borrow_result::Result::Superseded(_) => Ok(LeaseOutcome::Superseded),
            borrow_result::Result::StoreFull(allows) => {
                Ok(LeaseOutcome::StoreFull(verdict(allows)))
            }
            // Nothing was applied, as if the message had not been sent.
            borrow_result::Result::LimitChanged(_) => Err(CallFailure::Overloaded),
            borrow_result::Result::Failure(failure) => {
                Ok(LeaseOutcome::Failed(wire::failure(failure)))
            }
        }
    }

    async fn charge_one(&self, charge: &Charge) -> Result<ChargeOutcome, CallFailure> {
        let (Cost::Charge(Hits(hits)) | Cost::Refund(Hits(hits))) = charge.cost;
        let counter = Some(counter(&charge.key, &charge.strategy)?);
        let call = proxy_message::Message::Charge(api::ChargeMessage { counter, hits });
        let lease_message::Message::Charge(reply) = self.0.call(call, MAX_WAIT).await? else {
            return Err(CallFailure::InvalidReply);
        };
        match reply.result.ok_or(CallFailure::InvalidReply)? {
            charge_result::Result::Decision(decision) => match wire::decision(&decision) {
                Some(CounterDecision::OutsideWindows) | None => Err(CallFailure::InvalidReply),
                Some(decision) => Ok(ChargeOutcome::Decided(decision)),
            },
            charge_result::Result::StoreFull(allows) => {
                Ok(ChargeOutcome::StoreFull(verdict(allows)))
            }
            charge_result::Result::LimitChanged(_) => Err(CallFailure::Overloaded),
            charge_result::Result::Failure(failure) => {
                Ok(ChargeOutcome::Failed(wire::failure(failure)))
            }
        }
    }
}

impl ServiceStore {
    async fn send_report(&self, report: &FleetReport) -> Result<FleetReply, CallFailure> {
        let message = api::FleetReport {
            shares: report.shares.as_ref().map(wire::shares::share_round_message),
            permits: report.permits.as_ref().map(wire::permits::permit_report_message),
        };
        let call = proxy_message::Message::Report(message);
        let lease_message::Message::Report(reply) = self.0.call(call, REPORT_WAIT).await? else {
            return Err(CallFailure::InvalidReply);
        };
        let invalid = CallFailure::InvalidReply.as_store_failure();
        let shares = report.shares.as_ref().map(|round| {
            let reply = reply.shares.as_ref();
            reply.and_then(|reply| wire::shares::share_round_result(reply, round))
        });
        let permits = report.permits.as_ref().map(|report| {
            let replies = reply.permits.as_ref().and_then(|replies| {
                wire::permits::permit_report_result(replies, report.limits.len())
            });
            replies.unwrap_or_else(|| report.failed_reply(invalid))
        });
        let shares = shares.map(|reply| reply.unwrap_or(Err(invalid)));
        Ok(FleetReply { membership: None, shares, permits })
    }

    async fn acquire_permit(
        &self,
        request: &StrictPermitRequest,
    ) -> Result<StrictPermitReply, StoreFailure> {
        let call = proxy_message::Message::Acquire(wire::permits::permit_request_message(request));
        let reply = self.0.call(call, MAX_WAIT).await.map_err(CallFailure::as_store_failure)?;
        let invalid = CallFailure::InvalidReply.as_store_failure();
        let lease_message::Message::Acquire(reply) = reply else { return Err(invalid) };
        wire::permits::permit_result(&reply).unwrap_or(Err(invalid))
    }
}

/// Returns the reply to a report that failed.
fn failed_reply(report: &FleetReport, failure: CallFailure) -> FleetReply {
    let cause = failure.as_store_failure();
    FleetReply {
        membership: None,
        shares: report.shares.as_ref().map(|_| Err(cause)),
        permits: report.permits.as_ref().map(|permits| permits.failed_reply(cause)),
    }
}

impl FleetStore for ServiceStore {
    fn report<'a>(
        &'a self,
        _now: Nanos,
        report: &'a FleetReport,
    ) -> Pin<Box<dyn Future<Output = FleetReply> + Send + 'a>> {
        Box::pin(async move {
            let reply = self.send_report(report).await;
            reply.unwrap_or_else(|failure| failed_reply(report, failure))
        })
    }

    fn acquire_strict_permit<'a>(
        &'a self,
        _now: Nanos,
        request: &'a StrictPermitRequest,
    ) -> StoreReply<'a, Result<StrictPermitReply, StoreFailure>> {
        if !self.0.is_connected() {
            return StoreReply::Ready(Err(CallFailure::NotConnected.as_store_failure()));
        }
        StoreReply::Pending(Box::pin(self.acquire_permit(request)))
    }
}

impl CounterStore for ServiceStore {
    fn charge<'a>(&'a self, _now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        StoreReply::Pending(Box::pin(async move {
            let charges = charges.list.iter().map(|charge| async move {
                let outcome = self.charge_one(charge).await;
                outcome.unwrap_or_else(|cause| ChargeOutcome::Failed(cause.as_store_failure()))
            });
            join_all(charges).await.into()
        }))
    }

    fn exchange_lease_message<'a>(
        &'a self,
        _now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        StoreReply::Pending(Box::pin(async move {
            let outcome = self.borrow(message).await;
            outcome.unwrap_or_else(|cause| LeaseOutcome::Failed(cause.as_store_failure()))
        }))
    }

    fn current_failure(&self) -> Option<StoreFailure> {
        (!self.0.is_connected()).then_some(StoreFailure::Unreachable)
    }

    fn max_wait(&self) -> Option<Nanos> {
        Some(Nanos(u64::try_from(MAX_WAIT.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Returns the counter of a key, as the service names it.
fn counter(key: &CounterKey, strategy: &Strategy) -> Result<api::LeasedCounter, CallFailure> {
    let ParsedKey { domain, entries, limit_name } = key.parse().ok_or(CallFailure::InvalidReply)?;
    Ok(api::LeasedCounter {
        domain: domain.to_owned(),
        entries: wire::entries(entries.into_iter()),
        limit: limit_name.unwrap_or_default().to_owned(),
        strategy: Some(wire::strategy_message(strategy)),
    })
}

const fn verdict(allows: bool) -> Verdict {
    if allows { Verdict::Allow } else { Verdict::Deny }
}
