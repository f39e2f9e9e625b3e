//! The pages that a replica wants reports for.

use serde::{Deserialize, Serialize};

use crate::rule_counters::RuleKey;

/// The pages of a replica that were read in the last [`super::WATCH_TIME`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Watch {
    /// `true` if the counts of all rules are read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rules: bool,
    /// `true` if the top keys of all rules are read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub top: bool,
    /// `true` if the history of all checks is read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub overview: bool,
    /// The domain and the path of the rule that was read last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleKey>,
}

impl Watch {
    pub(crate) const fn is_empty(&self) -> bool {
        !(self.rules || self.top || self.overview) && self.rule.is_none()
    }
}
