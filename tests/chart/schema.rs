//! Tests that `values.schema.json` has the chart's default values and the settings of the service.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use sluicegate::config::settings::schema;

use super::chart;

/// Settings that the chart itself sets: mounted files, bound addresses and values per replica.
const CHART_SETTINGS: &[&str] = &[
    "admin_host",
    "admin_port",
    "admin_token",
    "backend",
    "backend_password_file",
    "backend_per_second",
    "backend_sentinel_password",
    "backend_sentinel_password_file",
    "backend_sentinel_user",
    "backend_tls_ca_file",
    "backend_tls_cert_file",
    "backend_tls_key_file",
    "backend_tls_server_name",
    "grpc_port",
    "grpc_socket",
    "grpc_tls_cert_file",
    "grpc_tls_client_ca_file",
    "grpc_tls_key_file",
    "http_port",
    "limits",
    "metrics",
    "metrics_path",
    "metrics_port",
    "node_id",
    "peer_address",
    "peer_host",
    "peer_port",
    "peer_secret",
    "peer_secret_file",
    "peer_tls_ca_file",
    "peer_tls_cert_file",
    "peer_tls_key_file",
    "peer_tls_name",
];

fn read_schema() -> Value {
    let text = fs::read_to_string(chart().join("values.schema.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The environment variable `BLESS` rewrites `values.schema.json`.
#[test]
fn shipped_values_schema_has_every_configurable_setting() {
    let mut wanted = read_schema();
    let mut settings = schema();
    let settings = settings.as_object_mut().unwrap();
    settings.remove("$schema");
    let properties = settings["properties"].as_object_mut().unwrap();
    for name in CHART_SETTINGS {
        assert!(properties.remove(*name).is_some(), "no such setting any more: {name}");
    }
    wanted["properties"]["settings"] = Value::Object(settings.clone());
    let (path, wanted) = (chart().join("values.schema.json"), format!("{wanted:#}\n"));
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap();
    assert!(
        found == wanted,
        "values.schema.json is stale: write it with `BLESS=1 cargo test shipped`"
    );
}

#[test]
fn schema_and_default_values_have_equal_paths() {
    let text = fs::read_to_string(chart().join("values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&text).unwrap();
    // Helm adds the value `global`, for subcharts.
    let helms = ["global".to_owned()].into();
    assert_eq!(&schema_paths(&read_schema()) - &helms, default_paths(&values, ""));
}

/// Paths of all chart values in the schema, except inside objects of Kubernetes or the service.
fn schema_paths(schema: &Value) -> BTreeSet<String> {
    let Some(properties) = schema["properties"].as_object() else { return BTreeSet::new() };
    let below = |(name, value): (&String, &Value)| {
        let inner = if name == "settings" { BTreeSet::new() } else { schema_paths(value) };
        if inner.is_empty() {
            BTreeSet::from([name.clone()])
        } else {
            inner.into_iter().map(|path| format!("{name}.{path}")).collect()
        }
    };
    properties.iter().flat_map(below).collect()
}

/// Paths of all default values, to the same depth as [`schema_paths`].
fn default_paths(values: &Value, path: &str) -> BTreeSet<String> {
    let schema = read_schema();
    let pointer = match path {
        "" => String::new(),
        path => format!("/properties/{}", path.replace('.', "/properties/")),
    };
    let opened = schema.pointer(&pointer).is_some_and(|s| s["properties"].is_object());
    match values {
        Value::Object(map) if opened && path != "settings" => map
            .iter()
            .flat_map(|(name, value)| {
                default_paths(value, format!("{path}.{name}").trim_matches('.'))
            })
            .collect(),
        _ => BTreeSet::from([path.to_owned()]),
    }
}
