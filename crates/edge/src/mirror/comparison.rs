//! Compares the replies of two rate limit services to one check.
//!
//! Guarantees:
//! - Two replies are equal if the overall code and the code of each descriptor are equal.
//!
//! Not covered:
//! - Headers, metadata, and remaining hits, which are only shown.

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;

/// The compared parts of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ComparableReply {
    pub(super) overall: Code,
    pub(super) descriptors: Vec<DescriptorReply>,
}

/// The part of a reply for one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DescriptorReply {
    pub(super) code: Code,
    pub(super) remaining: u32,
}

impl DescriptorReply {
    const MISSING: Self = Self { code: Code::Unknown, remaining: 0 };
}

/// The two replies for one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DescriptorPair {
    /// The index of the descriptor in the check.
    pub(super) index: usize,
    pub(super) ours: DescriptorReply,
    pub(super) theirs: DescriptorReply,
}

impl DescriptorPair {
    pub(super) fn differs(&self) -> bool {
        self.ours.code != self.theirs.code
    }
}

impl ComparableReply {
    pub(super) fn new(reply: &RateLimitResponse) -> Self {
        let statuses = reply.statuses.iter();
        let descriptors = statuses.map(|status| DescriptorReply {
            code: status.code(),
            remaining: status.limit_remaining,
        });
        Self { overall: reply.overall_code(), descriptors: descriptors.collect() }
    }

    /// Returns the descriptors that differ. If only the overall codes differ, returns all
    /// descriptors. Returns `None` if the replies are equal.
    pub(super) fn differences(&self, theirs: &Self) -> Option<Vec<DescriptorPair>> {
        let count = self.descriptors.len().max(theirs.descriptors.len());
        let reply = |reply: &Self, index: usize| {
            reply.descriptors.get(index).copied().unwrap_or(DescriptorReply::MISSING)
        };
        let pairs = (0..count).map(|index| DescriptorPair {
            index,
            ours: reply(self, index),
            theirs: reply(theirs, index),
        });
        let different: Vec<_> = pairs.clone().filter(DescriptorPair::differs).collect();
        match (different.is_empty(), self.overall == theirs.overall) {
            (true, true) => None,
            (true, false) => Some(pairs.collect()),
            (false, _) => Some(different),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(overall: Code, codes: &[Code]) -> ComparableReply {
        let descriptors = codes.iter().map(|code| DescriptorReply { code: *code, remaining: 3 });
        ComparableReply { overall, descriptors: descriptors.collect() }
    }

    #[test]
    fn codes_are_compared_and_remaining_hits_are_not() {
        let (ok, over) = (Code::Ok, Code::OverLimit);
        let ours = reply(over, &[ok, over]);
        let mut theirs = ours.clone();
        theirs.descriptors[0].remaining = 9;
        assert_eq!(ours.differences(&theirs), None);
        let indexes = |theirs: &ComparableReply| {
            let pairs = ours.differences(theirs).unwrap();
            pairs.iter().map(|pair| pair.index).collect::<Vec<_>>()
        };
        assert_eq!(indexes(&reply(over, &[ok, ok])), [1]);
        assert_eq!(indexes(&reply(over, &[over, ok])), [0, 1]);
        assert_eq!(indexes(&reply(ok, &[ok, over])), [0, 1], "only the overall code");
        assert_eq!(indexes(&reply(over, &[ok])), [1], "a missing status");
        assert_eq!(indexes(&reply(over, &[ok, over, ok])), [2], "a status too many");
    }
}
