//! Encodes a membership heartbeat for [`MEMBERSHIP_SCRIPT`], and decodes the reply.
//!
//! Guarantees:
//! - A reply that the script cannot have sent is rejected as a whole.

use std::time::Duration;

use fred::types::Value;

use super::StoreFailure;
use crate::fleet::{LiveReplica, MembershipHeartbeat, MembershipReply, REPLICA_TIMEOUT};
use crate::kernel::units::Nanos;

/// The script that stores a replica's record and returns the live replicas (protocol: `membership.lua`).
pub const MEMBERSHIP_SCRIPT: &str = include_str!("lua/membership.lua");

/// The shortest timeout of a membership heartbeat. No request waits for it, so it may take longer
/// than `store.timeout`.
pub(super) const MIN_MEMBERSHIP_TIMEOUT: Duration = Duration::from_millis(100);

/// The Redis key of the membership. It is no counter's key: those have hexadecimal text in `{}`.
#[must_use]
pub fn members_key(prefix: &str) -> String {
    format!("{prefix}sg:{{fleet}}:members")
}

/// Returns ARGV of [`MEMBERSHIP_SCRIPT`].
#[must_use]
pub fn encode_args(heartbeat: &MembershipHeartbeat) -> [String; 3] {
    let record = heartbeat.record.as_deref().unwrap_or_default();
    script_args(&heartbeat.node, record, REPLICA_TIMEOUT)
}

/// Returns ARGV of [`MEMBERSHIP_SCRIPT`] for any list of records that expire after `timeout`. An
/// empty `record` removes the record `name`.
pub(super) fn script_args(name: &str, record: &str, timeout: Nanos) -> [String; 3] {
    [name.to_owned(), record.to_owned(), (timeout.0 / Nanos::MICRO.0).to_string()]
}

/// Decodes the reply of [`MEMBERSHIP_SCRIPT`].
///
/// # Errors
/// Fails with [`StoreFailure::InvalidReply`] if the script cannot have sent this reply.
pub fn decode_fleet(reply: Value) -> Result<MembershipReply, StoreFailure> {
    let Value::Array(values) = reply else { return Err(StoreFailure::InvalidReply) };
    let Some((previous, replicas)) = values.split_first() else {
        return Err(StoreFailure::InvalidReply);
    };
    let (replicas, []) = replicas.as_chunks::<3>() else { return Err(StoreFailure::InvalidReply) };
    let replicas = replicas
        .iter()
        .map(decode_replica)
        .collect::<Option<_>>()
        .ok_or(StoreFailure::InvalidReply)?;
    let previous = decode_text(previous).ok_or(StoreFailure::InvalidReply)?;
    Ok(MembershipReply {
        replicas,
        previous_record: Some(previous).filter(|record| !record.is_empty()),
    })
}

fn decode_replica([node, silent_for, record]: &[Value; 3]) -> Option<LiveReplica> {
    let Value::Integer(millis) = silent_for else { return None };
    let silent_for = Nanos(u64::try_from(*millis).ok()?.checked_mul(Nanos::MILLI.0)?);
    Some(LiveReplica { node: decode_text(node)?, silent_for, record: decode_text(record)? })
}

fn decode_text(value: &Value) -> Option<Box<str>> {
    match value {
        Value::String(text) => Some(Box::from(&**text)),
        Value::Bytes(bytes) => std::str::from_utf8(bytes).ok().map(Box::from),
        _ => None,
    }
}
