//! Rewrites and mappings of statistic names.

use regex::Regex;
use sluicegate::kernel::units::Nanos;
use sluicegate::telemetry::stats::mapping::{StatKind, StatMapping, sanitize_metric_name};
use sluicegate::telemetry::stats::{
    LineFormat, NameRewrite, RuleStatsKey, StatLineFormatter, Stats, TimedMethod, render_page,
};

use super::stats;

#[test]
fn first_matching_rewrite_of_a_statistic_name_applies() {
    let rewrite = |pattern: &str, name: &str| NameRewrite {
        pattern: Regex::new(pattern).unwrap(),
        name: name.to_owned(),
        tags: Vec::new(),
    };
    let rewrites = vec![rewrite("^other", "a"), rewrite("total_hits$", "b"), rewrite("^r", "c")];
    let stats = stats(1);
    stats.rule_stats(RuleStatsKey::FromFile("d.k")).hits(1);
    let mut dog = StatLineFormatter::new(LineFormat::Dogstatsd, &[], rewrites);
    assert_eq!(dog.next_lines(&stats, &[]), ["b:1|c"]);
}

#[test]
fn custom_mappings_rename_label_and_drop_metrics() {
    let text = "\
defaults: {observer_type: histogram, histogram_options: {buckets: [1, 2]}}
mappings:
- {match: 'a\\.(.*)', match_type: regex, name: late}
- {match: a.*.c, name: 'x_$1', labels: {part: '${1}!'}}
- {match: drop.*, action: drop}
- {match: t.*, match_metric_type: timer, name: timed, scale: 0.5}
";
    let mapping = StatMapping::parse(text).unwrap();
    let counter = |name: &str| mapping.map(name, StatKind::Counter);
    let mapped = counter("a.b-1.c").unwrap();
    assert_eq!((mapped.name.as_str(), mapped.labels["part"].as_str()), ("x_b_1", "b-1!"));
    assert_eq!(
        counter("a.b").unwrap().name,
        "late",
        "expressions after patterns, whatever their order"
    );
    assert!(counter("drop.it").unwrap().is_dropped);
    assert!(counter("t.it").is_none() && counter("other").is_none());
    assert_eq!(mapping.map("t.it", StatKind::Timer).unwrap().buckets, [1.0, 2.0]);
    assert_eq!(sanitize_metric_name("9 lives.ü"), "_9_lives__");
    for wrong in
        ["mappings: [{match: a}]", "mappings: [{match: '(', match_type: regex, name: n}]", "x: ["]
    {
        assert!(StatMapping::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn summary_mapping_sets_quantiles_and_scale() {
    let text = "\
mappings:
- {match: 'ratelimit_server.*.response_time', name: took, labels: {method: '$1'}, scale: 0.001,
   summary_options: {quantiles: [{quantile: 0.5, error: 0.05}, {quantile: 0.95, error: 0.01}]}}
";
    let stats = Stats::new(1, StatMapping::parse(text).unwrap()).without_sending();
    for millis in 1..=100 {
        stats.record_call(TimedMethod::Check, Nanos(1), Nanos(millis * Nanos::MILLI.0));
    }
    let wanted = "\
# TYPE took summary
took{method=\"Check\",quantile=\"0.5\"} 0.05
took{method=\"Check\",quantile=\"0.95\"} 0.095
took_sum{method=\"Check\"} 5.05
took_count{method=\"Check\"} 100
";
    let shown = render_page(&stats, &[]);
    assert!(shown.contains(wanted), "{shown}");
    stats.advance(Nanos::from_secs(720));
    let later = render_page(&stats, &[]);
    assert!(
        later.contains("quantile=\"0.5\"} NaN\n")
            && later.contains("_count{method=\"Check\"} 100\n")
    );
    let lines = StatLineFormatter::new(LineFormat::Statsd, &[], Vec::new()).next_lines(&stats, &[]);
    assert_eq!(lines, ["ratelimit_server.Check.total_requests:100|c"], "nobody is sent the times");
}
