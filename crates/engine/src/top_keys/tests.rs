//! Recall and memory of the top keys of a rule.

use std::collections::HashMap;

use super::list::TopKeyCollector;
use super::rule_keys::{KeyTable, SETS};
use super::*;
use crate::kernel::top_keys::{KeySet, TopWindow};

const KEYS: usize = 1_000_000;
const CHECKS: usize = 300_000;
const START: Nanos = Nanos::from_secs(36_000);

/// `SplitMix64` (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// The cumulative weights of keys with a Zipf distribution of exponent 1.0.
#[expect(clippy::cast_precision_loss, reason = "a weight of a million keys is exact enough")]
fn zipf_weights() -> Vec<f64> {
    let mut sum = 0.0;
    (1..=KEYS).map(|rank| (sum += 1.0 / rank as f64, sum).1).collect()
}

#[expect(clippy::cast_precision_loss, reason = "53 random bits are enough")]
fn draw(weights: &[f64], random: &mut Random) -> usize {
    let at = (random.next() >> 11) as f64 / (1_u64 << 53) as f64 * weights[KEYS - 1];
    weights.partition_point(|weight| *weight <= at).min(KEYS - 1)
}

fn bytes(keys: &RuleTopKeys) -> usize {
    let tables = [&keys.all, &keys.denied];
    let sets = tables.iter().flat_map(|table| &table.sets);
    sets.map(|set| set.lock().bytes() + size_of::<Mutex<KeySet>>() - size_of::<KeySet>()).sum()
}

/// Returns the share of `truth`'s 20 largest keys that the list of `table` contains.
fn recall(table: &KeyTable, truth: &HashMap<usize, u64>, window: TopWindow, now: Nanos) -> f64 {
    let mut largest: Vec<_> = truth.iter().collect();
    largest.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let mut list = TopKeyCollector::new(20);
    let query = TopKeysQuery { window, domain: None, path: None, max: 20 };
    table.add_to(&mut list, ("d", "d.k"), &query, now);
    let found = list.sorted().rows;
    let is_found = |key: usize| found.iter().any(|row| row.descriptor == text_of(key));
    f64::from(
        u8::try_from(largest.iter().take(20).filter(|(key, _)| is_found(**key)).count()).unwrap(),
    ) / 20.0
}

fn text_of(key: usize) -> Box<str> {
    key_text(&[("api_key", &value_of(key))], DescriptorValues::Shown)
}

/// A value that makes the text as long as it may be.
fn value_of(key: usize) -> String {
    format!("{key:0width$}", width = MAX_TEXT_BYTES - 10)
}

#[test]
fn recall_of_the_top_20_of_a_million_keys() {
    let (top_keys, rule) = (TopKeys::new(DescriptorValues::Shown), RuleTopKeys::new());
    let (weights, mut random) = (zipf_weights(), Random(1));
    let (mut all, mut denied) = (HashMap::new(), HashMap::new());
    let mut counts = HashMap::<usize, u64>::new();
    for _ in 0..CHECKS {
        let key = draw(&weights, &mut random);
        let count = counts.entry(key).or_default();
        *count += 1;
        // A limit of 100: the later hits of a key are denied.
        let is_denied = 100 < *count;
        *all.entry(key).or_default() += 1;
        if is_denied {
            *denied.entry(key).or_default() += 1;
        }
        let (value, hits) = (value_of(key), Hits(1));
        let entries = &[("api_key", &*value)][..];
        top_keys.count_in(&rule, KeyHits { entries, hits, is_denied, now: START });
    }
    for window in TopWindow::ALL {
        let of_all = recall(&rule.all, &all, window, START);
        let of_denied = recall(&rule.denied, &denied, window, START);
        println!("{}: recall {of_all} of all, {of_denied} of denied", window.as_str());
        assert!(0.95 <= of_all.min(of_denied), "{window:?}: {of_all} {of_denied}");
    }
    println!("{} bytes", bytes(&rule));
    assert!(bytes(&rule) <= 1 << 20, "{}", bytes(&rule));
}

#[test]
fn a_full_table_of_long_texts_has_at_most_a_mebibyte() {
    let (top_keys, rule) = (TopKeys::new(DescriptorValues::Shown), RuleTopKeys::new());
    for key in 0..20 * SETS * 16 {
        let (value, hits) = (value_of(key), Hits(1));
        let entries = &[("api_key", &*value)][..];
        top_keys.count_in(&rule, KeyHits { entries, hits, is_denied: true, now: START });
    }
    assert!(bytes(&rule) <= 1 << 20, "{}", bytes(&rule));
}

#[test]
fn an_idle_rule_gives_its_tables_to_another() {
    let top_keys = TopKeys::new(DescriptorValues::Shown);
    let rules: Vec<_> =
        (0..=MAX_RULES).map(|rule| Arc::new(RuleCounter::new("d", &format!("d.{rule}")))).collect();
    let key = |now| KeyHits { entries: &[("k", "v")], hits: Hits(1), is_denied: false, now };
    for rule in &rules {
        top_keys.count(rule, key(START));
    }
    let is_tracked = |rule: usize| rules[rule].top_keys.load().is_some();
    assert!(is_tracked(0) && is_tracked(MAX_RULES - 1) && !is_tracked(MAX_RULES));
    let later = START.plus(Nanos::from_secs(2 * 3_600));
    for rule in &rules[1..MAX_RULES] {
        top_keys.count(rule, key(later));
    }
    top_keys.count(&rules[MAX_RULES], key(later));
    assert!(!is_tracked(0) && is_tracked(1) && is_tracked(MAX_RULES));
    assert_eq!(top_keys.tracked().len(), MAX_RULES);
}
