//! Encodes a membership heartbeat for [`MEMBERSHIP_SCRIPT`], and decodes the reply.
//!
//! Guarantees:
//! - The functions are pure: no I/O and no clock.
//! - A reply that the script cannot have sent is rejected as a whole.
//!
//! Not covered:
//! - Sending the heartbeat, and the heartbeat interval.

use fred::types::Value;

use super::StoreFailure;
use crate::kernel::units::Nanos;
use crate::store::fleet::{LiveReplica, MembershipHeartbeat, MembershipReply, REPLICA_TIMEOUT};

/// The script that stores a replica's record and returns the live replicas. Its protocol is
/// documented in `membership.lua`.
pub const MEMBERSHIP_SCRIPT: &str = include_str!("lua/membership.lua");

/// The Redis key of the membership. No counter has this key: the text in `{}` of a counter's key is
/// hexadecimal.
#[must_use]
pub fn members_key(prefix: &str) -> String {
    format!("{prefix}sg:{{fleet}}:members")
}

/// Returns ARGV of [`MEMBERSHIP_SCRIPT`].
#[must_use]
pub fn encode_args(beat: &MembershipHeartbeat) -> [String; 3] {
    let record = beat.record.as_deref().unwrap_or_default();
    let timeout_micros = REPLICA_TIMEOUT.0 / Nanos::MICRO.0;
    [beat.node.to_string(), record.to_owned(), timeout_micros.to_string()]
}

/// Decodes the reply of [`MEMBERSHIP_SCRIPT`].
///
/// # Errors
/// Returns [`StoreFailure::InvalidReply`] if the script cannot have sent this reply.
pub fn decode_fleet(reply: Value) -> Result<MembershipReply, StoreFailure> {
    let Value::Array(values) = reply else { return Err(StoreFailure::InvalidReply) };
    let Some((before, members)) = values.split_first() else {
        return Err(StoreFailure::InvalidReply);
    };
    let (members, []) = members.as_chunks::<3>() else { return Err(StoreFailure::InvalidReply) };
    let members = members
        .iter()
        .map(decode_member)
        .collect::<Option<_>>()
        .ok_or(StoreFailure::InvalidReply)?;
    let before = decode_text(before).ok_or(StoreFailure::InvalidReply)?;
    Ok(MembershipReply {
        replicas: members,
        previous_record: Some(before).filter(|record| !record.is_empty()),
    })
}

fn decode_member([node, silent, record]: &[Value; 3]) -> Option<LiveReplica> {
    let Value::Integer(millis) = silent else { return None };
    let silent = Nanos(u64::try_from(*millis).ok()?.checked_mul(Nanos::MILLI.0)?);
    Some(LiveReplica { node: decode_text(node)?, silent_for: silent, record: decode_text(record)? })
}

fn decode_text(value: &Value) -> Option<Box<str>> {
    match value {
        Value::String(text) => Some(Box::from(&**text)),
        Value::Bytes(bytes) => std::str::from_utf8(bytes).ok().map(Box::from),
        _ => None,
    }
}
