//! Formats the domain and the descriptors of a check for the log and the admin page `/recent`.
//!
//! Guarantees:
//! - A key or value has at most [`MAX_BYTES`]; a longer one ends with `…`.
//! - With `telemetry.descriptor_values: hidden`, each value is `*`.
//! - A text has at most [`MAX_SHOWN`] descriptors, each with at most [`MAX_SHOWN`] entries.

mod calls;

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::LimitStatus;
use crate::config::descriptor_text::format_entries;
use crate::config::settings::DescriptorValues;
use crate::config::{Config, Rule};
use crate::kernel::decision::{Check, Cost, Descriptor};
use crate::kernel::units::Hits;
use crate::top_keys::text::hash_text;

/// The largest part of a key or value that is shown, in bytes.
const MAX_BYTES: usize = 64;

/// The largest number of descriptors, and of entries in one descriptor, that are shown.
pub(super) const MAX_SHOWN: usize = 8;

/// The reason why a descriptor of an unknown domain matches no rule.
pub(super) const NO_DOMAIN: &str = "no file has this domain";

/// A check whose descriptors are formatted.
pub(super) struct CheckText<'c, 'q> {
    check: &'c Check<'q>,
    values: DescriptorValues,
}

impl<'c, 'q> CheckText<'c, 'q> {
    pub(super) const fn new(check: &'c Check<'q>, values: DescriptorValues) -> Self {
        Self { check, values }
    }

    /// Formats the descriptors: `path=/pay; user=ann`.
    pub(super) fn descriptors(&self) -> String {
        self.join(|_, descriptor| self.descriptor(descriptor))
    }

    /// Formats each descriptor with its rule and reason: `path=/pay: shop.path, within_limit`.
    /// `statuses` has one status for each descriptor.
    pub(super) fn decided(&self, config: &Config, statuses: &[LimitStatus]) -> String {
        self.join(|index, descriptor| {
            let mut text = self.descriptor(descriptor);
            let outcome = self.outcome(config, descriptor, statuses.get(index));
            let _infallible = write!(text, ": {outcome}");
            text
        })
    }

    fn join(&self, format: impl Fn(usize, &Descriptor<'_>) -> String) -> String {
        let descriptors = &self.check.descriptors;
        let shown = descriptors.iter().take(MAX_SHOWN).enumerate();
        let mut texts: Vec<_> =
            shown.map(|(index, descriptor)| format(index, descriptor)).collect();
        texts.extend(omitted_text(descriptors.len(), "descriptors"));
        texts.join("; ")
    }

    fn descriptor(&self, descriptor: &Descriptor<'_>) -> String {
        let mut text = entries_text(&descriptor.entries, self.values);
        let _infallible = match descriptor.cost {
            Cost::Charge(Hits(1)) => Ok(()),
            Cost::Charge(Hits(hits)) => write!(text, " ({hits} hits)"),
            Cost::Refund(Hits(hits)) => write!(text, " (refund of {hits} hits)"),
        };
        text
    }

    fn outcome(
        &self,
        config: &Config,
        descriptor: &Descriptor<'_>,
        status: Option<&LimitStatus>,
    ) -> String {
        let (domain, entries) = (self.check.domain, &*descriptor.entries);
        let reason = status.map_or("", |status| status.decision.reason.as_str());
        let Some(domain) = config.domains.get(domain) else {
            return NO_DOMAIN.to_owned();
        };
        if let Some(found) = domain.tree.lookup(entries.iter().copied()) {
            let path = path_of(found.rule, status);
            return format!("{path}, {reason}");
        }
        if status.is_some_and(|status| status.decision.limit.is_some()) {
            return format!("limit of the request, {reason}");
        }
        domain.tree.find_miss(entries).map_or_else(String::new, |miss| {
            let entry = entries.get(miss.entry).map(std::slice::from_ref).unwrap_or_default();
            miss.reason.describe(&entries_text(entry, self.values))
        })
    }
}

/// Returns the path of the limit in `status`. In a list, this is the rule's tightest limit.
fn path_of<'r>(rule: &'r Rule, status: Option<&LimitStatus>) -> Cow<'r, str> {
    let name = status.and_then(|status| status.decision.limit.as_ref()?.name.as_ref());
    let limit = rule.limits.iter().find(|limit| limit.name.as_ref() == name);
    limit.map_or(Cow::Borrowed(&rule.path), |limit| rule.path_of(limit))
}

/// Formats the entries of a descriptor: `path=/pay,user=ann`.
pub(super) fn entries_text(entries: &[(&str, &str)], values: DescriptorValues) -> String {
    let shown = short_entries(entries, values);
    let mut text = format_entries(shown.iter().map(|(key, value)| (&**key, &**value)));
    if let Some(omitted) = omitted_text(entries.len(), "entries") {
        text.push(' ');
        text.push_str(&omitted);
    }
    text
}

/// Returns the first entries of a descriptor, with keys and values in their short form.
pub(super) fn short_entries(
    entries: &[(&str, &str)],
    values: DescriptorValues,
) -> Vec<(String, String)> {
    let short =
        |&(key, value): &(&str, &str)| (short_text(key).into_owned(), short_value(value, values));
    entries.iter().take(MAX_SHOWN).map(short).collect()
}

/// Returns a value in its short form.
pub(super) fn short_value(value: &str, values: DescriptorValues) -> String {
    match values {
        DescriptorValues::Shown => short_text(value).into_owned(),
        DescriptorValues::Hashed => hash_text(&[value.as_bytes()]),
        DescriptorValues::Hidden => "*".to_owned(),
    }
}

/// Cuts a text after [`MAX_BYTES`], at the boundary of a character.
pub(super) fn short_text(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_BYTES {
        return text.into();
    }
    let start = (0..=MAX_BYTES).rev().find_map(|end| text.get(..end)).unwrap_or_default();
    format!("{start}…").into()
}

fn omitted_text(count: usize, noun: &str) -> Option<String> {
    let omitted = count.checked_sub(MAX_SHOWN).filter(|omitted| *omitted != 0)?;
    Some(format!("and {omitted} more {noun}"))
}
