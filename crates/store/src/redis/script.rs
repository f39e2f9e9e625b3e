//! The Lua scripts that Redis runs.
//!
//! Guarantees:
//! - Each script is atomic.
//!
//! Not covered:
//! - The arguments and replies (see [`super::codec`]).

use std::fmt::Write as _;

use ring::digest::SHA1_FOR_LEGACY_USE_ONLY;

/// The script that charges the hits of checks. Its protocol is documented in `head.lua`.
pub const CHARGE_SCRIPT: &str = concat!(
    include_str!("lua/head.lua"),
    include_str!("lua/plan.lua"),
    include_str!("lua/gcra.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/charge.lua"),
);

/// The script that applies lease messages. Its protocol is documented in `borrow.lua`. It is
/// separate from [`CHARGE_SCRIPT`], so that the most frequent script stays small.
pub const LEASE_SCRIPT: &str = concat!(
    include_str!("lua/head.lua"),
    include_str!("lua/counter_state.lua"),
    include_str!("lua/borrow.lua"),
    include_str!("lua/charge_counter.lua"),
    include_str!("lua/gcra.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/counter.lua"),
    include_str!("lua/lease_table.lua"),
);

/// The script that applies a share round. Its protocol is documented in `heartbeat.lua`.
pub const HEARTBEAT_SCRIPT: &str = include_str!("lua/heartbeat.lua");
/// The script that acquires a permit of a strict concurrency limit.
/// Its protocol is documented in `permits.lua` and `acquire.lua`.
pub const ACQUIRE_SCRIPT: &str =
    concat!(include_str!("lua/permits.lua"), include_str!("lua/acquire.lua"));

/// The script that renews and releases permits of strict concurrency
/// limits. Its protocol is documented in `permits.lua` and `report_permits.lua`.
pub const PERMIT_REPORT_SCRIPT: &str =
    concat!(include_str!("lua/permits.lua"), include_str!("lua/report_permits.lua"));

/// The script that applies calls to budgets. Its protocol is documented in `budgets.lua`.
pub const BUDGET_SCRIPT: &str = include_str!("lua/budgets.lua");

/// Returns the SHA-1 of a script in hexadecimal.
pub(super) fn digest_of(script: &str) -> String {
    let digest = ring::digest::digest(&SHA1_FOR_LEGACY_USE_ONLY, script.as_bytes());
    let mut text = String::with_capacity(2 * digest.as_ref().len());
    for byte in digest.as_ref() {
        let _infallible = write!(text, "{byte:02x}");
    }
    text
}

/// A script that every connection loads at its start, except behind a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadedScript {
    Charge,
    Lease,
    Heartbeat,
    Acquire,
    PermitReport,
    Budgets,
}

impl LoadedScript {
    pub(super) const ALL: [Self; 6] = [
        Self::Charge,
        Self::Lease,
        Self::Heartbeat,
        Self::Acquire,
        Self::PermitReport,
        Self::Budgets,
    ];

    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Charge => CHARGE_SCRIPT,
            Self::Lease => LEASE_SCRIPT,
            Self::Heartbeat => HEARTBEAT_SCRIPT,
            Self::Acquire => ACQUIRE_SCRIPT,
            Self::PermitReport => PERMIT_REPORT_SCRIPT,
            Self::Budgets => BUDGET_SCRIPT,
        }
    }

    /// Returns the SHA-1 of the text in hexadecimal, the name of the script for `EVALSHA`.
    pub(super) fn digest(self) -> String {
        digest_of(self.text())
    }

    /// Returns `true` if the reply is one string of packed doubles, not a list of integers.
    pub(super) const fn has_packed_reply(self) -> bool {
        matches!(self, Self::Charge | Self::Lease | Self::Heartbeat | Self::Budgets)
    }
}
