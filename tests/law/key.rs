//! The names of counters: what differs is named differently, whatever its length.

use proptest::prelude::*;
use sluicegate::kernel::key::{CounterKey, Counting};
use sluicegate::kernel::units::{Nanos, Unit};

type Entries = Vec<(String, String)>;

fn injective(domain: &str, entries: &Entries, counting: Counting) -> Vec<u8> {
    let entries = entries.iter().map(|(name, value)| (&**name, &**value));
    CounterKey::injective(domain, entries, counting).as_bytes().to_vec()
}

fn joined(domain: &str, entries: &Entries) -> Vec<u8> {
    let entries = entries.iter().map(|(name, value)| (&**name, &**value));
    let second = Counting::FixedWindow(Nanos::SECOND);
    CounterKey::joined(domain, entries, second).as_bytes().to_vec()
}

/// Few letters and the joint, so that pieces often fall together; now and then a long one.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![9 => "[ab_]{0,3}", 1 => "[ab_]{40,70}"]
}

fn entries() -> impl Strategy<Value = Entries> {
    prop::collection::vec((text(), text()), 0..4)
}

fn counting() -> impl Strategy<Value = Counting> {
    prop::sample::select(vec![
        Counting::Gcra,
        Counting::SlidingLog,
        Counting::FixedWindow(Unit::Day.length()),
        Counting::FixedWindow(Nanos::SECOND),
        Counting::Calendar(Unit::Day),
        Counting::SlidingWindow(Nanos::SECOND),
    ])
}

proptest! {
    #[test]
    fn injective_keys_are_equal_exactly_when_all_they_name_is(
        (a, b) in ((text(), entries(), counting()), (text(), entries(), counting()))
    ) {
        let key = |(domain, entries, counting): &(String, Entries, Counting)| {
            injective(domain, entries, *counting)
        };
        prop_assert_eq!(key(&a) == key(&b), a == b);
        prop_assert_eq!(key(&a), key(&a));
    }

    #[test]
    fn joined_keys_are_equal_exactly_when_the_joined_texts_are(
        (a, b) in ((text(), entries()), (text(), entries()))
    ) {
        let spelt = |(domain, entries): &(String, Entries)| {
            let each = entries.iter().map(|(name, value)| format!("{name}_{value}_"));
            format!("{domain}_{}", each.collect::<String>())
        };
        prop_assert_eq!(joined(&a.0, &a.1) == joined(&b.0, &b.1), spelt(&a) == spelt(&b));
    }

    #[test]
    fn a_key_of_any_length_ends_with_what_was_named_last(value in "[a-z]{0,130}") {
        let named = vec![("k".to_owned(), value.clone())];
        prop_assert!(injective("d", &named, Counting::Gcra).ends_with(value.as_bytes()));
    }

    #[test]
    fn the_two_spellings_never_meet(
        (domain, entries, other) in (text(), entries(), entries())
    ) {
        let second = Counting::FixedWindow(Nanos::SECOND);
        prop_assert_ne!(joined(&domain, &entries), injective(&domain, &other, second));
    }
}
