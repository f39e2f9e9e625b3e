//! Selects the sample: all checks of some keys, the same keys at all replicas.

use std::hash::Hasher as _;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use siphasher::sip::SipHasher13;

use crate::config::settings::Percentage;

/// The largest hash of a sampled check.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleBound(u64);

impl SampleBound {
    pub(super) fn new(sample: Percentage) -> Self {
        let whole = 1_000_000;
        let part = u64::from(sample.millionths());
        Self(if part == whole { u64::MAX } else { u64::MAX / whole * part })
    }

    /// Returns the hash of the check's domain and descriptors if the check is in the sample. Its
    /// hits do not matter.
    pub(super) fn sampled_hash(self, request: &RateLimitRequest) -> Option<u64> {
        // The key of the hash is constant, so that all replicas select the same checks.
        let mut hasher = SipHasher13::new();
        let mut write = |text: &str| {
            hasher.write_usize(text.len());
            hasher.write(text.as_bytes());
        };
        write(&request.domain);
        for descriptor in &request.descriptors {
            for entry in &descriptor.entries {
                write(&entry.key);
                write(&entry.value);
            }
            write("");
        }
        let hash = hasher.finish();
        (hash <= self.0).then_some(hash)
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

    use super::*;

    fn request(user: u32, hits: u32) -> RateLimitRequest {
        let entry = Entry { key: "user".to_owned(), value: user.to_string() };
        let descriptor =
            RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
        let (domain, descriptors) = ("d".to_owned(), vec![descriptor]);
        RateLimitRequest { domain, descriptors, hits_addend: hits }
    }

    #[test]
    fn the_sample_has_its_part_of_the_keys_with_all_checks() {
        let bound = SampleBound::new(Percentage::new("10%").unwrap());
        let sampled = |user, hits| bound.sampled_hash(&request(user, hits)).is_some();
        let count = (0..10_000).filter(|user| sampled(*user, 1)).count();
        // Binomial with n = 10,000 and p = 0.1: the standard deviation is 30.
        assert!((850..=1_150).contains(&count), "{count}");
        assert!((0..1_000).all(|user| sampled(user, 1) == sampled(user, 7)));
        let all = SampleBound::new(Percentage::new("100%").unwrap());
        assert!((0..1_000).all(|user| all.sampled_hash(&request(user, 1)).is_some()));
    }
}
