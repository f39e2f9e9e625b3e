//! Counter keys are as distinct as descriptors, and the service's rule lookup equals [`naive`].
//!
//! An input has the parts of two keys, separated by a line `=`. Each has a line for the strategy, a
//! line for the domain, then keys and values in turn.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use sluicegate::config::Config;
use sluicegate::config::tree::trace::LookupOutcome;
use sluicegate::engine::DecisionPolicy;
use sluicegate::kernel::decision::{Check, Cost, Descriptor};
use sluicegate::kernel::key::{CounterKey, KeyStrategy};
use sluicegate::kernel::units::{Hits, Nanos, Unit};
use sluicegate_fuzz::naive::{self, DOMAIN, ExpectedMatch, TRICKY};
use sluicegate_fuzz::{Service, load_valid};

static CONFIG: LazyLock<Arc<Config>> =
    LazyLock::new(|| load_valid(&[("tricky.yaml", &naive::yaml())]));

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let (left, right) = text.split_once("\n=\n").unwrap_or((&text, ""));
    let inputs = [KeyParts::parse(left), KeyParts::parse(right)];
    assert_keys_are_as_distinct_as_parts(&inputs);
    let matches = inputs.each_ref().map(|parts| lookup(&parts.entries));
    assert_counters_are_as_distinct_as_matches(&inputs, &matches);
});

/// The parts of one counter's key.
#[derive(PartialEq)]
struct KeyParts<'t> {
    strategy: KeyStrategy,
    domain: &'t str,
    entries: Vec<(&'t str, &'t str)>,
}

impl<'t> KeyParts<'t> {
    fn parse(text: &'t str) -> Self {
        let mut lines = text.split('\n');
        let strategy = parse_strategy(lines.next().unwrap_or_default());
        let domain = lines.next().unwrap_or_default();
        let mut entries = Vec::new();
        while let Some(key) = lines.next() {
            entries.push((key, lines.next().unwrap_or_default()));
        }
        Self { strategy, domain, entries }
    }

    fn unique_key(&self) -> CounterKey {
        CounterKey::unique(self.domain, self.entries.iter().copied(), self.strategy)
    }

    fn compatible_key(&self) -> CounterKey {
        CounterKey::compatible(self.domain, self.entries.iter().copied(), self.strategy)
    }

    /// The key in envoyproxy/ratelimit, without the window.
    fn envoyproxy_text(&self) -> String {
        let entries = self.entries.iter().map(|(key, value)| format!("{key}_{value}_"));
        format!("{}_{}", self.domain, entries.collect::<String>())
    }
}

/// Decodes a strategy. The first byte selects it; the text's length and second byte select the
/// window, which is never zero.
fn parse_strategy(text: &str) -> KeyStrategy {
    let mut bytes = text.bytes();
    let (tag, length) = (bytes.next(), u64::from(bytes.next().unwrap_or_default()));
    let window = Nanos((length << (text.len() % 56)).max(1));
    match tag {
        Some(b'g') => KeyStrategy::Gcra,
        Some(b'l') => KeyStrategy::SlidingLog,
        Some(b's') => KeyStrategy::SlidingWindow(window),
        Some(b'c') => {
            let units = [Unit::Day, Unit::Week, Unit::Month, Unit::Year];
            KeyStrategy::Calendar(units[text.len() % units.len()])
        }
        _ => KeyStrategy::FixedWindow(window),
    }
}

fn assert_keys_are_as_distinct_as_parts([left, right]: &[KeyParts<'_>; 2]) {
    assert_eq!(left.unique_key() == right.unique_key(), left == right);
    let is_same_text =
        left.strategy == right.strategy && left.envoyproxy_text() == right.envoyproxy_text();
    assert_eq!(left.compatible_key() == right.compatible_key(), is_same_text);
    assert_ne!(left.unique_key(), right.compatible_key());
}

/// Finds a rule with the service's tree, traced and untraced, and with the naive lookup. All three
/// must be equal.
fn lookup(entries: &[(&str, &str)]) -> Option<ExpectedMatch> {
    let tree = &CONFIG.domains[DOMAIN].tree;
    let expected = naive::find_rule(TRICKY, entries);
    let traced = match tree.trace_lookup(entries).outcome {
        LookupOutcome::Found(rule_match) => Some(rule_match),
        _ => None,
    };
    for rule_match in [tree.lookup(entries.iter().copied()), traced] {
        let actual = rule_match.map(|rule_match| {
            let mut key_entries: Vec<(String, String)> =
                entries.iter().map(|&(key, value)| (key.into(), value.into())).collect();
            for (position, pattern) in rule_match.shared {
                key_entries[position].1 = pattern.into_owned();
            }
            let limit = rule_match.rule.limits.first().expect("no tricky rule is unlimited");
            ExpectedMatch { requests: limit.requests, key_entries }
        });
        assert_eq!(actual, expected, "{entries:?}");
    }
    expected
}

/// Decides one check with both descriptors. They share a counter if the entries in their keys are
/// equal, and only then.
fn assert_counters_are_as_distinct_as_matches(
    inputs: &[KeyParts<'_>; 2],
    matches: &[Option<ExpectedMatch>; 2],
) {
    let [Some(left), Some(right)] = matches else { return };
    let descriptors = inputs.iter().map(|parts| Descriptor {
        entries: parts.entries.iter().copied().collect(),
        cost: Cost::Charge(Hits(1)),
        limit: None,
    });
    let check = Check { domain: DOMAIN, descriptors: descriptors.collect() };
    let service = Service::new(CONFIG.clone(), DecisionPolicy::default());
    let decision = service.decide(&check).expect("limits are loaded");
    let used_hits = |index: usize, limit: u32| {
        u64::from(limit) - decision.statuses[index].decision.headroom.remaining.0
    };
    assert_eq!(used_hits(0, left.requests), 1);
    let is_same_counter = left.key_entries == right.key_entries;
    assert_eq!(used_hits(1, right.requests), if is_same_counter { 2 } else { 1 });
    assert_eq!(service.key_count(), if is_same_counter { 1 } else { 2 });
}
