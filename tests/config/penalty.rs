//! Tests of the block `penalty`: its meaning, and refused values.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | a pace may have a penalty | `a_penalty_without_denials_by_a_counter_is_refused` |

use sluicegate::config::penalty::Penalty;
use sluicegate::kernel::units::Nanos;

use super::{find, findings, limit_findings, load_clean};

const LIMIT: &str = "unit: minute, requests_per_unit: 600";

fn penalty(block: &str) -> Option<Penalty> {
    let text = format!("- key: k\n  rate_limit: {{{LIMIT}{block}}}\n");
    let config = load_clean(&text);
    find(&config, "k=v").unwrap().rule.limits[0].penalty.as_deref().cloned()
}

#[test]
fn fields_become_the_two_counters_of_a_penalty() {
    let seconds = Nanos::from_secs;
    for (block, wanted, shown) in [
        (
            "{after: 100, within: 1m, for: 10m, status: 403}",
            Penalty::new((100, seconds(60)), seconds(600), 403),
            "banned for 600s after 100 denials within 60s with status 403",
        ),
        (
            "{after: 1, within: 1s, for: 30d}",
            Penalty::new((1, seconds(1)), seconds(30 * 86_400), 429),
            "banned for 2592000s after 1 denial within 1s",
        ),
    ] {
        let found = penalty(&format!(", penalty: {block}")).unwrap();
        assert_eq!(found, wanted.unwrap());
        assert_eq!(found.to_string(), shown);
    }
    assert_eq!(penalty(""), None);
}

#[test]
fn values_without_a_meaning_are_refused() {
    for (block, message) in [
        ("{}", "`penalty` needs `after`, `within` and `for`"),
        ("{after: 9, within: 1m}", "`penalty` needs `after`, `within` and `for`"),
        ("{after: 0, within: 1m, for: 1m}", "`after: 0` is out of range"),
        ("{after: 10001, within: 1m, for: 1m}", "`after: 10001` is out of range"),
        ("{after: 9, within: 999ms, for: 1m}", "`within: 999ms` is out of range"),
        ("{after: 9, within: 1m, for: 31d}", "`for: 31d` is out of range"),
        ("{after: 9, within: minute, for: 1m}", "`within: minute` is not a duration"),
        ("{after: 9, within: 1m, for: 1m, status: 200}", "`status: 200` is not an error status"),
        ("{after: 9, within: 1m, for: 1m, until: 5m}", "unknown field `until`"),
    ] {
        let found = limit_findings(&format!("{LIMIT}, penalty: {block}"));
        assert!(found.len() == 1 && found[0].contains(message), "{block}: {found:?}");
    }
}

#[test]
fn a_penalty_without_denials_by_a_counter_is_refused() {
    let penalty = "penalty: {after: 9, within: 1m, for: 1m}";
    for (limit, message) in [
        ("unlimited: true", "`penalty` cannot be combined with `unlimited: true`"),
        (
            "unit: second, requests_per_unit: 9, wait: {at_most: 2s, queue: 9}",
            "`penalty` cannot be combined with `wait`",
        ),
    ] {
        let found = limit_findings(&format!("{limit}, {penalty}"));
        assert!(found.len() == 1 && found[0].contains(message), "{limit}: {found:?}");
    }
    let shadow = format!("- key: k\n  shadow_mode: true\n  rate_limit: {{{LIMIT}, {penalty}}}\n");
    let found = findings(&shadow);
    let message = "`penalty` has no effect with `shadow_mode`";
    assert!(found.len() == 1 && found[0].contains(message), "{found:?}");
}
