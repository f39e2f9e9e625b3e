//! A rule for one descriptor of a request.

use std::ops::Deref;
use std::sync::Arc;

use crate::request::OwnedDescriptor;
use crate::rule::KnownRule;

/// A rule for one descriptor of a request.
#[derive(Clone, Debug)]
pub(crate) struct FoundRule {
    rule: Arc<KnownRule>,
    /// The descriptor, if it has long values, which the rule does not keep.
    long: Option<OwnedDescriptor>,
}

impl FoundRule {
    /// `descriptor` is read if it has long values.
    pub(crate) fn new(rule: Arc<KnownRule>, descriptor: &OwnedDescriptor) -> Self {
        let long = Some(descriptor).filter(|descriptor| descriptor.has_long_value());
        Self { rule, long: long.cloned() }
    }

    /// `rule` is for a descriptor without long values.
    pub(crate) const fn without_long_values(rule: Arc<KnownRule>) -> Self {
        Self { rule, long: None }
    }

    /// Returns the descriptor with all its values, for a call about another rule.
    pub(crate) fn descriptor(&self) -> &OwnedDescriptor {
        self.long.as_ref().unwrap_or(&self.rule.usage.descriptor)
    }

    /// Returns this descriptor with another rule.
    pub(crate) fn with_rule(&self, rule: Arc<KnownRule>) -> Self {
        Self { rule, long: self.long.clone() }
    }
}

/// Returns the size of the texts that only the request keeps, in bytes.
pub(crate) fn long_bytes(rules: &[FoundRule]) -> usize {
    let long = rules.iter().filter_map(|rule| rule.long.as_ref());
    long.map(OwnedDescriptor::text_bytes).sum()
}

impl Deref for FoundRule {
    type Target = KnownRule;

    fn deref(&self) -> &KnownRule {
        &self.rule
    }
}
