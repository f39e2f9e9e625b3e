//! The outcome of a recorded check.

use serde::{Deserialize, Serialize};

/// The decision of a recorded check, before global shadow mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckOutcome {
    /// The check was allowed.
    Allow,
    /// The check was denied.
    Deny,
    /// The check got no decision, because the store did not reply.
    Failed,
    /// The decision is unknown: an access log does not contain it.
    Unknown,
}
