//! Tests of the comparison of two configurations.

use proptest::prelude::*;
use serde_json::Value;
use sluicegate::kernel::decision::{Cost, LimitOverride};
use sluicegate::kernel::units::{Hits, Nanos, Unit};
use sluicegate::recording::hashed_values::ValueHasher;
use sluicegate::recording::percent::Percent;
use sluicegate::recording::{CheckOutcome, RecordingHeader};
use sluicegate::replay::comparison::{Agreement, ChangedChecks, Comparison, ReplayLimits, compare};
use sluicegate::replay::report::{FailOver, ReportFormat};

use super::{START, config, denied_by_fixed_window, random_checks};
use crate::recording::{OwnedCheck, header, write};
use crate::support::dice::Dice;

const STRATEGIES: [&str; 5] = [
    "unit: minute, requests_per_unit: 20",
    "unit: minute, requests_per_unit: 20, strategy: gcra, burst: 3",
    "unit: minute, requests_per_unit: 20, strategy: sliding_window",
    "unit: minute, requests_per_unit: 20, strategy: sliding_log",
    "unit: day, requests_per_unit: 20, calendar: {time_zone: Europe/Berlin}",
];

fn rule(limit: &str) -> String {
    format!("  - {{key: k, rate_limit: {{{limit}}}}}\n")
}

fn per_minute(requests: u64) -> String {
    rule(&format!("unit: minute, requests_per_unit: {requests}"))
}

fn replay_recorded(recording: &[u8], old: &str, new: Option<&str>) -> Comparison {
    compare(recording, ReplayLimits { old: config(old), new: new.map(config) }).unwrap()
}

fn replay(checks: &[OwnedCheck], old: &str, new: Option<&str>) -> Comparison {
    replay_recorded(&write(&RecordingHeader { started_at: START, ..header() }, checks), old, new)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn equal_limits_have_no_difference(seed in any::<u64>(), strategy in 0..STRATEGIES.len()) {
        let limits = rule(STRATEGIES[strategy]);
        let checks = random_checks(&mut Dice::new(seed), 1_000);
        let comparison = replay(&checks, &limits, Some(&limits));
        let changes = comparison.new.unwrap();
        prop_assert_eq!((changes.newly_denied, changes.newly_allowed), (0, 0));
        prop_assert_eq!((changes.denied, comparison.checks), (comparison.old_denied, 1_000));
        prop_assert!(changes.rules.is_empty() && changes.keys.is_empty());
    }

    #[test]
    fn changes_equal_an_independent_count(seed in any::<u64>(), old in 1_u64..60, new in 1_u64..60) {
        let checks = random_checks(&mut Dice::new(seed), 1_000);
        let before = denied_by_fixed_window(&checks, old);
        let after = denied_by_fixed_window(&checks, new);
        let count = |one: bool, other: bool| {
            before.iter().zip(&after).filter(|both| *both == (&one, &other)).count() as u64
        };
        let comparison = replay(&checks, &per_minute(old), Some(&per_minute(new)));
        let changes = comparison.new.unwrap();
        prop_assert_eq!(changes.newly_denied, count(false, true));
        prop_assert_eq!(changes.newly_allowed, count(true, false));
        prop_assert_eq!(comparison.old_denied, before.iter().filter(|denied| **denied).count() as u64);
        let by_key = changes.keys.values().map(|one| one.total()).sum::<u64>();
        let by_rule = changes.rules.values().map(|one| one.total()).sum::<u64>();
        prop_assert_eq!([by_key, by_rule], [changes.newly_denied + changes.newly_allowed; 2]);
    }
}

fn spread(value: &str, count: u64) -> Vec<OwnedCheck> {
    let at = |n| START.plus(Nanos(n * 1_000_000));
    (0..count).map(|n| OwnedCheck::of_entry(at(n), ("k", value), 1)).collect()
}

#[test]
fn the_rule_and_the_key_that_change_are_counted() {
    let new = "  - {key: k, value: bob, rate_limit: {unit: minute, requests_per_unit: 4}}\n\
               \x20 - {key: k, rate_limit: {unit: minute, requests_per_unit: 12}}\n";
    let checks = [spread("ann", 20), spread("bob", 10)].concat();
    let changes = replay(&checks, &per_minute(10), Some(new)).new.unwrap();
    let counts = |newly_denied, newly_allowed| ChangedChecks { newly_denied, newly_allowed };
    assert_eq!((changes.newly_denied, changes.newly_allowed, changes.denied), (6, 2, 14));
    assert_eq!(changes.rules["d.k_bob"], counts(6, 0));
    assert_eq!(changes.rules["d.k"], counts(0, 2));
    assert_eq!(changes.keys["d: k=bob"], counts(6, 0));
    assert_eq!(changes.keys["d: k=ann"], counts(0, 2));
}

#[test]
fn peeks_and_refunds_are_replayed_but_not_counted() {
    let mut checks = spread("ann", 6);
    checks[2].descriptors[0].1 = Cost::Refund(Hits(2));
    checks[3].descriptors[0].1 = Cost::Charge(Hits(0));
    // Two hits are counted and refunded, so that the last two checks are allowed.
    let comparison = replay(&checks, &per_minute(2), None);
    assert_eq!((comparison.checks, comparison.old_denied), (4, 0));
}

#[test]
fn a_limit_of_the_request_is_replayed() {
    let mut checks = spread("ann", 3);
    for one in &mut checks {
        one.descriptors[0].2 = Some(LimitOverride { requests: 1, unit: Unit::Minute });
    }
    let changes = replay(&checks, &per_minute(10), Some(&per_minute(5))).new.unwrap();
    assert_eq!((changes.denied, changes.newly_denied), (2, 0));
}

#[test]
fn only_recorded_decisions_count_for_the_agreement() {
    let mut checks = spread("ann", 4);
    checks[0].outcome = CheckOutcome::Allow;
    checks[1].outcome = CheckOutcome::Deny;
    checks[2].outcome = CheckOutcome::Failed;
    let comparison = replay(&checks, &per_minute(1), None);
    assert_eq!(comparison.recorded, Agreement { known: 2, equal: 2 });
    assert_eq!(replay(&checks, &per_minute(9), None).recorded, Agreement { known: 2, equal: 1 });
}

#[test]
fn hashed_values_meet_the_exact_values_of_new_limits() {
    let hasher = ValueHasher::new([9; 16]);
    let mut checks = [spread("ann", 10), spread("bob", 10)].concat();
    for one in &mut checks {
        let value = &mut one.descriptors[0].0[0].1;
        *value = hasher.hash(value);
    }
    let header = RecordingHeader { salt: Some([9; 16]), started_at: START, ..header() };
    let new = format!(
        "  - {{key: k, value: ann, rate_limit: {{unit: minute, requests_per_unit: 3}}}}\n\
         \x20 - {{key: k, value: 'b*', rate_limit: {{unit: minute, requests_per_unit: 3}}}}\n{}",
        per_minute(10)
    );
    let comparison = replay_recorded(&write(&header, &checks), &per_minute(10), Some(&new));
    assert_eq!(comparison.new.unwrap().keys["d: k=ann"].newly_denied, 7);
    assert!(comparison.warnings[0].contains("pattern `k_b*`"), "{:?}", comparison.warnings);
}

#[test]
fn an_interrupted_recording_and_a_sample_are_warned_about() {
    let header = RecordingHeader { sample: Percent::parse("1%").unwrap(), ..header() };
    let mut recording = write(&header, &spread("ann", 3));
    let whole = replay_recorded(&recording, &per_minute(1), None);
    assert_eq!(
        whole.warnings,
        ["sample of 1% of the keys: checks have only their sampled descriptors"]
    );
    // The end frame has a head of 13 bytes, and two small numbers.
    let end = recording.windows(1).rposition(|byte| byte == [3]).unwrap();
    recording.truncate(end);
    let cut = replay_recorded(&recording, &per_minute(1), None);
    assert!(cut.warnings[0].contains("interrupted"), "{:?}", cut.warnings);
}

#[test]
fn the_bound_is_the_share_of_newly_denied_checks() {
    let comparison = replay(&spread("ann", 1_000), &per_minute(1_000), Some(&per_minute(997)));
    let is_exceeded = |text| FailOver(Percent::parse(text).unwrap()).is_exceeded(&comparison);
    assert!(!is_exceeded("0.3%") && is_exceeded("0.2999%"));
}

#[test]
fn reports_have_the_same_numbers_in_all_formats() {
    let comparison = replay(&spread("ann", 100), &per_minute(60), Some(&per_minute(50)));
    let bound = Some(FailOver(Percent::parse("5%").unwrap()));
    let json: Value = serde_json::from_str(&comparison.format(ReportFormat::Json, bound)).unwrap();
    assert_eq!(json["newly_denied"], 10);
    assert_eq!(json["is_above_bound"], true);
    assert_eq!(json["keys"][0]["key"], "d: k=ann");
    assert_eq!(json["rules"][0]["newly_denied"], 10);
    for format in [ReportFormat::Text, ReportFormat::Markdown] {
        let text = comparison.format(format, bound);
        assert!(text.contains("newly denied 10 (10.00 %)"), "{text}");
        assert!(text.contains("above the bound of 5%"), "{text}");
        assert!(text.contains("d: k=ann") && text.contains("d.k"), "{text}");
    }
}

#[test]
fn no_key_can_break_a_report() {
    let value = "a|b`<img src=x>@team\n\u{1b}[2J";
    let comparison = replay(&spread(value, 2), &per_minute(2), Some(&per_minute(1)));
    let markdown = comparison.format(ReportFormat::Markdown, None);
    let row = markdown.lines().find(|line| line.contains("img")).unwrap();
    assert_eq!(row, "| `d: k=a\\|b'<img src=x>@team\u{fffd}\u{fffd}[2J` | 1 | 0 |");
    assert!(!comparison.format(ReportFormat::Text, None).contains('\u{1b}'));
}
