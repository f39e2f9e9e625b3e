//! Defines the protobuf messages of `proto/rls_conf.proto`: the xDS resources with limits.

use envoy_types::pb::google::protobuf::Struct;
use prost::Message;

/// The type URL of a resource with limits.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// One xDS resource: the rules of one domain.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitConfig {
    /// The name of the xDS resource, which error messages contain.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The domain.
    #[prost(string, tag = "2")]
    pub domain: String,
    /// The top-level rules of the domain.
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<RateLimitDescriptor>,
}

/// One rule of the descriptor tree.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitDescriptor {
    /// The key of the descriptor entry that the rule matches.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value of the descriptor entry that the rule matches. An empty value matches any value.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The limit of the rule, if any.
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<RateLimitPolicy>,
    /// The child rules, which match the next descriptor entry.
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// Shadow mode: the rule counts hits, but never denies.
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    /// Adds the descriptor's values to the names of metrics.
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    /// Adds the limit of the rule to the quota group.
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
    /// The metadata for the proxy. Its key `sluicegate` contains Sluicegate's own fields.
    #[prost(message, optional, tag = "8")]
    pub metadata: Option<Struct>,
}

/// The limit of a rule.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitPolicy {
    /// The time unit of the limit, a [`RateLimitUnit`].
    #[prost(enumeration = "RateLimitUnit", tag = "1")]
    pub unit: i32,
    /// The number of requests that are allowed per unit.
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    /// Allows every request, without counting.
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    /// The name of the limit.
    #[prost(string, tag = "4")]
    pub name: String,
    /// The limits that this limit replaces in the same check.
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<RateLimitReplace>,
}

/// A reference to a limit by its name.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitReplace {
    /// The name of the limit.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// The time units of limits, with their enum numbers in protobuf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
#[allow(missing_docs, reason = "the names of time units")]
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
    /// Returns the name of the time unit in a configuration file.
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
