//! The keys of a limits file, and the blocks in which each is valid.
//!
//! Guarantees:
//! - The list is complete: every valid key belongs to at least one block.
//!
//! Not covered:
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
        RateLimit = "rate_limit",
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
        OnStoreFailure = "on_store_failure",
        Calendar = "calendar",
        TimeZone = "time_zone",
        StartsOn = "starts_on",
        Limit = "limit",
        Adaptive = "adaptive",
        Algorithm = "algorithm",
        Min = "min",
        Max = "max",
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

use FieldName as W;

impl FieldName {
    /// Returns the key with this name, in exactly this case.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let has_same_length = |word: &Self| word.as_str().len() == name.len();
        Self::ALL.into_iter().filter(has_same_length).find(|word| word.as_str() == name)
    }

    /// Returns the key that replaced the old name `name`, if it is valid in `block`.
    pub(super) fn renamed(name: &str, block: LimitsBlock) -> Option<Self> {
        let new = match name {
            "on_backend_failure" => W::OnStoreFailure,
            "policy" => W::Algorithm,
            _ => return None,
        };
        block.field_names().contains(&new).then_some(new)
    }

    /// Returns `true` for a key of Sluicegate that envoyproxy/ratelimit does not have. Such a key
    /// in a wrong block is an error. A key of envoyproxy/ratelimit in a wrong block is only
    /// ignored, so that files written for it stay valid.
    pub(super) const fn is_extension(self) -> bool {
        matches!(
            self,
            W::Charge
                | W::Colocate
                | W::Defaults
                | W::Concurrency
                | W::Per
                | W::Strategy
                | W::Burst
                | W::Mode
                | W::MaxOvershoot
                | W::LeaseHits
                | W::OnStoreFailure
                | W::Calendar
                | W::TimeZone
                | W::StartsOn
                | W::Limit
                | W::Adaptive
                | W::Algorithm
                | W::Min
                | W::Max
                | W::Queue
                | W::Size
                | W::Timeout
                | W::MaxDuration
                | W::Reject
                | W::Status
                | W::RetryAfter
                | W::Body
        )
    }

    /// Returns the known key that resembles a misspelled one most. Keys that are valid in `block`
    /// are preferred.
    pub(super) fn nearest(misspelt: &str, block: LimitsBlock) -> Option<Self> {
        let tidy = misspelt.trim().to_lowercase().replace('-', "_");
        let near = |words: &[Self]| {
            let distance = |word: &Self| (edit_distance(&tidy, word.as_str()), *word);
            words.iter().map(distance).min_by_key(|(distance, _)| *distance)
        };
        let most = (tidy.len() / 3).clamp(1, 3);
        [block.field_names(), &Self::ALL]
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

/// A kind of YAML mapping in a limits file, with its own list of valid keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LimitsBlock {
    File,
    Defaults,
    /// One item of the list `descriptors`.
    Descriptor,
    RateLimit,
    /// One item of the list `replaces`.
    Replaces,
    Calendar,
    Concurrency,
    Adaptive,
    Queue,
    Reject,
    /// Any block under a key that has no effect there.
    WithoutEffect,
}

impl LimitsBlock {
    const ALL: [Self; 10] = [
        Self::File,
        Self::Defaults,
        Self::Descriptor,
        Self::RateLimit,
        Self::Replaces,
        Self::Calendar,
        Self::Concurrency,
        Self::Adaptive,
        Self::Queue,
        Self::Reject,
    ];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::File => "the top of the file",
            Self::Defaults => "`defaults`",
            Self::Descriptor => "a descriptor",
            Self::RateLimit => "`rate_limit`",
            Self::Replaces => "an item of `replaces`",
            Self::Calendar => "`calendar`",
            Self::Concurrency => "`concurrency`",
            Self::Adaptive => "`adaptive`",
            Self::Queue => "`queue`",
            Self::Reject => "`reject`",
            Self::WithoutEffect => "a block without effect",
        }
    }

    pub(super) const fn field_names(self) -> &'static [FieldName] {
        match self {
            Self::File => &[W::Domain, W::Descriptors, W::Charge, W::Colocate, W::Defaults],
            Self::Defaults => &[W::Strategy, W::Mode, W::MaxOvershoot, W::OnStoreFailure],
            Self::Descriptor => &[
                W::Key,
                W::Value,
                W::RateLimit,
                W::Descriptors,
                W::ShadowMode,
                W::QuotaMode,
                W::DetailedMetric,
                W::ValueToMetric,
                W::ShareThreshold,
                W::Metadata,
                W::Concurrency,
            ],
            Self::RateLimit => &[
                W::Unit,
                W::RequestsPerUnit,
                W::Unlimited,
                W::Name,
                W::Replaces,
                W::Per,
                W::Strategy,
                W::Burst,
                W::Mode,
                W::MaxOvershoot,
                W::LeaseHits,
                W::OnStoreFailure,
                W::Calendar,
            ],
            Self::Replaces => &[W::Name],
            Self::Calendar => &[W::TimeZone, W::StartsOn],
            Self::Concurrency => &[
                W::Limit,
                W::Adaptive,
                W::Mode,
                W::OnStoreFailure,
                W::Queue,
                W::MaxDuration,
                W::Reject,
            ],
            Self::Adaptive => &[W::Algorithm, W::Min, W::Max],
            Self::Queue => &[W::Size, W::Timeout],
            Self::Reject => &[W::Status, W::RetryAfter, W::Body],
            Self::WithoutEffect => &[],
        }
    }

    /// Returns the kind of block that the value of key `word` is, or `WithoutEffect` if there is
    /// none.
    pub(super) fn child_block(self, word: FieldName) -> Self {
        if !self.field_names().contains(&word) {
            return Self::WithoutEffect;
        }
        match word {
            W::Descriptors => Self::Descriptor,
            W::Defaults => Self::Defaults,
            W::RateLimit => Self::RateLimit,
            W::Replaces => Self::Replaces,
            W::Calendar => Self::Calendar,
            W::Concurrency => Self::Concurrency,
            W::Adaptive => Self::Adaptive,
            W::Queue => Self::Queue,
            W::Reject => Self::Reject,
            _ => Self::WithoutEffect,
        }
    }

    pub(super) fn list_blocks_of(word: FieldName) -> String {
        let blocks = Self::ALL.into_iter().filter(|block| block.field_names().contains(&word));
        blocks.map(Self::title).collect::<Vec<_>>().join(" or ")
    }

    pub(super) fn describe_fields(self) -> String {
        let words: Vec<_> = self.field_names().iter().map(|word| word.as_str()).collect();
        format!("{} has: {}", self.title(), words.join(", "))
    }
}
