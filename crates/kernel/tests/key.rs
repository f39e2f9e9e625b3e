//! Different counters have different keys, for domains and descriptor entries of any length.

use proptest::prelude::*;
use sluicegate_kernel::key::{CounterKey, KeyStrategy};
use sluicegate_kernel::units::{Nanos, Unit};

type Entries = Vec<(String, String)>;

fn unique_key(domain: &str, entries: &Entries, key_strategy: KeyStrategy) -> Vec<u8> {
    let entries = entries.iter().map(|(name, value)| (&**name, &**value));
    CounterKey::unique(domain, entries, key_strategy).as_bytes().to_vec()
}

fn joined(domain: &str, entries: &Entries) -> Vec<u8> {
    let entries = entries.iter().map(|(name, value)| (&**name, &**value));
    let second = KeyStrategy::FixedWindow(Nanos::SECOND);
    CounterKey::compatible(domain, entries, second).as_bytes().to_vec()
}

/// Texts of few characters plus the separator, so that parts of keys often collide; sometimes a
/// long text.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![9 => "[ab_]{0,3}", 1 => "[ab_]{40,70}"]
}

fn entries() -> impl Strategy<Value = Entries> {
    prop::collection::vec((text(), text()), 0..4)
}

fn key_strategies() -> impl Strategy<Value = KeyStrategy> {
    prop::sample::select(vec![
        KeyStrategy::Gcra,
        KeyStrategy::SlidingLog,
        KeyStrategy::FixedWindow(Unit::Day.length()),
        KeyStrategy::FixedWindow(Nanos::SECOND),
        KeyStrategy::Calendar(Unit::Day),
        KeyStrategy::SlidingWindow(Nanos::SECOND),
    ])
}

proptest! {
    #[test]
    fn keys_are_equal_only_for_equal_inputs(
        (a, b) in ((text(), entries(), key_strategies()), (text(), entries(), key_strategies()))
    ) {
        let key = |(domain, entries, counting): &(String, Entries, KeyStrategy)| {
            unique_key(domain, entries, *counting)
        };
        prop_assert_eq!(key(&a) == key(&b), a == b);
        prop_assert_eq!(key(&a), key(&a));
    }

    #[test]
    fn joined_keys_compare_like_their_joined_text(
        (a, b) in ((text(), entries()), (text(), entries()))
    ) {
        let concat = |(domain, entries): &(String, Entries)| {
            let each = entries.iter().map(|(name, value)| format!("{name}_{value}_"));
            format!("{domain}_{}", each.collect::<String>())
        };
        prop_assert_eq!(joined(&a.0, &a.1) == joined(&b.0, &b.1), concat(&a) == concat(&b));
    }

    #[test]
    fn a_key_of_any_length_ends_with_its_last_value(value in "[a-z]{0,130}") {
        let named = vec![("k".to_owned(), value.clone())];
        prop_assert!(unique_key("d", &named, KeyStrategy::Gcra).ends_with(value.as_bytes()));
    }

    #[test]
    fn the_two_key_formats_never_collide(
        (domain, entries, other) in (text(), entries(), entries())
    ) {
        let second = KeyStrategy::FixedWindow(Nanos::SECOND);
        prop_assert_ne!(joined(&domain, &entries), unique_key(&domain, &other, second));
    }
}
