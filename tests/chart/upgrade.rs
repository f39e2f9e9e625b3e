//! Tests of the objects that a Helm upgrade changes, and of the upgrades that restart pods.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{Objects, chart, name_of, rendered, root, template};

fn changed(before: &Objects, after: &Objects) -> Vec<String> {
    assert_eq!(before.names(), after.names());
    let pairs = before.0.iter().zip(&after.0);
    pairs.flat_map(|(b, a)| differences(b, a, &name_of(b))).collect()
}

fn differences(before: &Value, after: &Value, at: &str) -> Vec<String> {
    match (before, after) {
        (Value::Object(b), Value::Object(a)) => {
            let names = b.keys().chain(a.keys().filter(|name| !b.contains_key(*name)));
            names
                .flat_map(|name| differences(&before[name], &after[name], &format!("{at} {name}")))
                .collect()
        }
        (Value::Array(b), Value::Array(a)) if b.len() == a.len() => {
            let items = b.iter().zip(a).enumerate();
            items.flat_map(|(n, (b, a))| differences(b, a, &format!("{at} {n}"))).collect()
        }
        _ if before == after => Vec::new(),
        _ => vec![at.to_owned()],
    }
}

const PRESET: &str = "--values=charts/sluicegate/values/standalone.yaml";

#[test]
fn new_limits_change_only_their_config_map() {
    let limits = "limits.inline.shop\\.yaml=domain: shop\n";
    let found = changed(&rendered(&[PRESET]), &rendered(&[PRESET, "--set-string", limits]));
    assert_eq!(found, ["ConfigMap/edge-sluicegate-limits data shop.yaml"]);
}

#[test]
fn a_new_setting_restarts_the_replicas() {
    let found =
        changed(&rendered(&[PRESET]), &rendered(&[PRESET, "--set", "settings.store.max_keys=5"]));
    let checksum =
        "Deployment/edge-sluicegate spec template metadata annotations checksum/settings";
    assert_eq!(found, ["ConfigMap/edge-sluicegate-settings data server.yaml", checksum]);
}

#[test]
fn scaling_changes_only_the_replica_count() {
    let redis = "redis.external.url=redis://a";
    let of = |count: &str| rendered(&["--set", redis, "--set", &format!("replicaCount={count}")]);
    assert_eq!(changed(&of("3"), &of("5")), ["Deployment/edge-sluicegate spec replicas"]);
}

#[test]
fn a_new_image_changes_only_the_image() {
    let found = changed(&rendered(&[]), &rendered(&["--set-string", "image.tag=9"]));
    assert_eq!(found, ["Deployment/edge-sluicegate spec template spec containers 0 image"]);
}

/// Kubernetes refuses an upgrade that changes a Deployment's selector. Changed pod labels would
/// restart the pods.
#[test]
fn a_new_chart_version_changes_only_the_chart_label() {
    let copy = tempfile::tempdir().unwrap();
    copy_all(&chart(), copy.path());
    let file = copy.path().join("Chart.yaml");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("\nversion: 0.1.0\n"));
    fs::write(&file, text.replace("\nversion: 0.1.0\n", "\nversion: 7.0.0\n")).unwrap();
    let after = Objects::read(&template(copy.path(), &[]).unwrap());
    let found = changed(&rendered(&[]), &after);
    assert!(!found.is_empty());
    let other = found.iter().filter(|path| !path.ends_with("metadata labels helm.sh/chart"));
    assert_eq!(other.collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(!found.iter().any(|path| path.contains("template")), "{found:?}");
}

fn copy_all(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let (path, target) = entry.map(|e| (e.path(), to.join(e.file_name()))).unwrap();
        if path.is_dir() {
            fs::create_dir(&target).unwrap();
            copy_all(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

#[test]
fn chart_app_version_matches_the_crate() {
    let text = fs::read_to_string(chart().join("Chart.yaml")).unwrap();
    let chart: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    assert!(root().join("LICENSE").exists());
}
