//! Tests that secrets stay out of a `ConfigMap`, that the admin port is separate from metrics, and that
//! images can be pinned.

use serde_json::{Value, json};

use super::cases::CASES;
use super::{Objects, chart, rendered, template};

#[test]
fn secrets_in_settings_are_refused_with_place_and_fix() {
    let headers = "settings.compat.xds.headers=authorization=s3cret";
    let events = "SLUICEGATE_EVENTS_URL from a secret, in extraEnv";
    for (set, fix) in [
        (headers, "SLUICEGATE_COMPAT_XDS_HEADERS from a secret, in extraEnv"),
        ("settings.events.url=https://hooks.example/services/s3cret", events),
        ("settings.events.url=https://hooks.example?token=s3cret", events),
        ("settings.events.url=https://hooks.example/?token=s3cret", events),
        ("redis.external.url=redis://u:s3/cret@a", "redis.existingSecret"),
        ("redis.external.perSecondUrl=redis://:s3@cret@a", "redis.existingSecret"),
        ("postgres.url=postgres://a/db?user=u&password=s3cret", "postgres.existingSecret"),
        ("postgres.url=postgres://u:s3/cret@a/db", "postgres.existingSecret"),
        (
            "limits.gitSync.repository=https://u:s3cret@a/b",
            "limits.gitSync.existingSecret with secretKind basic",
        ),
    ] {
        let place = set.split('=').next().unwrap();
        let output = template(&chart(), &["--set-string", set]).expect_err(set);
        assert!(output.contains(place) && output.contains(fix), "{set}: {output}");
        assert!(!output.contains("cret@") && !output.contains("s3cret"), "{output}");
    }
}

#[test]
fn a_webhook_without_path_may_be_in_settings() {
    for url in ["https://events.internal:8443", "http://events.internal/"] {
        let objects = rendered(&["--set-string", &format!("settings.events.url={url}")]);
        assert!(objects.server_yaml().contains(url), "{}", objects.server_yaml());
    }
}

/// The sources that a `NetworkPolicy` allows to call a port.
fn sources<'o>(objects: &'o Objects, port: &str) -> Vec<&'o Value> {
    let rules = objects.one("NetworkPolicy", "")["spec"]["ingress"].as_array().unwrap();
    let is_of = |rule: &&Value| {
        let ports = rule["ports"].as_array().unwrap();
        ports.iter().any(|allowed| allowed["port"] == port)
    };
    rules.iter().filter(is_of).map(|rule| &rule["from"]).collect()
}

#[test]
fn access_to_metrics_gives_no_access_to_admin() {
    let flags = "networkPolicy.enabled=true,admin.existingSecret=a";
    let scraper = r#"networkPolicy.monitoringFrom=[{"podSelector":{}}]"#;
    let objects = rendered(&["--set", flags, "--set-json", scraper]);
    assert_eq!(sources(&objects, "metrics"), [&json!([{"podSelector": {}}])]);
    assert_eq!(sources(&objects, "admin"), [&Value::Null; 0]);
    let operator = r#"networkPolicy.adminFrom=[{"namespaceSelector":{}}]"#;
    let objects = rendered(&["--set", flags, "--set-json", scraper, "--set-json", operator]);
    assert_eq!(sources(&objects, "admin"), [&json!([{"namespaceSelector": {}}])]);
    assert_eq!(sources(&objects, "metrics"), [&json!([{"podSelector": {}}])]);
}

#[test]
fn every_preset_has_a_network_policy() {
    let presets =
        CASES.iter().filter(|case| case.flags.iter().any(|flag| flag.contains("/values/")));
    let presets = presets.filter(|case| case.flags[0].starts_with("--values=charts/"));
    let mut count = 0;
    for case in presets {
        assert_eq!(sources(&rendered(case.flags), "admin").len(), 0, "{}", case.name);
        count += 1;
    }
    assert_eq!(count, std::fs::read_dir(chart().join("values")).unwrap().count());
}

#[test]
fn all_images_can_be_pinned_by_digest() {
    let digest = format!("sha256:{}", "0a".repeat(32));
    let set = format!(
        "image.digest={digest},image.moduleDigest={digest},redis.enabled=true,\
         redis.image=redis@{digest},tests.image=busybox@{digest},limits.gitSync.enabled=true,\
         limits.gitSync.image=git-sync@{digest},limits.gitSync.repository=https://a/b,\
         limits.inline=null"
    );
    let preset = "--values=charts/sluicegate/values/envoy-gateway-module.yaml";
    let text = template(&chart(), &[preset, "--set", &set]).unwrap();
    let images: Vec<_> =
        text.lines().filter_map(|line| line.trim().strip_prefix("image: ")).collect();
    assert_eq!(images.len(), 6, "service, two git-sync, Redis, test, module: {images:?}");
    assert!(images.iter().all(|image| image.ends_with(&digest)), "{images:?}");
}
