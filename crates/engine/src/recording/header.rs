//! The first and the last frame of a recording.

use serde::{Deserialize, Serialize};

use super::percent::Percent;
use crate::kernel::units::Nanos;

/// The first frame: how the checks were recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingHeader {
    /// The salt of the hashed values; `None` if all values are clear.
    pub salt: Option<[u8; 16]>,
    /// The share of keys that is recorded. A key is a domain with the entries of one descriptor; a
    /// check has only its sampled descriptors. A reserve and its end are sampled by the first entry
    /// of their first descriptor.
    pub sample: Percent,
    /// The instant of the start, since the Unix epoch.
    pub started_at: Nanos,
    /// The order of the checks in the file.
    pub order: CheckOrder,
    /// The settings that affect how checks are planned.
    pub planning: RecordedPlanning,
}

/// The order of the checks in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckOrder {
    /// The order in which the memory store decided.
    Decisions,
    /// The order of the store's replies. Concurrent checks may have been charged in another order.
    Replies,
    /// The order of the requests in an access log.
    Requests,
}

/// The settings of the recorded replica that affect how checks are planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedPlanning {
    /// `true` if counters are named as in envoyproxy/ratelimit.
    pub has_compatible_keys: bool,
    /// The setting `limits.overrides`.
    pub overrides: RecordedOverrides,
    /// `true` if every limit is in the quota group.
    pub quota_for_all: bool,
}

/// The effect of a limit that a request carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordedOverrides {
    /// The override replaces the configured limit.
    #[default]
    Allow,
    /// The override is ignored.
    Deny,
    /// The smaller limit applies.
    Max,
}

/// The last frame. A recording without it was interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingEnd {
    /// The calls in the recording.
    pub recorded: u64,
    /// The sampled calls that are missing: the queue was full, or the call was too large.
    pub dropped: u64,
}
