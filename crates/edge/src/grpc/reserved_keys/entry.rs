//! The reserved keys, and the entries that have them.

/// A reserved key. Only the last entry of a descriptor can have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReservedKey {
    Acquire,
    Reserve,
    Release,
    Settle,
    SettleInput,
    SettleCachedInput,
    SettleOutput,
    Owner,
    RttUs,
    Status,
    DurationMs,
}

/// An entry with a reserved key. `hits` is the `hits_addend` of its descriptor, if it has one.
pub(super) struct ReservedEntry {
    pub(super) descriptor: usize,
    pub(super) key: ReservedKey,
    pub(super) value: String,
    pub(super) hits: Option<u64>,
    /// `true` if other entries precede it.
    pub(super) is_covered: bool,
}

impl ReservedKey {
    pub(super) fn parse(key: &str) -> Option<Self> {
        Some(match key.strip_prefix("sluicegate.")? {
            "acquire" => Self::Acquire,
            "reserve" => Self::Reserve,
            "release" => Self::Release,
            "settle" => Self::Settle,
            "settle_input" => Self::SettleInput,
            "settle_cached_input" => Self::SettleCachedInput,
            "settle_output" => Self::SettleOutput,
            "owner" => Self::Owner,
            "rtt_us" => Self::RttUs,
            "status" => Self::Status,
            "duration_ms" => Self::DurationMs,
            _ => return None,
        })
    }

    pub(super) const fn is_start(self) -> bool {
        matches!(self, Self::Acquire | Self::Reserve)
    }

    pub(super) const fn is_settle(self) -> bool {
        matches!(
            self,
            Self::Settle | Self::SettleInput | Self::SettleCachedInput | Self::SettleOutput
        )
    }

    /// Returns `true` if the value of the entry is the request id.
    pub(super) const fn has_id(self) -> bool {
        self.is_start() || self.is_settle() || matches!(self, Self::Release)
    }
}
