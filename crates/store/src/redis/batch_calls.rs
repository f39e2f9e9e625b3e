//! The script call of a batch of checks, and that of a batch of lease messages.
//!
//! Guarantees:
//! - Messages that the script did not execute are returned for another call.

use std::mem::take;

use super::batch::{BatchItem, BatchReplies};
use super::charge_call::{ChargeCall, CheckResults};
use super::codec::{self, lease};
use super::connection::LiveConnection;
use super::outcome::log_invalid_reply;
use super::script::LoadedScript;
use crate::StoreFailure;
use crate::telemetry::event::{Event as _, LeaseCallSent, StoreCallSent};

impl BatchItem for codec::PackedCheck {
    type Output = CheckResults;

    fn script_micros(&self) -> usize {
        self.micros()
    }

    async fn run_batch(
        live: &LiveConnection,
        questions: Vec<Self>,
    ) -> Result<BatchReplies<Self>, StoreFailure> {
        let mut call = ChargeCall::encode(questions, None);
        StoreCallSent { checks: call.check_count() }.emit();
        let reply =
            live.run(LoadedScript::Charge, take(&mut call.keys), take(&mut call.args)).await?;
        let shares = call.split_reply(&reply).map_err(|refused| log_invalid_reply(&refused))?;
        Ok((shares, Vec::new()))
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
        let reply = live.run(LoadedScript::Lease, keys, args).await?;
        let results = lease::split_reply(&reply, messages.len());
        let said = results.map_err(|refused| log_invalid_reply(&refused))?;
        let rest = messages.split_off(said.len());
        Ok((said, rest))
    }
}
