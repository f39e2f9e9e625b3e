//! The field `on_excess`.

use super::assert_findings;
use crate::config::limit;

const STRATEGIES: [&str; 4] = ["fixed_window", "gcra", "sliding_window", "sliding_log"];

fn charges_excess(fields: &str) -> bool {
    let limit = limit(&format!("unit: day, requests_per_unit: 9, {fields}"));
    let is_charge = limit.strategy.on_excess().is_charge();
    assert_eq!(limit.to_string().contains(", on excess charge"), is_charge, "{limit}");
    is_charge
}

#[test]
fn excess_is_charged_only_by_limits_that_say_so() {
    for strategy in STRATEGIES {
        assert!(!charges_excess(&format!("strategy: {strategy}")));
        assert!(charges_excess(&format!("strategy: {strategy}, on_excess: charge")));
        assert!(charges_excess(&format!(
            "strategy: {strategy}, on_excess: charge, mode: cached_deny"
        )));
    }
    assert!(!charges_excess("strategy: gcra, on_excess: refuse"));
    let calendar = "calendar: {time_zone: UTC}, on_excess: charge";
    assert!(charges_excess(calendar));
    let limit = limit(&format!("unit: day, requests_per_unit: 9, {calendar}"));
    let now = sluicegate::kernel::units::Nanos::from_secs(1_800_000_000);
    assert!(limit.strategy_at(now).on_excess().is_charge(), "in the windows of each check, too");
}

#[test]
fn defaults_apply_to_limits_without_the_field() {
    let limits = "- {key: a, rate_limit: {unit: day, requests_per_unit: 9}}\n\
                  - {key: b, rate_limit: {unit: day, requests_per_unit: 9, strategy: gcra, \
                  on_excess: refuse}}\n";
    for (defaults, expected) in [("charge", [true, false]), ("refuse", [false, false])] {
        let text = format!("defaults: {{on_excess: {defaults}}}\ndescriptors:\n{limits}");
        let config = load_fields(&text);
        let found = ["a", "b"].map(|key| {
            let met = config.domains["d"].tree.lookup([(key, "v")]).unwrap();
            met.rule.limits[0].strategy.on_excess().is_charge()
        });
        assert_eq!(found, expected, "{defaults}");
    }
}

fn load_fields(fields: &str) -> sluicegate::config::Config {
    let text = format!("domain: d\n{fields}");
    let revision = sluicegate::kernel::units::Revision(1);
    let (config, findings) =
        sluicegate::config::load([("a.yaml", text.as_bytes())], revision, false).unwrap();
    assert!(findings.is_empty(), "{findings:?}");
    config
}

#[test]
fn unknown_or_contradictory_on_excess_is_refused() {
    let with = |fields: &str, expected: &str| {
        assert_findings(&format!("unit: day, requests_per_unit: 600, {fields}"), &[expected]);
    };
    with("on_excess: chage", "E29 `on_excess: chage`");
    with(
        "mode: leased, max_overshoot: 2%, on_excess: charge",
        "E32 `on_excess: charge` cannot be combined with `mode: leased`",
    );
    with(
        "on_excess: refuse",
        "E32 `on_excess: refuse` cannot be combined with `strategy: fixed_window`",
    );
    assert_findings(
        "unlimited: true, on_excess: charge",
        &["`on_excess` cannot be combined with `unlimited: true`"],
    );
}
