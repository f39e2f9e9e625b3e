//! The timeout of one gRPC call.

use tonic::metadata::MetadataMap;

use crate::kernel::units::Nanos;

/// The time for sending the reply, subtracted from the caller's `grpc-timeout`.
const REPLY_MARGIN: Nanos = Nanos(2_000_000);

/// Returns the time for deciding a call: its `grpc-timeout` minus 2 ms for the reply, but at least
/// half of the `grpc-timeout`.
#[must_use]
pub fn caller_timeout(headers: &MetadataMap) -> Option<Nanos> {
    let timeout = parse_timeout(headers.get("grpc-timeout")?.to_str().ok()?)?;
    Some(timeout.since(REPLY_MARGIN).max(Nanos(timeout.0 / 2)))
}

/// Parses a `grpc-timeout`, such as `20m` for 20 ms: at most eight digits and a unit. Source: the
/// specification "gRPC over HTTP/2".
fn parse_timeout(text: &str) -> Option<Nanos> {
    let (value, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit: u64 = match unit {
        "H" => 3_600_000_000_000,
        "M" => 60_000_000_000,
        "S" => 1_000_000_000,
        "m" => 1_000_000,
        "u" => 1_000,
        "n" => 1,
        _ => return None,
    };
    let value: u64 = Some(value).filter(|value| value.len() <= 8)?.parse().ok()?;
    value.checked_mul(unit).map(Nanos)
}
