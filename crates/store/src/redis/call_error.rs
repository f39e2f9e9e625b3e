//! The store failure for each error of the client library and of Redis.
//!
//! Guarantees:
//! - [`StoreFailure::Unreachable`] means that the call did not run.

use fred::error::{Error, ErrorKind};

use super::StoreFailure;
use super::client::{describe_error, without_arguments};

/// The error of each pending command if the client library's task stops first. The command may have
/// been sent.
const CLIENT_STOPPED: &str = "channel closed";

/// The client library's error for a command after the connection closed. It is never sent.
const CONNECTION_CLOSED: &str = "Failed to send command to router.";

/// Returns `true` if the user may not run the command, or for an error of no known class.
pub(super) fn is_refused(error: &Error) -> bool {
    matches!(classify_error(error), StoreFailure::NotPermitted | StoreFailure::Other)
}

/// Returns the cause if Redis refused the connection as not permitted, loading or out of memory;
/// otherwise `None`.
pub(super) fn connect_refusal(error: &Error) -> Option<StoreFailure> {
    Some(classify_error(error)).filter(|said| {
        matches!(
            said,
            StoreFailure::NotPermitted | StoreFailure::Loading | StoreFailure::OutOfMemory
        )
    })
}

/// Returns `true` for an error that Redis returns to every write: it is out of memory, cannot
/// persist, or has too few Redis replicas.
pub(super) fn is_write_refusal(error: &Error) -> bool {
    let details = without_arguments(error);
    ["OOM ", "MISCONF ", "NOREPLICAS "].iter().any(|word| details.contains(word))
}

pub(super) fn classify_error(error: &Error) -> StoreFailure {
    tracing::debug!(kind = ?error.kind(), error = %describe_error(error), "redis call failed");
    let contains = |word: &str| without_arguments(error).contains(word);
    match error.kind() {
        ErrorKind::IO => StoreFailure::ConnectionLost,
        ErrorKind::Unknown if error.details() == CLIENT_STOPPED => StoreFailure::ConnectionLost,
        ErrorKind::Unknown if error.details() == CONNECTION_CLOSED => StoreFailure::Unreachable,
        // The client library reports this for commands that it had not sent when the connection
        // closed.
        ErrorKind::Canceled | ErrorKind::Routing => StoreFailure::Unreachable,
        ErrorKind::Timeout => StoreFailure::TimedOut,
        ErrorKind::Backpressure => StoreFailure::Overloaded,
        ErrorKind::Parse | ErrorKind::Protocol | ErrorKind::NotFound => StoreFailure::InvalidReply,
        // The slot moves to a node to which this process is not connected yet.
        _ if contains("MOVED") || contains("ASK ") || contains("TRYAGAIN") => {
            StoreFailure::Unreachable
        }
        _ if contains("READONLY") => StoreFailure::ReadOnly,
        _ if contains("LOADING") || contains("MASTERDOWN") || contains("CLUSTERDOWN") => {
            StoreFailure::Loading
        }
        _ if contains("WRONGTYPE") => StoreFailure::WrongType,
        _ if contains("OOM ") => StoreFailure::OutOfMemory,
        _ if contains("NOAUTH") || contains("NOPERM") || contains("WRONGPASS") => {
            StoreFailure::NotPermitted
        }
        _ => StoreFailure::Other,
    }
}
