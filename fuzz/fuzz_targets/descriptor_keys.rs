//! Counter names are as distinct as descriptors, and the service's rule lookup equals [`naive`].
//!
//! An input has two sides, separated by a line `=`. A side is a line for the counting, a line for
//! the domain, then keys and values in turn.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use sluicegate::config::Config;
use sluicegate::config::tree::trace::Outcome;
use sluicegate::engine::Policy;
use sluicegate::kernel::decision::{Cost, Descriptor, Question};
use sluicegate::kernel::key::{CounterKey, Counting};
use sluicegate::kernel::units::{Hits, Nanos, Unit};
use sluicegate_fuzz::naive::{self, DOMAIN, Found, TRICKY};
use sluicegate_fuzz::{Service, sound};

static CONFIG: LazyLock<Arc<Config>> = LazyLock::new(|| sound(&[("tricky.yaml", &naive::yaml())]));

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let (left, right) = text.split_once("\n=\n").unwrap_or((&text, ""));
    let sides = [Side::read(left), Side::read(right)];
    keys_are_as_distinct_as_names(&sides);
    let found = sides.each_ref().map(|side| found(&side.entries));
    counters_are_as_distinct_as_found(&sides, &found);
});

/// The parts of one counter's name.
#[derive(PartialEq)]
struct Side<'t> {
    counting: Counting,
    domain: &'t str,
    entries: Vec<(&'t str, &'t str)>,
}

impl<'t> Side<'t> {
    fn read(text: &'t str) -> Self {
        let mut lines = text.split('\n');
        let counting = counting(lines.next().unwrap_or_default());
        let domain = lines.next().unwrap_or_default();
        let mut entries = Vec::new();
        while let Some(key) = lines.next() {
            entries.push((key, lines.next().unwrap_or_default()));
        }
        Self { counting, domain, entries }
    }

    fn injective(&self) -> CounterKey {
        CounterKey::injective(self.domain, self.entries.iter().copied(), self.counting)
    }

    fn joined(&self) -> CounterKey {
        CounterKey::joined(self.domain, self.entries.iter().copied(), self.counting)
    }

    /// The spelling of envoyproxy/ratelimit, without the window.
    fn spelled(&self) -> String {
        let entries = self.entries.iter().map(|(key, value)| format!("{key}_{value}_"));
        format!("{}_{}", self.domain, entries.collect::<String>())
    }
}

/// Decodes a word: its first byte selects the strategy, its length and second byte the window. A
/// window is never zero.
fn counting(word: &str) -> Counting {
    let mut bytes = word.bytes();
    let (how, long) = (bytes.next(), u64::from(bytes.next().unwrap_or_default()));
    let length = Nanos((long << (word.len() % 56)).max(1));
    match how {
        Some(b'g') => Counting::Gcra,
        Some(b'l') => Counting::SlidingLog,
        Some(b's') => Counting::SlidingWindow(length),
        Some(b'c') => {
            let units = [Unit::Day, Unit::Week, Unit::Month, Unit::Year];
            Counting::Calendar(units[word.len() % units.len()])
        }
        _ => Counting::FixedWindow(length),
    }
}

fn keys_are_as_distinct_as_names([left, right]: &[Side<'_>; 2]) {
    assert_eq!(left.injective() == right.injective(), left == right);
    let spelled_alike = left.counting == right.counting && left.spelled() == right.spelled();
    assert_eq!(left.joined() == right.joined(), spelled_alike);
    assert_ne!(left.injective(), right.joined());
}

/// Finds a rule with the service's tree, traced and untraced, and with the naive lookup. All three
/// must be equal.
fn found(entries: &[(&str, &str)]) -> Option<Found> {
    let tree = &CONFIG.domains[DOMAIN].tree;
    let expected = naive::find(TRICKY, entries);
    let traced = match tree.explain(entries).outcome {
        Outcome::Found(found) => Some(found),
        _ => None,
    };
    for matched in [tree.lookup(entries.iter().copied()), traced] {
        let got = matched.map(|found| {
            let mut counted: Vec<(String, String)> =
                entries.iter().map(|&(key, value)| (key.into(), value.into())).collect();
            for (position, pattern) in found.shared {
                counted[position].1 = pattern.into();
            }
            let limit = found.rule.limit.as_ref().expect("none is unlimited");
            Found { requests: limit.requests, counted }
        });
        assert_eq!(got, expected, "{entries:?}");
    }
    expected
}

/// Decides one check with both descriptors. They share a counter if their counted entries are
/// equal, and only then.
fn counters_are_as_distinct_as_found(sides: &[Side<'_>; 2], found: &[Option<Found>; 2]) {
    let [Some(left), Some(right)] = found else { return };
    let descriptors = sides.iter().map(|side| Descriptor {
        entries: side.entries.iter().copied().collect(),
        cost: Cost::Charge(Hits(1)),
        limit: None,
    });
    let question = Question { domain: DOMAIN, descriptors: descriptors.collect() };
    let service = Service::new(CONFIG.clone(), Policy::default());
    let answer = service.decide(&question).expect("limits are loaded");
    let used =
        |at: usize, limit: u32| u64::from(limit) - answer.statuses[at].finding.room.remaining.0;
    assert_eq!(used(0, left.requests), 1);
    let alike = left.counted == right.counted;
    assert_eq!(used(1, right.requests), if alike { 2 } else { 1 });
    assert_eq!(service.keys(), if alike { 1 } else { 2 });
}
