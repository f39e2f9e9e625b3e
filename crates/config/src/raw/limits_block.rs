//! The blocks of a limits file, and the keys that are valid in each.
//!
//! Guarantees:
//! - The list is complete: every valid key belongs to at least one block.
//!
//! Not covered:
//! - The keys inside `metadata` and `up_to`, which are free-form.

use super::field_name::FieldName;
use super::typed::ListItem as _;
use super::{
    Adaptive, AdaptiveRate, Budget, Calendar, Classes, Concurrency, Defaults, Descriptor, Fair,
    File, Penalty, Queue, RateLimit, Reject, Usage, Wait,
};
use crate::diagnostic::Spanned;

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
    /// `adaptive` of a rate limit.
    AdaptiveRate,
    Wait,
    Penalty,
    Concurrency,
    Adaptive,
    Queue,
    Reject,
    Classes,
    Fair,
    Budget,
    Usage,
    /// Any block under a key that has no effect there.
    WithoutEffect,
}

impl LimitsBlock {
    pub(super) const ALL: [Self; 17] = [
        Self::File,
        Self::Defaults,
        Self::Descriptor,
        Self::RateLimit,
        Self::Replaces,
        Self::Calendar,
        Self::AdaptiveRate,
        Self::Wait,
        Self::Penalty,
        Self::Concurrency,
        Self::Adaptive,
        Self::Queue,
        Self::Reject,
        Self::Classes,
        Self::Fair,
        Self::Budget,
        Self::Usage,
    ];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::File => "the top level of the file",
            Self::Defaults => "`defaults`",
            Self::Descriptor => Descriptor::TITLE,
            Self::RateLimit => "`rate_limit`",
            Self::Replaces => Spanned::TITLE,
            Self::Calendar => "`calendar`",
            Self::AdaptiveRate => "`adaptive` of a rate limit",
            Self::Wait => "`wait`",
            Self::Penalty => "`penalty`",
            Self::Concurrency => "`concurrency`",
            Self::Adaptive => "`adaptive`",
            Self::Queue => "`queue`",
            Self::Reject => "`reject`",
            Self::Classes => "`classes`",
            Self::Fair => "`fair`",
            Self::Budget => "`budget`",
            Self::Usage => "`usage`",
            Self::WithoutEffect => "an ignored block",
        }
    }

    pub(super) const fn field_names(self) -> &'static [FieldName] {
        match self {
            Self::File => File::FIELD_NAMES,
            Self::Defaults => Defaults::FIELD_NAMES,
            Self::Descriptor => Descriptor::FIELD_NAMES,
            Self::RateLimit => RateLimit::FIELD_NAMES,
            Self::Replaces => &[FieldName::Name],
            Self::Calendar => Calendar::FIELD_NAMES,
            Self::AdaptiveRate => AdaptiveRate::FIELD_NAMES,
            Self::Wait => Wait::FIELD_NAMES,
            Self::Penalty => Penalty::FIELD_NAMES,
            Self::Concurrency => Concurrency::FIELD_NAMES,
            Self::Adaptive => Adaptive::FIELD_NAMES,
            Self::Queue => Queue::FIELD_NAMES,
            Self::Reject => Reject::FIELD_NAMES,
            Self::Classes => Classes::FIELD_NAMES,
            Self::Fair => Fair::FIELD_NAMES,
            Self::Budget => Budget::FIELD_NAMES,
            Self::Usage => Usage::FIELD_NAMES,
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
            FieldName::Descriptors => Self::Descriptor,
            FieldName::Defaults => Self::Defaults,
            FieldName::RateLimit | FieldName::RateLimits => Self::RateLimit,
            FieldName::Replaces => Self::Replaces,
            FieldName::Calendar => Self::Calendar,
            FieldName::Concurrency => Self::Concurrency,
            FieldName::Adaptive if self == Self::RateLimit => Self::AdaptiveRate,
            FieldName::Adaptive => Self::Adaptive,
            FieldName::Wait => Self::Wait,
            FieldName::Penalty => Self::Penalty,
            // In `wait`, it is a number.
            FieldName::Queue if self != Self::Wait => Self::Queue,
            FieldName::Reject => Self::Reject,
            FieldName::Classes => Self::Classes,
            FieldName::Fair => Self::Fair,
            FieldName::Budget => Self::Budget,
            FieldName::Usage => Self::Usage,
            _ => Self::WithoutEffect,
        }
    }

    pub(super) fn list_blocks_of(word: FieldName) -> String {
        let blocks = Self::ALL.into_iter().filter(|block| block.field_names().contains(&word));
        blocks.map(Self::title).collect::<Vec<_>>().join(" or ")
    }

    pub(super) fn describe_fields(self) -> String {
        let words: Vec<_> = self.field_names().iter().map(|word| word.as_str()).collect();
        format!("fields of {}: {}", self.title(), words.join(", "))
    }
}
