//! Tests of `SANITIZE_DESCRIPTOR_METRIC_DOTS`, which replaces dots in names of statistics.

use std::fs;

use crate::support::http1;
use crate::support::service::Service;

/// Sends one check to each rule, and returns the lines of the metrics page that count all hits.
fn total_hits(variables: &[(&str, &str)]) -> Vec<String> {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("s/config")).unwrap();
    let limits = "domain: shop\ndescriptors:\n\
                  - {key: host, value: www.shop.example, rate_limit: {unit: hour, requests_per_unit: 3}}\n\
                  - {key: path, value: /shop.v1.Cart/Add, rate_limit: {unit: hour, requests_per_unit: 3}}\n";
    fs::write(root.path().join("s/config/a.yaml"), limits).unwrap();
    let path = root.path().display().to_string();
    let base = [
        ("RUNTIME_ROOT", &*path),
        ("RUNTIME_SUBDIRECTORY", "s"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("USE_STATSD", "false"),
        ("USE_PROMETHEUS", "true"),
        ("SLUICEGATE_STORE_URL", "memory"),
    ];
    let service = Service::start_as_ratelimit(&[&base, variables].concat()).unwrap();
    for (key, value) in [("host", "www.shop.example"), ("path", "/shop.v1.Cart/Add")] {
        let body = format!(
            r#"{{"domain":"shop","descriptors":[{{"entries":[{{"key":"{key}","value":"{value}"}}]}}]}}"#
        );
        let reply = http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap();
        assert_eq!(reply.status, 200);
    }
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    page.lines()
        .filter(|line| line.contains("total_hits") && !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn each_rule_has_its_series_with_replaced_dots() {
    let series = |key: &str| {
        format!("ratelimit_service_rate_limit_total_hits{{domain=\"shop\",key1=\"{key}\"}} 1")
    };
    let wanted = [series("host_www_shop_example"), series("path_/shop_v1_Cart/Add")];
    let mut found = total_hits(&[("SANITIZE_DESCRIPTOR_METRIC_DOTS", "true")]);
    found.sort_unstable();
    assert_eq!(found, wanted);
}

#[test]
fn dots_stay_unless_the_variable_is_true() {
    let found = total_hits(&[]);
    assert!(!found.iter().any(|line| line.contains("www_shop_example\"")), "{found:?}");
}
