//! Sluicegate as a store of counters, for the lease manager.
//!
//! Guarantees:
//! - The failure of an unsent message has its own causes, so that the message is undone.
//! - A wait for a reply ends after [`MAX_WAIT`].

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
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

/// The counters of Sluicegate, behind a connection.
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
                Ok(LeaseOutcome::Failed(store_failure(failure)))
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
                Ok(ChargeOutcome::Failed(store_failure(failure)))
            }
        }
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

fn store_failure(failure: api::LeaseFailure) -> StoreFailure {
    match api::lease_failure::Cause::try_from(failure.cause) {
        Ok(api::lease_failure::Cause::TimedOut) => StoreFailure::TimedOut,
        Ok(api::lease_failure::Cause::Unreachable) => StoreFailure::Unreachable,
        Ok(api::lease_failure::Cause::Overloaded) => StoreFailure::Overloaded,
        _ => StoreFailure::Other,
    }
}
