//! Tests of suggested limits.

use std::collections::HashMap;

use proptest::prelude::*;
use sluicegate::config::load;
use sluicegate::kernel::decision::Cost;
use sluicegate::kernel::units::{Nanos, Revision, Unit};
use sluicegate::recording::RecordingHeader;
use sluicegate::recording::percent::Percent;
use sluicegate::replay::suggestion::{Suggestion, SuggestionError, SuggestionOptions, suggest};

use super::{START, denied_by_fixed_window, random_checks};
use crate::recording::{OwnedCheck, header, write};
use crate::support::dice::Dice;

fn options(percentile: &str) -> SuggestionOptions {
    let percentile = Percent::parse(percentile).unwrap();
    SuggestionOptions { percentile, headroom_thousandths: 1_000, unit: Unit::Minute }
}

fn suggested(
    checks: &[OwnedCheck],
    domain: Option<&str>,
    options: SuggestionOptions,
) -> Result<Suggestion, SuggestionError> {
    let bytes = write(&RecordingHeader { started_at: START, ..header() }, checks);
    suggest(|| Ok(&*bytes), domain, options)
}

/// Returns the largest hits in a minute of each value, sorted.
fn largest_uses(checks: &[OwnedCheck]) -> Vec<u64> {
    let (mut windows, mut largest) = (HashMap::<_, u64>::new(), HashMap::<_, u64>::new());
    for one in checks {
        let (entries, Cost::Charge(hits), _) = &one.descriptors[0] else { continue };
        let used = windows.entry((entries, one.time.0 / 60_000_000_000)).or_default();
        *used += hits.0;
        let most = largest.entry(entries).or_default();
        *most = (*most).max(*used);
    }
    let mut uses: Vec<_> = largest.into_values().collect();
    uses.sort_unstable();
    uses
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn the_denied_share_equals_an_independent_count(seed in any::<u64>()) {
        let checks = random_checks(&mut Dice::new(seed), 1_000);
        let suggestion = suggested(&checks, None, options("50%")).unwrap();
        let shape = &suggestion.shapes[&vec!["k".to_owned()]];
        // Half of the four values use at most the second smallest.
        let limit = largest_uses(&checks)[1];
        prop_assert_eq!((shape.values, shape.observed), (4, limit));
        prop_assert_eq!(u64::from(shape.requests), limit);
        let denied = denied_by_fixed_window(&checks, limit).into_iter().filter(|one| *one).count();
        prop_assert_eq!((shape.denied, shape.checks), (denied as u64, 1_000));
    }

    #[test]
    fn the_largest_use_denies_nothing(seed in any::<u64>()) {
        let checks = random_checks(&mut Dice::new(seed), 500);
        let suggestion = suggested(&checks, None, options("100%")).unwrap();
        prop_assert_eq!(suggestion.shapes[&vec!["k".to_owned()]].denied, 0);
    }

    #[test]
    fn suggested_files_are_valid(keys in prop::collection::vec("[a-z0-9 :#'\"-]{1,5}", 1..4)) {
        let mut check = OwnedCheck::of_entry(START, ("k", "v"), 1);
        check.descriptors[0].0 = keys.iter().map(|key| (key.clone(), "v".to_owned())).collect();
        let suggestion = suggested(&[check], None, options("99%")).unwrap();
        let file = suggestion.limits_file();
        let (config, _) = load([("f", file.as_bytes())], Revision(1), false).unwrap();
        let entries = keys.iter().map(|key| (key.as_str(), "any"));
        let found = config.domains["d"].tree.lookup(entries).unwrap();
        prop_assert_eq!(found.rule.limits[0].requests, 1);
    }
}

#[test]
fn headroom_multiplies_the_observed_use_and_rounds_up() {
    let checks: Vec<_> =
        (0..5).map(|n| OwnedCheck::of_entry(START.plus(Nanos(n)), ("k", "v"), 1)).collect();
    let options = SuggestionOptions { headroom_thousandths: 1_500, ..options("99%") };
    let suggestion = suggested(&checks, None, options).unwrap();
    assert_eq!(suggestion.shapes[&vec!["k".to_owned()]].requests, 8);
    let file = suggestion.limits_file();
    assert!(file.contains("requests_per_unit: 8}"), "{file}");
    assert!(file.contains("99% of 1 values use at most 5 per minute; denies 0 of 5"), "{file}");
}

#[test]
fn lists_of_keys_with_a_common_start_share_a_tree() {
    let mut checks = vec![OwnedCheck::of_entry(START, ("tenant", "t"), 1); 2];
    checks[1].descriptors[0].0.push(("user".to_owned(), "ann".to_owned()));
    let suggestion = suggested(&checks, None, options("99%")).unwrap();
    assert_eq!(
        suggestion.limits_file(),
        "domain: d
descriptors:
  - key: tenant
    # 99% of 1 values use at most 1 per minute; denies 0 of 1 checks (0.00 %)
    rate_limit: {unit: minute, requests_per_unit: 1}
    descriptors:
      - key: user
        # 99% of 1 values use at most 1 per minute; denies 0 of 1 checks (0.00 %)
        rate_limit: {unit: minute, requests_per_unit: 1}
"
    );
}

#[test]
fn several_domains_need_a_choice() {
    let mut checks = vec![OwnedCheck::of_entry(START, ("k", "v"), 1); 2];
    checks[1].domain = "other".to_owned();
    let error = suggested(&checks, None, options("99%")).unwrap_err().to_string();
    assert_eq!(error, "set --domain to a recorded domain: d, other");
    let json = suggested(&checks, Some("other"), options("99%")).unwrap().json();
    assert_eq!((&json["domain"], &json["limits"][0]["checks"]), (&"other".into(), &1.into()));
    assert!(matches!(suggested(&[], None, options("99%")), Err(SuggestionError::Empty)));
}
