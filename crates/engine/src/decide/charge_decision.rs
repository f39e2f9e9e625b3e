//! The decision of one charge.

use crate::kernel::decision::{Reason, Verdict};
use crate::kernel::units::Nanos;
use crate::store::ChargeOutcome;

/// The outcome of a charge: from the store, a fallback or the local share.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChargeDecision {
    Store(ChargeOutcome),
    /// `on_store_failure: allow` or `deny`.
    Fallback(Verdict, Reason),
    Local(ChargeOutcome),
    /// The charge was not made: its key is banned for this time.
    Banned(Nanos),
    /// The charge was not made: another limit is known to deny the check.
    NotCharged,
}
