//! The keys of a limits file.
//!
//! Not covered:
//! - The blocks in which a key is valid (see [`super::limits_block`]).
//! - The keys inside `metadata` and `up_to`, which are free-form.

use crate::settings::nearest_within;

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
        Wait = "wait",
        From = "from",
        By = "by",
        Penalty = "penalty",
        After = "after",
        Within = "within",
        For = "for",
        TimeZone = "time_zone",
        StartsOn = "starts_on",
        StartsAt = "starts_at",
        Limit = "limit",
        Adaptive = "adaptive",
        Algorithm = "algorithm",
        OverloadedBy = "overloaded_by",
        PausedBy = "paused_by",
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
        Aggregate = "aggregate",
        Queue = "queue",
        Size = "size",
        Timeout = "timeout",
        MaxDuration = "max_duration",
        Reject = "reject",
        Status = "status",
        RetryAfter = "retry_after",
        Body = "body",
        Classes = "classes",
        UpTo = "up_to",
        Fair = "fair",
        Weight = "weight",
        MaxKeys = "max_keys",
        Budget = "budget",
        Amount = "amount",
        Prepaid = "prepaid",
        Of = "of",
        WarnAt = "warn_at",
        Usage = "usage",
        Estimate = "estimate",
        AtMost = "at_most",
        TimeLimit = "time_limit",
        OnExpiry = "on_expiry",
        Prices = "prices",
        Model = "model",
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
                | Self::MaxKeys
                | Self::After
                | Self::Status
        )
    }

    /// Returns `true` for a key whose value is a list of texts and numbers.
    pub(super) const fn is_list_of_scalars(self) -> bool {
        matches!(self, Self::OverloadedBy | Self::WarnAt)
    }

    /// Returns `true` for a key whose value is a mapping with keys of the user.
    pub(super) const fn has_own_keys(self) -> bool {
        matches!(self, Self::Metadata | Self::UpTo)
    }

    /// Returns `true` for a key whose value is one text, number or boolean.
    pub(super) const fn is_single_value(self) -> bool {
        !matches!(
            self,
            Self::Descriptors
                | Self::Defaults
                | Self::RateLimit
                | Self::RateLimits
                | Self::Metadata
                | Self::Concurrency
                | Self::Replaces
                | Self::Calendar
                | Self::Adaptive
                | Self::OverloadedBy
                | Self::Queue
                | Self::Wait
                | Self::Penalty
                | Self::Reject
                | Self::Classes
                | Self::UpTo
                | Self::Fair
                | Self::Budget
                | Self::WarnAt
                | Self::Usage
        )
    }

    /// Returns `true` for a key whose value is a decimal number.
    pub(super) const fn is_decimal(self) -> bool {
        matches!(self, Self::Tolerance | Self::Decrease | Self::Smoothing | Self::ProbeDepth)
    }

    /// Returns `true` for a key whose values are numbers with units. A later error describes a
    /// number without one.
    pub(super) const fn has_units(self) -> bool {
        matches!(self, Self::Amount | Self::AtMost | Self::Estimate | Self::WarnAt)
    }

    /// Returns the key of `fields` that has these letters, whatever its case and underscores.
    pub(super) fn with_letters(name: &str, fields: &[Self]) -> Option<Self> {
        let letters = |text: &str| {
            let letters = text.chars().take(64).filter(|c| !matches!(c, '_' | '-' | ' ' | '.'));
            letters.flat_map(char::to_lowercase).collect::<String>()
        };
        let wanted = letters(name);
        fields.iter().copied().find(|field| letters(field.as_str()) == wanted)
    }

    /// Returns the key of `fields` that resembles a misspelled one most, or `None` if all differ
    /// too much.
    pub(super) fn nearest(misspelled: &str, fields: &[Self]) -> Option<Self> {
        let tidy = misspelled.trim().to_lowercase().replace('-', "_");
        let most = (tidy.len() / 3).clamp(1, 3);
        let near = nearest_within(&tidy, most, fields.iter().map(|field| field.as_str()))?;
        Self::from_name(near)
    }
}
