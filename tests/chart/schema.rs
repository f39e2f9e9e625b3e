//! Tests that `values.schema.json` has the chart's default values and the settings of the service.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use sluicegate::config::settings::schema;

use super::chart;

/// Settings and blocks that the chart itself sets: mounted files, bound addresses and values per
/// replica.
const CHART_SETTINGS: &[&str] = &[
    "compat.metrics.path",
    "compat.store.per_second_url",
    "compat.store.sentinel_password",
    "fleet.peers.address",
    "fleet.peers.secret",
    "fleet.peers.secret_file",
    "fleet.peers.tls",
    "fleet.replica_name",
    "limits.paths",
    "listen.admin_host",
    "listen.admin_port",
    "admin.token",
    "listen.grpc_port",
    "listen.grpc_socket",
    "listen.http_port",
    "listen.metrics_port",
    "listen.peer_host",
    "listen.peer_port",
    "listen.tls.cert_file",
    "listen.tls.client_ca_file",
    "listen.tls.key_file",
    "store.password_file",
    "store.sentinel",
    "store.tls",
    "store.url",
];

fn read_schema() -> Value {
    let text = fs::read_to_string(chart().join("values.schema.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The pattern of URLs of Redis that the service accepts.
fn second_store_url(settings: &Value) -> Value {
    let store = &settings["properties"]["compat"]["properties"]["store"]["properties"];
    store["per_second_url"]["pattern"].clone()
}

/// The environment variable `BLESS` rewrites `values.schema.json`.
#[test]
fn shipped_values_schema_has_every_configurable_setting() {
    let mut wanted = read_schema();
    let mut settings = schema();
    let settings = settings.as_object_mut().unwrap();
    settings.remove("$schema");
    for name in CHART_SETTINGS {
        let (block, key) = name.rsplit_once('.').unwrap();
        let block = block.split('.').fold(&mut settings["properties"], |properties, block| {
            &mut properties[block]["properties"]
        });
        let removed = block.as_object_mut().and_then(|block| block.remove(key));
        assert!(removed.is_some(), "no such setting any more: {name}");
    }
    // The chart's own values for URLs take what the service takes.
    let redis = second_store_url(&schema());
    for name in ["url", "perSecondUrl"] {
        let external = &mut wanted["properties"]["redis"]["properties"]["external"];
        external["properties"][name]["pattern"] = redis.clone();
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
