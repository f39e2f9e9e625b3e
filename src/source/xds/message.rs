//! The limits on the wire: `proto/rls_conf.proto`.

use envoy_types::pb::google::protobuf::Struct;
use prost::Message;

/// The type of a resource that holds limits.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// One domain.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitConfig {
    /// What errors call it.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What proxies ask for.
    #[prost(string, tag = "2")]
    pub domain: String,
    /// The first level.
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<RateLimitDescriptor>,
}

/// One node of the tree.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitDescriptor {
    /// The entry's key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value; empty for any.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The limit, if there is one.
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<RateLimitPolicy>,
    /// The next level.
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// Counts and never denies.
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    /// Metrics carry what was asked.
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    /// Joins the quota group.
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
    /// Returned to the proxy; `sluicegate` in it is for us.
    #[prost(message, optional, tag = "8")]
    pub metadata: Option<Struct>,
}

/// A limit.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitPolicy {
    /// A [`RateLimitUnit`].
    #[prost(enumeration = "RateLimitUnit", tag = "1")]
    pub unit: i32,
    /// How many per unit.
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    /// Admits everything.
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    /// The rule's name.
    #[prost(string, tag = "4")]
    pub name: String,
    /// What it takes out of the same question.
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<RateLimitReplace>,
}

/// The name of a rule.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitReplace {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// The units, by their numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
#[allow(missing_docs, reason = "the names say it")]
pub enum RateLimitUnit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

impl RateLimitUnit {
    /// The unit as a file of limits writes it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
            Self::Year => "year",
            Self::Week => "week",
        }
    }
}
