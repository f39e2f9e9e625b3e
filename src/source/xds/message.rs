//! Defines the xDS resources of `proto/rls_conf.proto`.

use envoy_types::pb::google::protobuf::Struct;
use prost::Message;

/// The type URL of a resource with limits.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// One domain.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitConfig {
    /// The name of the resource, which errors refer to.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The domain in the checks of proxies.
    #[prost(string, tag = "2")]
    pub domain: String,
    /// The first level of rules.
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<RateLimitDescriptor>,
}

/// One rule.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitDescriptor {
    /// The entry's key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The entry's value. Empty matches any value.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The limit, if any.
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<RateLimitPolicy>,
    /// The next level of rules.
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// Counts hits, but never denies.
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    /// Adds the descriptor's values to metrics.
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    /// Adds the rule to the quota group.
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
    /// The metadata for the proxy. Its key `sluicegate` contains Sluicegate's own fields.
    #[prost(message, optional, tag = "8")]
    pub metadata: Option<Struct>,
}

/// A limit.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitPolicy {
    /// The unit, a [`RateLimitUnit`].
    #[prost(enumeration = "RateLimitUnit", tag = "1")]
    pub unit: i32,
    /// The requests per unit.
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    /// Allows every request.
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    /// The rule's name.
    #[prost(string, tag = "4")]
    pub name: String,
    /// The rules that this one replaces in the same check.
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<RateLimitReplace>,
}

/// A reference to a rule.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitReplace {
    /// The rule's name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// The units with their numbers in the protocol.
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
    /// Returns the unit's name in a configuration file.
    #[must_use]
    pub const fn yaml_name(self) -> &'static str {
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
