//! Starts a fleet in Redis: its coordinator's incarnation, and the gate of each partition of permits.
//!
//! Guarantees:
//! - A reply that the scripts cannot have sent is an error.

use fred::bytes::Bytes;
use fred::types::Value;
use tokio::time::timeout;

use super::audit::audit_key;
use super::codec::heartbeat::incarnation_key;
use super::connection::RedisScript;
use super::membership::MIN_MEMBERSHIP_TIMEOUT;
use super::membership::members_key;
use super::{RedisStore, StoreFailure};
use crate::StoreReply;
use crate::fleet_start::{FleetState, StartFleet, StartMode};

/// The scripts' protocols are documented in their files.
const START_FLEET: &str = include_str!("lua/start_fleet.lua");
const START_PERMITS: &str = include_str!("lua/start_permits.lua");

impl StartFleet for RedisStore {
    fn start_fleet(&self, mode: StartMode) -> StoreReply<'_, Result<FleetState, StoreFailure>> {
        StoreReply::Pending(Box::pin(async move {
            let prefix = self.key_prefix.as_bytes();
            let mut keys = vec![incarnation_key(prefix), members_key(&self.key_prefix).into()];
            if mode == StartMode::Inspect {
                // The caller appends a record to the audit log before it starts the fleet.
                keys.push(audit_key(&self.key_prefix).into());
            }
            let mut state = self.run_start(START_FLEET, keys, mode).await?;
            if mode == StartMode::IfNew && state != FleetState::New {
                return Ok(state);
            }
            for partition in self.partitions() {
                let keys = vec![partition.incarnation_key(prefix)];
                state = state.with_permits(self.run_start(START_PERMITS, keys, mode).await?);
            }
            Ok(state)
        }))
    }
}

impl RedisStore {
    async fn run_start(
        &self,
        script: &str,
        keys: Vec<Vec<u8>>,
        mode: StartMode,
    ) -> Result<FleetState, StoreFailure> {
        let live = self.route.connection(self.route.slot_of(&keys[0]))?;
        let keys = keys.into_iter().map(Bytes::from).collect();
        let mode = match mode {
            StartMode::Inspect => "0",
            StartMode::IfNew => "1",
            StartMode::Forced => "2",
        };
        let args = vec![Bytes::from(live.run_id().to_owned()), Bytes::from_static(mode.as_bytes())];
        let script = RedisScript { text: script, digest: None, accepts_any_value: false };
        let call = live.run_script(script, keys, args);
        let reply = timeout(self.call_timeout.max(MIN_MEMBERSHIP_TIMEOUT), call).await;
        match reply.unwrap_or(Err(StoreFailure::TimedOut))? {
            Value::Integer(0) => Ok(FleetState::New),
            Value::Integer(1) => Ok(FleetState::Settled),
            Value::Integer(2) => Ok(FleetState::Unsettled),
            _ => Err(StoreFailure::InvalidReply),
        }
    }
}
