//! Tests of the blocks `budget` and `usage` in limits files: the meaning of their fields.

mod amounts;
mod refused;

use sluicegate::config::budget::{
    BudgetRule, BudgetUnit, BudgetWindow, DEFAULT_AT_MOST, DEFAULT_TIME_LIMIT, Estimate, UsageRules,
};
use sluicegate::config::{FallbackMode, LimitWindow, Unit};
use sluicegate::kernel::budget::{Amount, OnExpiry};
use sluicegate::kernel::units::Nanos;

use super::{line, load, load_clean};

const USD: BudgetUnit = BudgetUnit::Money(*b"usd");

/// Returns a file of domain `d` with this `usage`, and one descriptor of key `org` with these fields.
fn file(usage: &str, descriptor: &str) -> String {
    format!(
        "domain: d\ncolocate: org\nusage: {{{usage}}}\ndescriptors: [{{key: org, {descriptor}}}]\n"
    )
}

/// Returns each finding of a file as `line:column code message`, and its fix.
fn found(text: &str) -> Vec<(String, String)> {
    let (Ok((_, findings)) | Err(findings)) = load(&[("a.yaml", text)], false);
    findings.iter().map(|one| (line(one), one.help.clone().unwrap_or_default())).collect()
}

/// Returns the rules of the domain and its only budget, whose block has `fields`.
fn budget_with(usage: &str, fields: &str, beside: &str) -> (UsageRules, BudgetRule) {
    let text = file(usage, &format!("budget: {{{fields}}}{beside}"));
    let (config, findings) = load(&[("a.yaml", &text)], false).unwrap();
    assert!(findings.is_empty(), "{text}{findings:?}");
    let domain = &config.domains["d"];
    let [budget] = domain.tree.budgets().collect::<Vec<_>>()[..] else { panic!("{text}") };
    (domain.usage.clone(), budget.clone())
}

fn budget(fields: &str) -> BudgetRule {
    budget_with("prices: models", &format!("amount: 500 usd, {fields}"), "").1
}

fn usage(fields: &str) -> UsageRules {
    budget_with(&format!("prices: models, {fields}"), "amount: 500 usd, unit: day", "").0
}

#[test]
fn budget_block_sets_amount_period_and_warnings() {
    let plain = budget("unit: month");
    assert_eq!((plain.amount, plain.unit), (Amount(500_000_000), USD));
    assert_eq!(plain.window, BudgetWindow::Each(LimitWindow::Unit(Unit::Month)));
    assert_eq!((plain.warn_at.len(), plain.shadow, plain.from.is_none()), (0, false, true));
    assert_eq!((&*plain.path, &*plain.location), ("d.org", "a.yaml:4"));
    let per = budget("per: 90m").window;
    assert_eq!(per, BudgetWindow::Each(LimitWindow::Per(Nanos::from_secs(5_400))));
    let second = BudgetWindow::Each(LimitWindow::Per(Nanos::SECOND));
    assert_eq!(budget("per: 1s").window, second);
    let calendar = budget("unit: month, calendar: {time_zone: Europe/Berlin, starts_on: 15}");
    let BudgetWindow::Each(window) = &calendar.window else { panic!("{calendar:?}") };
    assert_eq!(window.to_string(), "month from day 15 in Europe/Berlin");
    assert_eq!(*budget("unit: day, warn_at: [1%, 80%, 100%]").warn_at, [1, 80, 100]);
}

#[test]
fn prepaid_budget_has_a_unit_and_no_period() {
    let (_, money) = budget_with("prices: models", "prepaid: true, of: EUR", "");
    let euro = BudgetUnit::Money(*b"eur");
    assert_eq!((money.amount, money.unit, money.window), (Amount(0), euro, BudgetWindow::Prepaid));
    let (_, tokens) = budget_with("", "prepaid: true, of: output_tokens, warn_at: [90%]", "");
    assert_eq!((tokens.unit, &*tokens.warn_at), (BudgetUnit::OutputTokens, &[90][..]));
    let (_, not_prepaid) = budget_with("", "prepaid: false, amount: 50k tokens, unit: day", "");
    assert_ne!(not_prepaid.window, BudgetWindow::Prepaid);
}

#[test]
fn usage_block_sets_the_rules_of_all_budgets() {
    let default = UsageRules { prices: Some("models".into()), ..UsageRules::default() };
    assert_eq!(usage(""), default);
    assert_eq!((default.at_most, default.time_limit), (DEFAULT_AT_MOST, DEFAULT_TIME_LIMIT));
    let all =
        "estimate: learn, at_most: 64k tokens, time_limit: 1h30m, on_expiry: release, model: m";
    assert_eq!(
        usage(all),
        UsageRules {
            estimate: Estimate::Learn,
            at_most: 64_000,
            time_limit: Nanos::from_secs(5_400),
            on_expiry: OnExpiry::Release,
            prices: Some("models".into()),
            model: "m".into(),
        }
    );
    let fixed = usage("estimate: 4k tokens");
    assert_eq!((fixed.estimate, fixed.at_most), (Estimate::Tokens(4_000), DEFAULT_AT_MOST));
    assert_eq!(usage("estimate: max_tokens").estimate, Estimate::MaxTokens);
    assert_eq!(usage("time_limit: 1s").time_limit, Nanos::SECOND);
    assert_eq!(usage("time_limit: 24h").time_limit, Nanos::from_secs(86_400));
}

/// A fixed estimate is used as written: only a written `at_most` below it is an error.
#[test]
fn fixed_estimate_raises_the_default_maximum() {
    assert_eq!(usage("estimate: 1M tokens").at_most, 1_000_000);
    assert_eq!(usage("estimate: 1M tokens, at_most: 1M tokens").at_most, 1_000_000);
}

#[test]
fn domain_without_usage_has_its_defaults() {
    let config = load_clean("- {key: org, budget: {amount: 2M tokens, unit: minute}}\n");
    assert_eq!(config.domains["d"].usage, UsageRules::default());
    assert!(config.has_limits());
}

#[test]
fn budgets_meet_store_failures_without_counting_locally() {
    use FallbackMode::{Allow, Deny, Error};
    let fallback = |defaults: &str, own: &str| {
        let text = format!(
            "domain: d\ncolocate: org\n{defaults}\ndescriptors:\n- key: org\n  budget: {{amount: 5 \
             tokens, unit: day{own}}}\n"
        );
        let (config, findings) = load(&[("a.yaml", &text)], false).unwrap();
        assert!(findings.is_empty(), "{findings:?}");
        config.domains["d"].tree.budgets().next().unwrap().on_store_failure
    };
    let default = |word: &str| format!("defaults: {{on_store_failure: {word}}}");
    assert_eq!(fallback("", ""), Error);
    for (word, mode) in [("error", Error), ("allow", Allow), ("deny", Deny), ("local", Deny)] {
        assert_eq!(fallback(&default(word), ""), mode, "{word}");
        assert_eq!(fallback(&default(word), ", on_store_failure: allow"), Allow, "{word}");
    }
    assert_eq!(fallback("", ", on_store_failure: deny"), Deny);
}

#[test]
fn shadow_mode_applies_to_budgets() {
    let fields = "amount: 50k tokens, unit: day";
    assert!(budget_with("", fields, ", shadow_mode: true").1.shadow);
    assert!(!budget_with("", fields, "").1.shadow);
}

/// The example: a descriptor meets the budgets of all rules on its way.
#[test]
fn descriptor_meets_the_budgets_of_all_its_levels() {
    let text = "domain: llm\ncolocate: org\nusage: {estimate: learn, at_most: 32k tokens, \
                time_limit: 10m, on_expiry: charge, prices: models}\ndescriptors:\n- key: org\n  \
                budget: {amount: 500 usd, unit: month, calendar: {time_zone: Europe/Berlin}, warn_at: \
                [80%, 100%], from: customers.llm_budget}\n  descriptors:\n  - {key: model, budget: \
                {amount: 2M tokens, unit: minute}}\n";
    let (config, findings) = load(&[("a.yaml", text)], false).unwrap();
    assert!(findings.is_empty(), "{findings:?}");
    let tree = &config.domains["llm"].tree;
    let met = |entries: &[(&str, &str)]| {
        let budgets = tree.lookup_budgets(entries);
        budgets.iter().map(|met| (met.rule.path.to_string(), met.entries)).collect::<Vec<_>>()
    };
    let org = ("llm.org".to_owned(), 1);
    let model = ("llm.org.model".to_owned(), 2);
    assert_eq!(met(&[("org", "acme")]), std::slice::from_ref(&org));
    assert_eq!(met(&[("org", "acme"), ("model", "m")]), [org.clone(), model]);
    assert_eq!(met(&[("org", "acme"), ("team", "t")]), [org]);
    let columns: Vec<_> = config.table_columns().collect();
    let [(column, place)] = columns[..] else { panic!("{columns:?}") };
    assert_eq!((&*column.table, &*column.column, column.entry), ("customers", "llm_budget", 0));
    assert_eq!(place, "a.yaml:6");
    assert_eq!(config.price_tables().collect::<Vec<_>>(), [("models", "a.yaml:6")]);
}

#[test]
fn prices_belong_to_the_first_budget_of_money() {
    let text = "domain: d\ncolocate: k\nusage: {prices: p}\ndescriptors:\n- {key: k, budget: {amount: 5 \
                tokens, unit: day}, descriptors: [{key: l,\n  budget: {amount: 5 usd, unit: day}}]}\n";
    let (config, _) = load(&[("a.yaml", text)], false).unwrap();
    assert_eq!(config.price_tables().collect::<Vec<_>>(), [("p", "a.yaml:6")]);
    let config = load_clean("- {key: k, budget: {amount: 5 tokens, unit: day}}\n");
    assert_eq!(config.price_tables().count(), 0);
}

#[test]
fn usage_is_equal_in_all_files_of_a_domain() {
    let budget = "domain: d\ncolocate: k\nusage: {estimate: learn}\ndescriptors: [{key: k, budget: \
                  {amount: 5 tokens, unit: day}}]\n";
    let other = |usage: &str| format!("domain: d\nusage: {usage}\ndescriptors: [{{key: o}}]\n");
    let both = |usage: &str| load(&[("a.yaml", budget), ("b.yaml", &other(usage))], true);
    for equal in ["{estimate: learn}", "{estimate: learn, time_limit: 600s}", "~"] {
        let (config, _) = both(equal).unwrap();
        assert_eq!(config.domains["d"].usage.estimate, Estimate::Learn, "{equal}");
    }
    let findings = both("{estimate: learn, on_expiry: release}").unwrap_err();
    let lines: Vec<_> = findings.iter().map(line).collect();
    let differs = "2:9 E32 `usage` differs from `usage` of the same domain in a.yaml:3:9";
    assert_eq!(lines, [differs]);
}
