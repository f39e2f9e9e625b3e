//! Encodes a membership heartbeat for [`SCRIPT`], and decodes the reply.
//!
//! Guarantees:
//! - Pure.
//! - An impossible reply is rejected as a whole.
//!
//! Not covered:
//! - Sending, and the interval.

use fred::types::Value;

use super::Cause;
use crate::backend::fleet::{Beat, Fleet, Member, SILENT_AT_MOST};
use crate::kernel::units::Nanos;

/// The script. Its protocol is documented in `beat.lua`.
pub const SCRIPT: &str = include_str!("lua/beat.lua");

/// The key of the membership records. No counter has
/// this key, because a counter's tag is hexadecimal.
#[must_use]
pub fn key(prefix: &str) -> String {
    format!("{prefix}sg:{{fleet}}:members")
}

/// ARGV of the script.
#[must_use]
pub fn args(beat: &Beat) -> [String; 3] {
    let record = beat.record.as_deref().unwrap_or_default();
    let patience = SILENT_AT_MOST.0 / Nanos::MICRO.0;
    [beat.node.to_string(), record.to_owned(), patience.to_string()]
}

/// Decodes the reply.
///
/// # Errors
/// Returns [`Cause::NotUnderstood`] if the script cannot have sent this reply.
pub fn fleet(reply: Value) -> Result<Fleet, Cause> {
    let Value::Array(values) = reply else { return Err(Cause::NotUnderstood) };
    let Some((before, members)) = values.split_first() else { return Err(Cause::NotUnderstood) };
    let (members, []) = members.as_chunks::<3>() else { return Err(Cause::NotUnderstood) };
    let members = members.iter().map(member).collect::<Option<_>>().ok_or(Cause::NotUnderstood)?;
    let before = text(before).ok_or(Cause::NotUnderstood)?;
    Ok(Fleet { members, before: Some(before).filter(|record| !record.is_empty()) })
}

fn member([node, silent, record]: &[Value; 3]) -> Option<Member> {
    let Value::Integer(millis) = silent else { return None };
    let silent = Nanos(u64::try_from(*millis).ok()?.checked_mul(Nanos::MILLI.0)?);
    Some(Member { node: text(node)?, silent, record: text(record)? })
}

fn text(value: &Value) -> Option<Box<str>> {
    match value {
        Value::String(text) => Some(Box::from(&**text)),
        Value::Bytes(bytes) => std::str::from_utf8(bytes).ok().map(Box::from),
        _ => None,
    }
}
