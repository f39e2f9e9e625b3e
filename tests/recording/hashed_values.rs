//! Tests of hashed values: privacy, equal rules, and restored values.

use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;
use sluicegate::config::tables::{Loading, RawRow, TableSpec};
use sluicegate::config::{Config, load};
use sluicegate::kernel::units::{Nanos, Revision};
use sluicegate::recording::hashed_values::{HashedValues, ValueHasher};

use super::OwnedCheck;

const SALT: [u8; 16] = [7; 16];

const LIMITS: &str = "
  - {key: path, value: /pay/*, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: path, value: /a/*/b/*/c, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: path, value: /exact, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 4}}
  - key: tenant
    descriptors:
      - {key: user, value: root, rate_limit: {unit: minute, requests_per_unit: 5}}
      - {key: user, rate_limit: {unit: minute, requests_per_unit: 6}}
";

fn config(descriptors: &str) -> Config {
    let file = format!("domain: d\ndescriptors:{descriptors}");
    load([("limits.yaml", file.as_bytes())], Revision(1), false).unwrap().0
}

fn check(entries: &[(&str, &str)]) -> OwnedCheck {
    let mut check = OwnedCheck::of_entry(Nanos(1), ("", ""), 1);
    check.descriptors[0].0 =
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    check
}

fn hashed(entries: &[(&str, &str)]) -> Vec<String> {
    let check = check(entries);
    let values = ValueHasher::new(SALT).hash_values(&config(LIMITS), &check.check());
    values.unwrap().remove(0)
}

#[test]
fn only_values_that_the_limits_name_stay_clear() {
    let hash = |value| ValueHasher::new(SALT).hash(value);
    assert_eq!(hashed(&[("path", "/exact")]), ["/exact"]);
    assert_eq!(hashed(&[("path", "/pay/123")]), [format!("/pay/{}", hash("/pay/123"))]);
    let nested = format!("/a/{}/b//c", hash("/a/1/b/2/c"));
    assert_eq!(hashed(&[("path", "/a/1/b/2/c")]), [nested]);
    assert_eq!(hashed(&[("path", "/other")]), [hash("/other")]);
    assert_eq!(hashed(&[("tenant", "t"), ("user", "root")]), [hash("t"), "root".into()]);
    assert_eq!(hashed(&[("tenant", "t"), ("user", "ann")]), [hash("t"), hash("ann")]);
    // Without a rule, all values are hashed, also those named elsewhere.
    assert_eq!(hashed(&[("unknown", "root"), ("user", "root")]), [hash("root"), hash("root")]);
}

#[test]
fn a_hashed_address_stays_in_its_network() {
    let limits = "
  - {key: ip, network: 10.0.0.0/8, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: ip, network: 2001:db8::/32, rate_limit: {unit: minute, requests_per_unit: 2}}
";
    let hashed = |value: &str| {
        let check = check(&[("ip", value)]);
        let values = ValueHasher::new(SALT).hash_values(&config(limits), &check.check());
        values.unwrap().remove(0).remove(0)
    };
    let (four, six) = (hashed("10.1.2.3"), hashed("2001:db8:1:2::3"));
    assert!(four.starts_with("10.") && six.starts_with("2001:db8:"), "{four} {six}");
    assert!(four != "10.1.2.3" && four != hashed("10.1.2.4") && four == hashed("::ffff:10.1.2.3"));
    assert!(hashed("192.0.2.7").starts_with('~'));
}

#[test]
fn a_hash_depends_on_the_salt() {
    assert_ne!(ValueHasher::new([1; 16]).hash("ann"), ValueHasher::new([2; 16]).hash("ann"));
}

#[test]
fn a_check_that_would_match_another_rule_is_not_hashed() {
    // The second pattern comes first for a value with the digits of its hash.
    let limits = "
  - {key: k, value: '*~*', rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: k, rate_limit: {unit: minute, requests_per_unit: 2}}
";
    let check = check(&[("k", "ann")]);
    assert_eq!(ValueHasher::new(SALT).hash_values(&config(limits), &check.check()), None);
}

#[test]
fn values_that_other_limits_name_are_restored() {
    let new = config(
        "\n  - {key: path, value: /other, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: path, value: /pay/7, rate_limit: {unit: day, requests_per_unit: 1}}",
    );
    let values = HashedValues::named_by(SALT, [&config(LIMITS), &new]);
    let restored = |value| values.restore(&hashed(&[("path", value)])[0]);
    assert_eq!(restored("/other").as_deref(), Some("/other"));
    // It was recorded as a value of the pattern `/pay/*`.
    assert_eq!(restored("/pay/7").as_deref(), Some("/pay/7"));
    assert_eq!(restored("/pay/8"), None);
    assert_eq!(values.restore("~not a hash, é~"), None);
}

#[test]
fn ids_of_tables_are_restored_and_hidden() {
    let spec = Arc::new(TableSpec::new("customers", [].into(), 10).unwrap());
    let mut loading = Loading::new(spec, None);
    for id in ["ann", "/pay/7", "/exact"] {
        let row = RawRow { id: id.into(), ..RawRow::default() };
        loading.add(Ok(row), &|_, _| Ok(())).unwrap();
    }
    let table = Arc::new(loading.finish().unwrap().0);
    let values = HashedValues::named_by(SALT, [&config(LIMITS).with_tables(Arc::from([table]))]);
    let hash = |value| ValueHasher::new(SALT).hash(value);
    for id in ["ann", "/pay/7"] {
        let recorded = &hashed(&[("path", id)])[0];
        assert_eq!(values.restore(recorded).as_deref(), Some(id));
        assert_eq!(values.hide(id), hash(id));
    }
    // The limits name it, so the recording has it in clear.
    assert_eq!([values.hide("/exact"), values.hide("bob")], ["/exact", "bob"]);
    assert_eq!(values.restore(&hash("bob")), None);
    assert_eq!(values.restore(&hash("ann").to_uppercase()), None);
}

proptest! {
    #[test]
    fn hashed_values_match_the_same_rule_and_stay_distinct(
        values in prop::collection::hash_set("(/pay/|/a/1/b/2/c|/exact|)[a-z~*]{0,3}", 1..20),
    ) {
        let config = config(LIMITS);
        let tree = &config.domains["d"].tree;
        let rule = |value: &str| tree.lookup([("path", value)]).map(|found| found.rule.number);
        let hashes: HashSet<_> = values.iter().map(|value| hashed(&[("path", value)]).remove(0)).collect();
        prop_assert_eq!(hashes.len(), values.len());
        for value in &values {
            prop_assert_eq!(rule(value), rule(&hashed(&[("path", value)])[0]));
        }
    }
}
