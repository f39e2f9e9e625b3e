//! Tests of `adaptive` and `wait` in a `rate_limit` block: their meaning, and refused values.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | fields of counters are ignored | `fields_that_count_in_windows_are_refused` |
//! | any unit is allowed | `values_without_a_meaning_are_refused` |
//! | any rate is allowed, or any initial rate | the same |
//! | `max` is 1000 with a larger initial rate | `each_block_alone_makes_a_pace` |
//! | a denial has status 503 | `pace_fields_become_parameters_of_a_local_limit` |
//! | shadow mode is lost | `shadow_mode_applies_to_a_pace` |
//! | the block `concurrency` hides the pace | `a_pace_beside_other_limits_of_its_rule_is_refused` |
//! | a list may contain a pace | the same |
//! | options of counters cause no warning | `options_of_counters_have_no_effect_on_a_pace` |

use sluicegate::config::concurrency::{ConcurrencyLimit, ConcurrencyMode};
use sluicegate::kernel::concurrency::adaptive::Hundredths;
use sluicegate::kernel::concurrency::limiter::{LimiterConfig, QueueConfig};
use sluicegate::kernel::concurrency::pace::{AdaptivePace, PaceConfig};
use sluicegate::kernel::concurrency::{OverloadAnswers, RetryAfterRule};
use sluicegate::kernel::units::Nanos;

use super::{find, findings, limit_findings, load_clean};

const WAIT: &str = "unit: second, requests_per_unit: 10, wait: {at_most: 2s, queue: 100}";

fn pace(fields: &str) -> ConcurrencyLimit {
    let config = load_clean(&format!("- key: k\n  rate_limit: {{{fields}}}\n"));
    assert!(find(&config, "k=v").is_none(), "it counts in no window");
    config.domains["d"].tree.lookup_concurrency_limit([("k", "v")]).unwrap().limit.clone()
}

#[test]
fn pace_fields_become_parameters_of_a_local_limit() {
    let limit = pace(
        "unit: minute, requests_per_unit: 10, wait: {at_most: 2s, queue: 100}, \
         adaptive: {algorithm: aimd, min: 2, max: 500, increase: 3, decrease: 0.75, \
         overloaded_by: [429], paused_by: retry_after}",
    );
    let adaptive = AdaptivePace { min: 2, max: 500, increase: 3, decrease: Hundredths(75) };
    let pace = PaceConfig { unit: Nanos::from_secs(60), adaptive: Some(adaptive) };
    let rules = LimiterConfig {
        pace: Some(pace),
        queue: Some(QueueConfig { size: 100, timeout: Nanos::from_secs(2) }),
        overloaded_by: OverloadAnswers::NONE.with_http(429..=429),
        retry_after: RetryAfterRule::Honour,
        ..LimiterConfig::fixed(10)
    };
    assert_eq!(limit.rules, rules);
    assert_eq!((limit.mode, limit.reject.status), (Some(ConcurrencyMode::Local), 429));
    assert_eq!(
        limit.to_string(),
        "10 per minute one by one, aimd from 2 to 500, increase 3, decrease 0.75, \
         overloaded by [429], paused by retry_after, queue of 100 for 2s, mode local, \
         rejected with 429"
    );
}

#[test]
fn each_block_alone_makes_a_pace() {
    let constant = pace(WAIT);
    let unit = Nanos::SECOND;
    assert_eq!(constant.rules.pace, Some(PaceConfig { unit, adaptive: None }));
    assert!(constant.rules.queue.is_some());
    let adaptive = pace("per: 90s, requests_per_unit: 2000, adaptive: {}");
    let wanted = AdaptivePace { min: 1, max: 2000, increase: 1, decrease: Hundredths(80) };
    let unit = Nanos::from_secs(90);
    assert_eq!(adaptive.rules.pace, Some(PaceConfig { unit, adaptive: Some(wanted) }));
    assert_eq!(adaptive.rules.queue, None);
    assert_eq!(adaptive.rules.overloaded_by, OverloadAnswers::DEFAULT);
    assert!(adaptive.to_string().starts_with("2000 per 90s one by one, aimd from 1 to 2000"));
}

#[test]
fn shadow_mode_applies_to_a_pace() {
    let config = load_clean(&format!("- key: k\n  shadow_mode: true\n  rate_limit: {{{WAIT}}}\n"));
    let tree = &config.domains["d"].tree;
    assert!(tree.lookup_concurrency_limit([("k", "v")]).unwrap().limit.shadow);
}

#[test]
fn fields_that_count_in_windows_are_refused() {
    for (field, name) in [
        ("name: n", "name"),
        ("replaces: [{name: n}]", "replaces"),
        ("strategy: gcra", "strategy"),
        ("burst: 3", "burst"),
        ("on_excess: refuse", "on_excess"),
        ("mode: leased", "mode"),
        ("max_overshoot: 2%", "max_overshoot"),
        ("lease_hits: 3", "lease_hits"),
        ("on_store_failure: allow", "on_store_failure"),
        ("unlimited: true", "unlimited"),
        ("calendar: {time_zone: UTC}", "calendar"),
    ] {
        let found = limit_findings(&format!("{field}, {WAIT}"));
        let wanted = format!(" E32 `{name}` cannot be combined with `wait`");
        let is_found =
            found.len() == 1 && found[0].starts_with("4:") && found[0].ends_with(&wanted);
        assert!(is_found, "{field}: {found:?}");
    }
}

#[test]
fn values_without_a_meaning_are_refused() {
    let second = "unit: second, requests_per_unit: 10";
    for (fields, wanted) in [
        (format!("{second}, wait: {{at_most: 2s}}"), "`wait` needs `at_most` and `queue`"),
        (format!("{second}, wait: {{at_most: 0s, queue: 1}}"), "`at_most: 0s` is too short"),
        (format!("{second}, wait: {{at_most: soon, queue: 1}}"), "`at_most: soon` is not a"),
        (format!("{second}, wait: {{at_most: 1s, queue: 0}}"), "`queue: 0` is too small"),
        (format!("{second}, adaptive: {{algorithm: gradient}}"), "`algorithm: gradient` is not"),
        (format!("{second}, adaptive: {{min: 11}}"), "`requests_per_unit: 10` is not between"),
        (format!("{second}, adaptive: {{max: 9}}"), "`requests_per_unit: 10` is not between"),
        (format!("{second}, adaptive: {{min: 60, max: 50}}"), "`max: 50` is less than `min: 60`"),
        (format!("{second}, adaptive: {{min: 0}}"), "`min: 0` is too small"),
        (format!("{second}, adaptive: {{increase: 0}}"), "`increase: 0` is too small"),
        (format!("{second}, adaptive: {{decrease: 1}}"), "`decrease: 1` is out of range"),
        (format!("{second}, adaptive: {{decrease: 0.855}}"), "`decrease: 0.855` is out of range"),
        (format!("{second}, adaptive: {{overloaded_by: [200]}}"), "`overloaded_by: 200` is not"),
        (format!("{second}, adaptive: {{max: 1000001}}"), "`max: 1000001` is too large"),
        ("unit: second, adaptive: {}".to_owned(), "`requests_per_unit` is missing"),
        ("requests_per_unit: 10, adaptive: {}".to_owned(), "`rate_limit` needs a `unit`"),
        ("unit: day, requests_per_unit: 10, adaptive: {}".to_owned(), "`unit: day` is longer"),
        ("per: 61m, requests_per_unit: 10, adaptive: {}".to_owned(), "`per: 61m` is longer"),
        (
            format!("{second}, from: customers.rate, adaptive: {{}}"),
            "`from` cannot be combined with `adaptive`",
        ),
        (
            "per: 1ms, requests_per_unit: 1001, wait: {at_most: 1s, queue: 1}".to_owned(),
            "`requests_per_unit: 1001` is too large",
        ),
    ] {
        let found = limit_findings(&fields);
        assert_eq!(found.len(), 1, "{fields}: {found:?}");
        let message = found[0].splitn(3, ' ').nth(2).unwrap();
        assert!(message.starts_with(wanted), "{fields}: {message}");
    }
}

#[test]
fn parameters_of_latency_are_unknown_fields_of_a_rate() {
    for field in ["target: 1s", "tolerance: 2", "window: 1s", "aggregate: min"] {
        let found = limit_findings(&format!("{WAIT}, adaptive: {{{field}}}"));
        assert_eq!(found.len(), 1, "{field}: {found:?}");
        let key = field.split(':').next().unwrap();
        assert!(found[0].contains(&format!("`{key}`")), "{found:?}");
    }
}

#[test]
fn a_pace_beside_other_limits_of_its_rule_is_refused() {
    let beside = "- key: k\n  concurrency: {limit: 5, mode: local}\n  rate_limit:\n    \
                  requests_per_unit: 5\n    unit: second\n    adaptive: {}\n";
    assert_eq!(findings(beside), ["8:15 E32 `adaptive` cannot be combined with `concurrency`"]);
    let list = format!("- key: k\n  rate_limits:\n  - {{{WAIT}}}\n");
    let found = findings(&list);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].ends_with("`wait` cannot be combined with `rate_limits`"), "{found:?}");
}

#[test]
fn options_of_counters_have_no_effect_on_a_pace() {
    for option in ["detailed_metric: true", "quota_mode: true", "metadata: {a: 1}"] {
        let found = findings(&format!("- key: k\n  {option}\n  rate_limit: {{{WAIT}}}\n"));
        let name = option.split(':').next().unwrap();
        let wanted = format!("`{name}` has no effect with `wait` in `rate_limit`");
        assert!(found.len() == 1 && found[0].ends_with(&wanted), "{found:?}");
    }
}
