//! The list of budgets that requests met.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | only allowed requests count | `met_budgets_are_listed_by_used_share` |
//! | a full generation is dropped at once | `the_last_met_budgets_are_listed` |

use super::*;

fn listed(engine: &Engine, domain: Option<&str>) -> Vec<String> {
    let budgets = block_on(engine.list_budgets(domain)).unwrap();
    let line = |it: &BudgetStatus| {
        let name = CounterKey::describe(it.key.as_bytes());
        format!("{name}: {} of {}", it.view.usage.settled.0 + it.view.held.0, it.total.0)
    };
    budgets.iter().map(line).collect()
}

fn charge(engine: &Engine, entries: &[(&str, &str)], hits: u64) -> bool {
    let check = check_of(vec![descriptor(entries, hits)]);
    let covered = &check_of(Vec::new());
    let start = RequestStart { covered, budgets: BudgetUse::Charge };
    let admitted = engine.admit_request(start, &check, None, PermitLifetime::UntilReleased);
    is_allowed(&block_on(admitted).unwrap())
}

#[test]
fn met_budgets_are_listed_by_used_share() {
    let engine = engine("estimate: max_tokens");
    assert_eq!(listed(&engine, None), [""; 0]);
    assert!(is_allowed(&reserve(&engine, &acme(), "request-1", 300).unwrap()));
    let other = check_of(vec![descriptor(&[("org", "other"), ("model", "m")], 1)]);
    let denied = rejection(reserve(&engine, &other, "request-2", 700));
    assert_eq!(denied.reason, Reason::LargerThanBudget);
    let all = [
        "d_org_acme_model_m: 300 of 600",
        "d_org_acme: 300 of 1000",
        "d_org_other: 0 of 1000",
        "d_org_other_model_m: 0 of 600",
    ];
    assert_eq!(listed(&engine, None), all);
    assert_eq!(listed(&engine, Some("d")), all);
    assert_eq!(listed(&engine, Some("other")), [""; 0]);
    publish(&engine, "", "- {key: org, budget: {amount: 2k tokens, unit: hour}}\n");
    let left = ["d_org_acme: 300 of 2000", "d_org_other: 0 of 2000"];
    assert_eq!(listed(&engine, None), left, "the model has no budget any more");
}

#[test]
fn budgets_of_patterns_networks_and_long_values_are_listed() {
    let descriptors = "\
- {key: org, value: 'a*', share_threshold: true, budget: {amount: 1k tokens, unit: hour}}
- {key: user, budget: {amount: 2k tokens, unit: hour}}
- {key: ip, network: 10.0.0.0/8, counter_per: /24, budget: {amount: 4k tokens, unit: hour}}
";
    let engine = engine_at("estimate: max_tokens", descriptors, false);
    let long = "x".repeat(1_000);
    assert!(charge(&engine, &[("org", "acme")], 5));
    assert!(charge(&engine, &[("user", &long)], 5));
    assert!(charge(&engine, &[("ip", "10.1.2.3")], 5));
    let listed = listed(&engine, None);
    let amounts: Vec<_> = listed.iter().filter_map(|line| line.split(": ").nth(1)).collect();
    assert_eq!(amounts, ["5 of 1000", "5 of 2000", "5 of 4000"], "{listed:?}");
}

#[test]
fn the_last_met_budgets_are_listed() {
    let engine = engine_with(
        Arc::new(MemoryStore::new(10_000, WhenFull::Deny, [0; 16])),
        "estimate: max_tokens",
        "- {key: org, budget: {amount: 1k tokens, unit: hour}}\n",
        false,
    );
    let name = |number: u32| format!("{number:04}");
    for number in 0..2_300 {
        assert!(charge(&engine, &[("org", &name(number))], 1));
    }
    let listed = listed(&engine, None);
    assert!((500..=1_000).contains(&listed.len()), "{}", listed.len());
    for number in 1_800..2_300 {
        let line = format!("d_org_{}: 1 of 1000", name(number));
        assert!(listed.contains(&line), "{line}");
    }
}
