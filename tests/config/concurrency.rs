//! Tests of the block `concurrency` in limits files: the meaning of its fields, and refused values.

use sluicegate::config::concurrency::ConcurrencyFallback::{Allow, Deny, Local};
use sluicegate::config::concurrency::{ConcurrencyLimit, ConcurrencyMode, RejectReply};
use sluicegate::kernel::concurrency::adaptive::{AdaptiveAlgorithm, AdaptiveConfig};
use sluicegate::kernel::concurrency::limiter::{LimiterConfig, QueueConfig};
use sluicegate::kernel::concurrency::{OverloadAnswers, RetryAfterRule};
use sluicegate::kernel::units::Nanos;

use super::{find, findings, line, load, load_clean};

/// Adds a `max_duration` unless `fields` sets it or a mode, to avoid warning W30 in unrelated
/// tests.
fn with_max_duration(fields: &str) -> String {
    let is_complete = fields.contains("max_duration") || fields.contains("mode: ");
    if is_complete { fields.to_owned() } else { format!("{fields}, max_duration: 60s") }
}

fn ceiling(fields: &str) -> ConcurrencyLimit {
    let config =
        load_clean(&format!("- key: k\n  concurrency: {{{}}}\n", with_max_duration(fields)));
    config.domains["d"].tree.lookup_concurrency_limit([("k", "v")]).unwrap().limit.clone()
}

/// Asserts how each finding starts for a `concurrency` block with `fields` and a `max_duration`.
fn assert_findings(fields: &str, expected: &[&str]) {
    assert_raw_findings(&with_max_duration(fields), expected);
}

fn assert_raw_findings(fields: &str, expected: &[&str]) {
    let findings = findings(&format!("- key: k\n  concurrency: {{{fields}}}\n"));
    let messages: Vec<_> =
        findings.iter().map(|finding| finding.split_once(' ').unwrap().1).collect();
    assert_eq!(messages.len(), expected.len(), "{fields}: {findings:#?}");
    for (message, expected) in messages.iter().zip(expected) {
        assert!(message.starts_with(expected), "{fields}: {message}\nwanted {expected}");
    }
}

#[test]
fn concurrency_block_sets_limit_queue_and_rejection() {
    assert_eq!(ceiling("limit: 64").rules, LimiterConfig::fixed(64));
    assert_eq!(ceiling("limit: 64, mode: local").reject, RejectReply::default());
    assert_eq!(ceiling("limit: 64, mode: local").max_duration, Nanos::from_secs(60));
    assert_eq!(ceiling("limit: 64, max_duration: 5m").max_duration, Nanos::from_secs(300));
    let all = ceiling(
        "limit: 64, adaptive: {algorithm: aimd, min: 8, max: 512}, \
         queue: {size: 100, timeout: 300ms}, \
         reject: {status: 429, retry_after: 1500ms, body: 'busy, retry shortly'}",
    );
    let adaptive = Some(AdaptiveConfig::new(AdaptiveAlgorithm::Aimd, 8, 512));
    let timeout = Nanos(300 * Nanos::MILLI.0);
    let waiting = Some(QueueConfig { size: 100, timeout });
    assert_eq!(all.rules, LimiterConfig { adaptive, queue: waiting, ..LimiterConfig::fixed(64) });
    let retry_after = Some(Nanos(1_500 * Nanos::MILLI.0));
    assert_eq!(
        all.reject,
        RejectReply { status: 429, retry_after, body: "busy, retry shortly".into() }
    );
    let bounds = |limit| ceiling(&format!("limit: {limit}, adaptive: {{}}")).rules.adaptive;
    assert_eq!(bounds(64), Some(AdaptiveConfig::new(AdaptiveAlgorithm::Gradient, 1, 1000)));
    assert_eq!(bounds(2000), Some(AdaptiveConfig::new(AdaptiveAlgorithm::Gradient, 1, 2000)));
}

#[test]
fn overloaded_by_lists_the_answers_that_mean_overload() {
    let list = |items: &str| {
        let fields = format!("limit: 64, mode: local, adaptive: {{overloaded_by: {items}}}");
        let limit = ceiling(&fields);
        (limit.rules.overloaded_by, limit.to_string())
    };
    let own = OverloadAnswers::NONE.with_http(429..=429).with_http(503..=503).with_grpc(14);
    for (items, answers, text) in [
        ("", OverloadAnswers::DEFAULT, ""),
        ("[5xx, 429, UNAVAILABLE, RESOURCE_EXHAUSTED]", OverloadAnswers::DEFAULT, ""),
        ("[]", OverloadAnswers::NONE, ", overloaded by []"),
        ("[429, 503, UNAVAILABLE]", own, ", overloaded by [429, 503, UNAVAILABLE]"),
        ("['503', UNAVAILABLE, 429, 429]", own, ", overloaded by [429, 503, UNAVAILABLE]"),
        ("[4xx]", OverloadAnswers::NONE.with_http(400..=499), ", overloaded by [4xx]"),
    ] {
        let (found, shown) = list(items);
        assert_eq!(found, answers, "{items}");
        let wanted = format!("64 in flight, gradient from 1 to 1000{text}, mode local");
        assert!(shown.starts_with(&wanted), "{shown}\nwanted {wanted}");
    }
}

#[test]
fn retry_after_of_an_adaptive_limit_is_ignored_by_default() {
    let limit = |fields: &str| ceiling(&format!("limit: 64, mode: local, adaptive: {{{fields}}}"));
    assert_eq!(limit("").rules.retry_after, RetryAfterRule::Ignore);
    assert_eq!(limit("paused_by: none").rules.retry_after, RetryAfterRule::Ignore);
    let honoured = limit("paused_by: retry_after");
    assert_eq!(honoured.rules.retry_after, RetryAfterRule::Honour);
    assert!(honoured.to_string().contains(", paused by retry_after"), "{honoured}");
    assert_findings(
        "limit: 1, adaptive: {paused_by: retry-after}",
        &["E29 `paused_by: retry-after` is not a valid value"],
    );
}

#[test]
fn store_failures_follow_the_defaults_of_the_file() {
    let of = |defaults: &str, fields: &str| {
        let text = format!(
            "domain: d\ndefaults: {{on_store_failure: {defaults}}}\ndescriptors:\n- {{key: k, concurrency: {{limit: 64, {fields}}}}}\n"
        );
        let (config, _) = load(&[("a.yaml", &text)], false).unwrap();
        let tree = &config.domains["d"].tree;
        tree.lookup_concurrency_limit([("k", "v")]).unwrap().limit.on_store_failure
    };
    // A permit cannot be answered with an error.
    let rows = [("", Local), ("error", Local), ("local", Local), ("deny", Deny), ("allow", Allow)];
    for (defaults, wanted) in rows {
        assert_eq!(of(defaults, ""), wanted, "{defaults}");
        assert_eq!(of(defaults, "mode: strict"), wanted, "{defaults}");
        assert_eq!(of(defaults, "on_store_failure: allow"), Allow, "{defaults}");
        assert_eq!(of(defaults, "mode: local"), Local, "{defaults}");
    }
}

#[test]
fn invalid_items_of_overloaded_by_are_reported() {
    let assert = |items: &str, expected: &[&str]| {
        assert_findings(&format!("limit: 1, adaptive: {{overloaded_by: {items}}}"), expected);
    };
    assert("[399]", &["E29 `overloaded_by: 399` is not an answer"]);
    assert("[600, 429]", &["E29 `overloaded_by: 600` is not an answer"]);
    assert("[OK]", &["E29 `overloaded_by: OK` is not an answer"]);
    assert("[3xx, unavailable]", &["E29 `overloaded_by: 3xx`", "E29 `overloaded_by: unavailable`"]);
    assert("429", &["E13 `overloaded_by` must be a list, not an integer: `429`"]);
    assert("[[429]]", &["E13 `overloaded_by` must be text, not a list"]);
    assert("[4.5]", &["E12 `overloaded_by: 4.5` is a number with a fraction"]);
}

#[test]
fn classes_and_fair_parts_tell_requests_apart() {
    let fields = "limit: 100, queue: {size: 200, timeout: 500ms}, \
                  classes: {by: tier, up_to: {critical: 100%, normal: 80%, batch: 50%}}, \
                  fair: {by: customer, weight: customers.weight, max_keys: 500}";
    let limit = ceiling(fields);
    let rule = limit.requesters.as_ref().unwrap();
    assert_eq!(rule.keys.class.as_deref(), Some("tier"));
    assert_eq!(
        rule.keys.class_names.iter().map(|name| &**name).collect::<Vec<_>>(),
        ["critical", "normal", "batch"]
    );
    assert_eq!(limit.rules.classes.percents(), [100, 80, 50]);
    assert_eq!(
        (rule.keys.customer.as_deref(), limit.rules.fair_keys),
        (Some("customer"), Some(500))
    );
    let weight = rule.weight.as_ref().unwrap();
    assert_eq!((&*weight.table, &*weight.column), ("customers", "weight"));
    let text = "100 in flight, queue of 200 for 500ms, classes by \"tier\" (critical 100%, normal 80%, \
                batch 50%), fair by \"customer\" of at most 500, weight of customers.weight, rejected";
    assert!(limit.to_string().starts_with(text), "{limit}");
    let own_keys = "limit: 1, classes: {by: t, up_to: {'a b': 100%, 1: 7%, limit: 1%}}";
    let names = ceiling(own_keys).requesters.unwrap().keys.class_names;
    assert_eq!(names.iter().map(|name| &**name).collect::<Vec<_>>(), ["a b", "1", "limit"]);
    let default = "limit: 1, queue: {size: 1, timeout: 1s}, fair: {by: c, weight: t.w}";
    assert_eq!(ceiling(default).rules.fair_keys, Some(10_000));
}

#[test]
fn invalid_classes_are_reported() {
    let assert = |classes: &str, expected: &[&str]| {
        assert_findings(&format!("limit: 1, classes: {{{classes}}}"), expected);
    };
    assert("up_to: {a: 100%}", &["E38 `by` is missing"]);
    assert("by: '', up_to: {a: 100%}", &["E38 `by` is missing"]);
    assert("by: t", &["E38 `classes` needs the parts of its classes (`up_to`)"]);
    assert("by: t, up_to: {}", &["E38 `classes` needs the parts of its classes (`up_to`)"]);
    assert("by: t, up_to: 100%", &["E13 `up_to` must be a mapping, not the text `100%`"]);
    assert("by: t, up_to: [a, b]", &["E13 `up_to` must be a mapping, not a list"]);
    assert("by: t, up_to: {a: [100%]}", &["E13 `up_to` must be text, not a list"]);
    assert("by: t, up_to: {a: 90%}", &["E38 `a: 90%` is not `100%`: no class could use the rest"]);
    assert("by: t, up_to: {a: 100}", &["E38 `a: 100` is not a percentage from `1%` to `100%`"]);
    assert("by: t, up_to: {a: 100%, b: 0%}", &["E38 `b: 0%` is not a percentage"]);
    let rises = "by: t, up_to: {a: 100%, b: 20%, c: 50%}";
    assert(rises, &["E38 `c: 50%` is more than the class before it has: `20%`"]);
    assert("by: t, up_to: {a: 100%, a: 50%}", &["E38 `up_to` has the class `a` twice"]);
    let nine: Vec<_> = (1..=9).map(|number| format!("c{number}: 100%")).collect();
    assert(&format!("by: t, up_to: {{{}}}", nine.join(", ")), &["E38 `up_to` has 9 classes"]);
    let many: Vec<_> = (0..60_000).map(|number| format!("c{number}: 100%")).collect();
    assert(&format!("by: t, up_to: {{{}}}", many.join(", ")), &["E38 `up_to` has 60000 classes"]);
    let strict = "limit: 5, mode: strict, classes: {by: t, up_to: {a: 100%}}";
    assert_findings(strict, &["E32 `classes` cannot be combined with `mode: strict`"]);
}

#[test]
fn invalid_fair_parts_are_reported() {
    let assert = |fair: &str, expected: &[&str]| {
        let queue = "queue: {size: 1, timeout: 1s}";
        assert_findings(&format!("limit: 1, {queue}, fair: {{{fair}}}"), expected);
    };
    assert("weight: t.w", &["E38 `by` is missing"]);
    assert("by: c, weight: customers", &["E40 `weight: customers` is not a table and its column"]);
    assert("by: c, weight: t.w, max_keys: 0", &["E38 `max_keys: 0` is out of range"]);
    assert("by: c, weight: t.w, max_keys: 100001", &["E38 `max_keys: 100001` is out of range"]);
    assert("by: c", &["W36 `fair` gives each value of `c` a part"]);
    assert_findings("limit: 1, fair: {by: c, weight: t.w}", &["E32 `fair` needs a `queue`"]);
    let strict = |fair: &str| {
        format!("limit: 5, mode: strict, queue: {{size: 1, timeout: 1s}}, fair: {{{fair}}}")
    };
    let weight = "E32 `weight` cannot be combined with `mode: strict`";
    assert_findings(&strict("by: c, weight: t.w"), &[weight]);
    assert_findings(&strict("by: c"), &["W36 `fair` gives each value of `c` a part"]);
}

#[test]
fn rule_with_only_a_concurrency_limit_has_no_rate_limit() {
    let config = load_clean(
        "- key: k\n  rate_limit: {unit: day, requests_per_unit: 1}\n\
         - key: k\n  value: v\n  concurrency: {limit: 2, max_duration: 60s}\n\
         - key: both\n  concurrency: {limit: 3, max_duration: 60s}\n  \
         rate_limit: {unit: day, requests_per_unit: 1}\n",
    );
    let of = |key, value| {
        let found = config.domains["d"].tree.lookup_concurrency_limit([(key, value)]);
        found.map(|found| found.limit.rules.limit)
    };
    assert!(find(&config, "k=v").is_none(), "as a node without rate_limit in the base language");
    assert_eq!((of("k", "v"), of("k", "w")), (Some(2), None));
    assert!(find(&config, "both=x").is_some());
    assert_eq!(of("both", "x"), Some(3));
}

#[test]
fn invalid_concurrency_fields_are_reported() {
    assert_findings("limit: 0", &["E38 `limit: 0`"]);
    assert_findings("mode: local", &["E38 `concurrency` needs a `limit`"]);
    assert_findings(
        "limit: 1, mode: local, on_store_failure: deny",
        &["E32 `on_store_failure` cannot be combined with `mode: local`"],
    );
    assert_findings("limit: 1, on_store_failure: error", &["E29 `on_store_failure: error`"]);
    assert_findings("limit: 64, mode: shared", &["W30 `max_duration` is missing"]);
    assert_raw_findings(
        "limit: 64",
        &["W30 `max_duration` is missing, so its default of 60s applies"],
    );
    assert_findings("limit: 64, mode: local", &[]);
    assert_findings("limit: 64, mode: strict", &[]);
    assert_findings(
        "limit: 64, mode: shared, max_duration: 301s",
        &["W30 `max_duration: 301s` is long"],
    );
    assert_findings(
        "limit: 64, max_duration: 301s",
        &["W30 `max_duration: 301s` is long for a fleet-wide limit"],
    );
    assert_findings("limit: 64, mode: leesed, max_duration: 301s", &["E29 `mode: leesed`"]);
    assert_findings("limit: 64, mode: shared, max_duration: 5m", &[]);
    assert_findings(
        "limit: 4, mode: strict, adaptive: {}",
        &["E32 `adaptive` cannot be combined with `mode: strict`"],
    );
    assert_findings("limit: 1, mode: cached_deny", &["E29 `mode: cached_deny`"]);
    assert_findings("limit: 1, max_duration: 0s", &["E31 `max_duration: 0s` is too short"]);
    assert_findings("limit: 1, adaptive: {algorithm: vegas}", &["E29 `algorithm: vegas`"]);
    assert_findings("limit: 1, adaptive: {min: 0}", &["E38 `min: 0`"]);
    assert_findings("limit: 4, adaptive: {min: 5}", &["E32 `limit: 4` is not between `min` 5"]);
    assert_findings(
        "limit: 4, adaptive: {max: 3}",
        &["E32 `limit: 4` is not between `min` 1 and `max` 3"],
    );
    assert_findings("limit: 1, queue: {size: 1}", &["E38 `queue` needs"]);
    assert_findings("limit: 1, queue: {timeout: 1s}", &["E38 `queue` needs"]);
    assert_findings("limit: 1, queue: {size: 0, timeout: 1s}", &["E38 `size: 0`"]);
    assert_findings("limit: 1, queue: {size: 1, timeout: 0s}", &["E31 `timeout: 0s`"]);
    assert_findings(
        "limit: 1, queue: {size: 1, timeout: soon}",
        &["E31 `timeout: soon` is not a duration"],
    );
    assert_findings(
        "limit: 1, queue: {size: 1, timeout: 999999d}",
        &["E31 `timeout: 999999d` is longer"],
    );
    for status in ["200", "399", "600", "70000"] {
        let expected = format!("E38 `status: {status}`");
        assert_findings(&format!("limit: 1, reject: {{status: {status}}}"), &[&expected]);
    }
    assert_findings("limit: 1, reject: {retry_after: later}", &["E31 `retry_after: later`"]);
    assert_findings("limit: 1, burst: 2", &["E10 `burst` is not valid in `concurrency`"]);
    assert_findings("limit: 1, queues: {}", &["E09 unknown field `queues`"]);
    assert_findings("limit: many", &["E13 `limit` must be"]);
}

#[test]
fn concurrency_mode_unsuited_to_the_limit_size_warns() {
    let shared =
        |limit: u32, more: &str| format!("limit: {limit}, mode: shared, max_duration: 5m{more}");
    assert_findings(&shared(10, ""), &["W31 `limit: 10` is small for `mode: shared`"]);
    assert_findings(&shared(11, ""), &[]);
    assert_findings(&shared(10, ", adaptive: {}"), &[]);
    assert_findings("limit: 10", &[]);
    for limit in [1, 10, 999] {
        assert_findings(&format!("limit: {limit}, mode: strict"), &[]);
    }
    assert_findings("limit: 1000, mode: strict", &["W32 `limit: 1000` with `mode: strict`"]);
    assert_eq!(ceiling("limit: 10, mode: strict").mode, Some(ConcurrencyMode::Strict));
    let text = ceiling("limit: 10, mode: strict, on_store_failure: deny").to_string();
    assert_eq!(text, "10 in flight, mode strict, on store failure deny, rejected with 503");
}

#[test]
fn concurrency_fields_outside_their_block_are_refused() {
    let findings = findings("- key: k\n  queue: {size: 1, timeout: 1s}\n");
    assert!(findings[0].contains("E10 `queue` is not valid in a descriptor"), "{findings:?}");
}

#[test]
fn shadow_mode_applies_to_concurrency_limits() {
    let config =
        load_clean("- key: k\n  shadow_mode: true\n  concurrency: {limit: 1, max_duration: 60s}\n");
    assert!(config.domains["d"].tree.lookup_concurrency_limit([("k", "")]).unwrap().limit.shadow);
}

#[test]
fn old_concurrency_mode_leased_is_an_error_with_the_new_name() {
    let text = "domain: d\ndescriptors:\n- key: k\n  concurrency: {limit: 64, mode: leased}\n";
    let findings = load(&[("a.yaml", text)], false).unwrap_err();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(line(&findings[0]), "4:34 E29 `mode: leased` is not a valid value");
    let fix = "use `mode: shared`; `leased` is a mode of `rate_limit`";
    assert_eq!(findings[0].help.as_deref(), Some(fix));
}
