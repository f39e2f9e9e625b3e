//! Calls to budgets in Redis.
//!
//! Guarantees:
//! - Each call is one script call, sent at most once.
//! - Each call has the timeout of the store (`call_timeout`).
//! - A call whose budgets are in several Cluster slots fails without being sent.
//! - Behind a proxy, a call with more than one budget fails without being sent.

use std::sync::Arc;

use super::codec::budgets::{PackedBudgetCall, pack, read};
use super::connection::LiveConnection;
use super::outcome::log_invalid_reply;
use super::script::LoadedScript;
use super::{RedisStore, StoreFailure};
use crate::StoreReply;
use crate::budgets::{BudgetCall, BudgetReply, BudgetStore};
use crate::kernel::units::Nanos;

impl BudgetStore for RedisStore {
    fn call_budgets<'a>(
        &'a self,
        _now: Nanos,
        call: &'a BudgetCall,
    ) -> StoreReply<'a, Result<BudgetReply, StoreFailure>> {
        let packed = pack(call, self.key_prefix.as_bytes(), None);
        let sent = self.slot_of_call(&packed).and_then(|slot| {
            let live = self.route.connection(slot)?;
            Ok(self.send_budget_call(live, slot, call, packed))
        });
        match sent {
            Ok(reply) => StoreReply::Pending(Box::pin(reply)),
            Err(cause) => StoreReply::Ready(Err(cause)),
        }
    }
}

impl RedisStore {
    /// Returns the slot of all budgets of a call. Fails if one call cannot have them all.
    fn slot_of_call(&self, call: &PackedBudgetCall) -> Result<u16, StoreFailure> {
        let numbers = self.route.group_keys(&call.budget_keys());
        let Some((first, rest)) = numbers.split_first() else { return Err(StoreFailure::Other) };
        if rest.iter().any(|number| number != first) {
            tracing::debug!("the budgets of a check are in several slots: not sent to redis");
            return Err(StoreFailure::Other);
        }
        Ok(*first)
    }

    async fn send_budget_call(
        &self,
        live: Arc<LiveConnection>,
        slot: u16,
        call: &BudgetCall,
        packed: PackedBudgetCall,
    ) -> Result<BudgetReply, StoreFailure> {
        let called = live.run(LoadedScript::Budgets, packed.keys, packed.args);
        let reply = self.route.call_within(self.call_timeout, slot, called).await?;
        read(call, &reply).map_err(|invalid| log_invalid_reply(&invalid))
    }
}
