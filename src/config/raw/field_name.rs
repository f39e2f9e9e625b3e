//! The keys of a limits file, and the blocks in which each is valid.

/// Defines [`FieldName`] from lines `Variant = "key"`.
macro_rules! field_names {
    ($($variant:ident = $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum FieldName {
            $($variant,)*
        }

        impl FieldName {
            /// All keys. The index of a key is its enum discriminant.
            pub(super) const ALL: [Self; [$($name),*].len()] = [$(Self::$variant,)*];

            pub(super) const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

field_names! {
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
    OnBackendFailure = "on_backend_failure",
    Calendar = "calendar",
    TimeZone = "time_zone",
    StartsOn = "starts_on",
    Limit = "limit",
    Adaptive = "adaptive",
    Policy = "policy",
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

use FieldName as Field;

impl FieldName {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let has_same_length = |field: &Self| field.name().len() == name.len();
        Self::ALL.into_iter().filter(has_same_length).find(|field| field.name() == name)
    }

    /// Returns `true` for a key that envoyproxy/ratelimit does not have. In a wrong block, such a
    /// key is an error, and other keys are ignored.
    pub(super) const fn is_extension(self) -> bool {
        !matches!(
            self,
            Field::Domain
                | Field::Descriptors
                | Field::Key
                | Field::Value
                | Field::RateLimit
                | Field::ShadowMode
                | Field::QuotaMode
                | Field::DetailedMetric
                | Field::ValueToMetric
                | Field::ShareThreshold
                | Field::Metadata
                | Field::Unit
                | Field::RequestsPerUnit
                | Field::Unlimited
                | Field::Name
                | Field::Replaces
        )
    }

    /// Returns the most similar key, preferably a key that is valid in `block`.
    pub(super) fn nearest(misspelled: &str, block: LimitsBlock) -> Option<Self> {
        let normalized = misspelled.trim().to_lowercase().replace('-', "_");
        let nearest_of = |fields: &[Self]| {
            let distance = |field: &Self| (edit_distance(&normalized, field.name()), *field);
            fields.iter().map(distance).min_by_key(|(distance, _)| *distance)
        };
        let max_distance = (normalized.len() / 3).clamp(1, 3);
        [block.field_names(), &Self::ALL]
            .into_iter()
            .filter_map(nearest_of)
            .find(|(distance, _)| *distance <= max_distance)
            .map(|(_, field)| field)
    }
}

/// Returns the optimal string alignment distance of `to` and the first 64 characters of `from`.
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row_before_previous: Vec<usize> = Vec::new();
    let mut previous_row: Vec<usize> = (0..=to.len()).collect();
    let mut previous_char = None;
    for (row_index, char) in from.chars().take(64).enumerate() {
        let mut row = vec![row_index + 1];
        for (i, target) in to.iter().enumerate() {
            let replacement = previous_row[i] + usize::from(char != *target);
            let mut distance = replacement.min(previous_row[i + 1] + 1).min(row[i] + 1);
            if 0 < i && previous_char == Some(*target) && to[i - 1] == char {
                distance = distance.min(row_before_previous[i - 1] + 1);
            }
            row.push(distance);
        }
        previous_char = Some(char);
        row_before_previous = std::mem::replace(&mut previous_row, row);
    }
    previous_row.last().copied().unwrap_or_default()
}

/// A kind of YAML mapping in a limits file, with its own valid keys.
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
            Self::File => &[
                Field::Domain,
                Field::Descriptors,
                Field::Charge,
                Field::Colocate,
                Field::Defaults,
            ],
            Self::Defaults => {
                &[Field::Strategy, Field::Mode, Field::MaxOvershoot, Field::OnBackendFailure]
            }
            Self::Descriptor => &[
                Field::Key,
                Field::Value,
                Field::RateLimit,
                Field::Descriptors,
                Field::ShadowMode,
                Field::QuotaMode,
                Field::DetailedMetric,
                Field::ValueToMetric,
                Field::ShareThreshold,
                Field::Metadata,
                Field::Concurrency,
            ],
            Self::RateLimit => &[
                Field::Unit,
                Field::RequestsPerUnit,
                Field::Unlimited,
                Field::Name,
                Field::Replaces,
                Field::Per,
                Field::Strategy,
                Field::Burst,
                Field::Mode,
                Field::MaxOvershoot,
                Field::LeaseHits,
                Field::OnBackendFailure,
                Field::Calendar,
            ],
            Self::Replaces => &[Field::Name],
            Self::Calendar => &[Field::TimeZone, Field::StartsOn],
            Self::Concurrency => &[
                Field::Limit,
                Field::Adaptive,
                Field::Mode,
                Field::OnBackendFailure,
                Field::Queue,
                Field::MaxDuration,
                Field::Reject,
            ],
            Self::Adaptive => &[Field::Policy, Field::Min, Field::Max],
            Self::Queue => &[Field::Size, Field::Timeout],
            Self::Reject => &[Field::Status, Field::RetryAfter, Field::Body],
            Self::WithoutEffect => &[],
        }
    }

    /// Returns the kind of the block under key `field`, or `WithoutEffect` if there is none.
    pub(super) fn child_block(self, field: FieldName) -> Self {
        if !self.field_names().contains(&field) {
            return Self::WithoutEffect;
        }
        match field {
            Field::Descriptors => Self::Descriptor,
            Field::Defaults => Self::Defaults,
            Field::RateLimit => Self::RateLimit,
            Field::Replaces => Self::Replaces,
            Field::Calendar => Self::Calendar,
            Field::Concurrency => Self::Concurrency,
            Field::Adaptive => Self::Adaptive,
            Field::Queue => Self::Queue,
            Field::Reject => Self::Reject,
            _ => Self::WithoutEffect,
        }
    }

    pub(super) fn list_blocks_of(field: FieldName) -> String {
        let blocks = Self::ALL.into_iter().filter(|block| block.field_names().contains(&field));
        blocks.map(Self::title).collect::<Vec<_>>().join(" or ")
    }

    pub(super) fn describe_fields(self) -> String {
        let names: Vec<_> = self.field_names().iter().map(|field| field.name()).collect();
        format!("{} has: {}", self.title(), names.join(", "))
    }
}
