//! The explanation of a descriptor with budgets.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use sluicegate::config::explain::{DescriptorExplanation, explain};
use sluicegate::config::tables::{Table, TableSpec};
use sluicegate::config::{Config, load};
use sluicegate::kernel::units::{Hits, Nanos, Revision};

const LIMITS: &str = "domain: llm
colocate: org
usage: {prices: models}
descriptors:
- key: org
  budget:
    amount: 500 usd
    unit: month
    calendar: {time_zone: Europe/Berlin}
    warn_at: [80%, 100%]
    from: customers.llm_budget
  descriptors:
  - {key: model, value: big-*, share_threshold: true, shadow_mode: true, budget: {prepaid: true, of: tokens}}
  - key: model
    rate_limit: {unit: minute, requests_per_unit: 60}
    budget: {amount: 2M tokens, unit: minute, on_store_failure: allow}
";

fn config() -> Config {
    load([("a.yaml", LIMITS.as_bytes())], Revision(1), false).unwrap().0
}

fn explained(config: &Config, entries: &[(&str, &str)]) -> DescriptorExplanation {
    let mut all = explain(config, "llm", &[entries.to_vec()], Hits(1), Nanos(0)).descriptors;
    all.remove(0)
}

#[test]
fn explain_shows_each_budget_that_a_descriptor_meets() {
    let found = explained(&config(), &[("org", "acme"), ("model", "small")]);
    assert!(found.rule.is_some());
    let org = json!({
        "path": "llm.org",
        "location": "a.yaml:7",
        "text": "500 usd per month from day 1 in Europe/Berlin, warns at 80%, 100%",
        "counter": "llm: org=acme",
        "from_table": "no table `customers` is loaded, so the rule's own number applies",
    });
    let model = json!({
        "path": "llm.org.model",
        "location": "a.yaml:16",
        "text": "2M tokens per minute, on store failure allow",
        "counter": "llm: org=acme,model=small",
    });
    assert_eq!(serde_json::to_value(&found.budgets).unwrap(), json!([org, model]));
}

#[test]
fn explain_shows_a_prepaid_budget_with_its_shared_key() {
    let found = explained(&config(), &[("org", "acme"), ("model", "big-1")]);
    let [_, prepaid] = &found.budgets[..] else { panic!("{found:?}") };
    assert_eq!(prepaid.text, "prepaid, in tokens, shadow");
    assert_eq!(prepaid.counter, "llm: org=acme,model=big-*");
    assert_eq!(found.outcome, "no rate limit: `model_big-*` has only a budget");
}

#[test]
fn descriptor_without_rule_has_only_the_budgets_before() {
    let found = explained(&config(), &[("org", "acme"), ("team", "t")]);
    assert_eq!(found.budgets.len(), 1);
    assert_eq!(found.outcome, "no rate limit: no rule on this level matches `team=t`");
    let other = explained(&config(), &[("user", "u")]);
    assert_eq!(
        (other.budgets.len(), &*other.outcome),
        (0, "no limit: no rule on this level matches `user=u`")
    );
}

/// A table has whole units of the currency.
#[test]
fn explain_shows_the_amount_of_a_table() {
    let spec = TableSpec::new("customers", BTreeMap::new(), 50).unwrap();
    let rows = r#"{"id": "acme", "llm_budget": 900}
{"id": "beta", "llm_budget": "unlimited"}
{"id": "gamma", "llm_budget": "blocked"}
"#;
    let (table, _) =
        Table::empty(Arc::new(spec)).with_json_changes(rows, &[], &|_, _| Ok(())).unwrap();
    let config = config().with_tables(Arc::from([Arc::new(table)]));
    let shown = |id: &str| {
        let found = explained(&config, &[("org", id)]);
        (found.budgets[0].text.clone(), found.budgets[0].from_table.clone().unwrap())
    };
    let rest = "per month from day 1 in Europe/Berlin, warns at 80%, 100%";
    let row =
        |id: &str, amount: &str| format!("table `customers`, row `{id}`: `llm_budget` is {amount}");
    assert_eq!(shown("acme"), (format!("900 usd {rest}"), row("acme", "900")));
    assert_eq!(
        shown("beta"),
        ("unlimited, warns at 80%, 100%".to_owned(), row("beta", "unlimited"))
    );
    assert_eq!(shown("gamma"), (format!("0 usd {rest}"), row("gamma", "blocked")));
    assert_eq!(shown("delta").0, format!("500 usd {rest}"));
}
