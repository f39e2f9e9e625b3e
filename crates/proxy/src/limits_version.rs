//! The version of the limits in force.

use crate::kernel::units::Revision;

/// The bits of the number of the limits in a revision.
const REVISION_BITS: u32 = 40;

/// The limits in force: a session and its number of the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitsVersion {
    pub(crate) session: u64,
    pub(crate) limits: u64,
}

impl LimitsVersion {
    /// Returns `true` if all limits changed after `self`, or the session is another one.
    pub(crate) const fn is_before(self, change: Self) -> bool {
        self.session != change.session || self.limits < change.limits
    }

    /// Returns the version of the limits with this number in the same session.
    pub(crate) const fn with_number(self, limits: u64) -> Self {
        Self { limits, ..self }
    }

    /// Returns a revision that rises with each change of the limits.
    pub(crate) const fn revision(self) -> Revision {
        Revision(self.session.saturating_mul(1 << REVISION_BITS).saturating_add(self.limits))
    }
}
