//! The keys of a limits file.
//!
//! Not covered:
//! - The blocks in which a key is valid (see [`super::limits_block`]).
//! - The content of `metadata`, which is free-form.

crate::kernel::named_enum! {
    /// A key of a limits file.
    pub(super) enum FieldName {
        Domain = "domain",
        Descriptors = "descriptors",
        Charge = "charge",
        Colocate = "colocate",
        Defaults = "defaults",
        Key = "key",
        Value = "value",
        Network = "network",
        CounterPer = "counter_per",
        RateLimit = "rate_limit",
        RateLimits = "rate_limits",
        ShadowMode = "shadow_mode",
        QuotaMode = "quota_mode",
        DetailedMetric = "detailed_metric",
        ValueToMetric = "value_to_metric",
        ShareThreshold = "share_threshold",
        Metadata = "metadata",
        Concurrency = "concurrency",
        Unit = "unit",
        RequestsPerUnit = "requests_per_unit",
        Unlimited = "unlimited",
        Name = "name",
        Replaces = "replaces",
        Per = "per",
        Strategy = "strategy",
        Burst = "burst",
        Mode = "mode",
        MaxOvershoot = "max_overshoot",
        LeaseHits = "lease_hits",
        OnExcess = "on_excess",
        OnStoreFailure = "on_store_failure",
        Calendar = "calendar",
        TimeZone = "time_zone",
        StartsOn = "starts_on",
        Limit = "limit",
        Adaptive = "adaptive",
        Algorithm = "algorithm",
        OverloadedBy = "overloaded_by",
        Min = "min",
        Max = "max",
        Target = "target",
        Tolerance = "tolerance",
        Increase = "increase",
        Decrease = "decrease",
        Window = "window",
        Smoothing = "smoothing",
        ProbeInterval = "probe_interval",
        ProbeDepth = "probe_depth",
        Fleet = "fleet",
        Aggregate = "aggregate",
        Queue = "queue",
        Size = "size",
        Timeout = "timeout",
        MaxDuration = "max_duration",
        Reject = "reject",
        Status = "status",
        RetryAfter = "retry_after",
        Body = "body",
    }
}

impl FieldName {
    /// Returns the key with this name, in exactly this case.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let has_same_length = |word: &Self| word.as_str().len() == name.len();
        Self::ALL.into_iter().filter(has_same_length).find(|word| word.as_str() == name)
    }

    /// Returns `true` for a key of Sluicegate that envoyproxy/ratelimit does not have. Such a key
    /// in a wrong block is an error. A key of envoyproxy/ratelimit in a wrong block is only
    /// ignored, so that files written for it stay valid.
    pub(super) const fn is_extension(self) -> bool {
        !matches!(
            self,
            Self::Domain
                | Self::Descriptors
                | Self::Key
                | Self::Value
                | Self::RateLimit
                | Self::ShadowMode
                | Self::QuotaMode
                | Self::DetailedMetric
                | Self::ValueToMetric
                | Self::ShareThreshold
                | Self::Metadata
                | Self::Unit
                | Self::RequestsPerUnit
                | Self::Unlimited
                | Self::Name
                | Self::Replaces
        )
    }

    /// Returns `true` for a key whose value is a whole number.
    pub(super) const fn is_count(self) -> bool {
        matches!(
            self,
            Self::RequestsPerUnit
                | Self::Burst
                | Self::LeaseHits
                | Self::Limit
                | Self::Min
                | Self::Max
                | Self::Increase
                | Self::Size
                | Self::Status
        )
    }

    /// Returns `true` for a key whose value is a list of texts and numbers.
    pub(super) fn is_list_of_scalars(self) -> bool {
        self == Self::OverloadedBy
    }

    /// Returns `true` for a key whose value is a decimal number.
    pub(super) const fn is_decimal(self) -> bool {
        matches!(self, Self::Tolerance | Self::Decrease | Self::Smoothing | Self::ProbeDepth)
    }

    /// Returns the key that replaced the old name `name`, if it is `valid` in the block.
    pub(super) fn renamed(name: &str, valid: &[Self]) -> Option<Self> {
        let new = match name {
            "on_backend_failure" => Self::OnStoreFailure,
            "policy" => Self::Algorithm,
            _ => return None,
        };
        valid.contains(&new).then_some(new)
    }

    /// Returns the known key that resembles a misspelled one most. Keys that are `valid` in the
    /// block are preferred.
    pub(super) fn nearest(misspelt: &str, valid: &[Self]) -> Option<Self> {
        let tidy = misspelt.trim().to_lowercase().replace('-', "_");
        let near = |words: &[Self]| {
            let distance = |word: &Self| (edit_distance(&tidy, word.as_str()), *word);
            words.iter().map(distance).min_by_key(|(distance, _)| *distance)
        };
        let most = (tidy.len() / 3).clamp(1, 3);
        [valid, &Self::ALL]
            .into_iter()
            .filter_map(near)
            .find(|(distance, _)| *distance <= most)
            .map(|(_, word)| word)
    }
}

/// Returns the number of insertions, deletions, replacements and swaps of neighbors that turn
/// `from` into `to`. Only the first 64 characters of `from` count.
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=to.len()).collect();
    let mut previous = None;
    for (row, letter) in from.chars().take(64).enumerate() {
        let mut line = vec![row + 1];
        for (at, wanted) in to.iter().enumerate() {
            let change = above[at] + usize::from(letter != *wanted);
            let mut least = change.min(above[at + 1] + 1).min(line[at] + 1);
            if 0 < at && previous == Some(*wanted) && to[at - 1] == letter {
                least = least.min(before[at - 1] + 1);
            }
            line.push(least);
        }
        previous = Some(letter);
        before = std::mem::replace(&mut above, line);
    }
    above.last().copied().unwrap_or_default()
}
