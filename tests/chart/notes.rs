//! Tests of `templates/NOTES.txt`, the chart's message after an installation.
//!
//! `helm template` omits NOTES.txt, and `helm install` needs a cluster, so the test renders
//! NOTES.txt inside an extra object.

use std::fs;

use super::{chart, rendered};

fn notes(set: &str) -> String {
    let notes = fs::read_to_string(chart().join("templates/NOTES.txt")).unwrap();
    let object = [
        "{{- define \"notes\" }}",
        &notes,
        "{{ end -}}\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: edge-sluicegate-notes}\n",
        "data: {text: {{ include \"notes\" . | toJson }}}\n",
    ];
    let values = tempfile::NamedTempFile::new().unwrap();
    let extra = serde_json::json!({"extraObjects": [object.concat()]});
    fs::write(values.path(), extra.to_string()).unwrap();
    let objects = rendered(&[&format!("--values={}", values.path().display()), "--set", set]);
    objects.one("ConfigMap", "-notes")["data"]["text"].as_str().unwrap().to_owned()
}

#[test]
fn chart_notes_warn_only_if_no_limits_are_configured() {
    for (set, is_limited) in [
        ("replicaCount=1", false),
        ("limits.inline.a=b", true),
        ("limits.existingConfigMap=a", true),
        ("limits.gitSync.enabled=true,limits.gitSync.repository=a", true),
        ("settings.limits.xds.server=a:1", true),
    ] {
        let notes = notes(set);
        assert!(notes.contains("helm test edge"), "{set}: {notes}");
        assert_eq!(!notes.contains("NO LIMITS ARE CONFIGURED"), is_limited, "{set}: {notes}");
    }
}
