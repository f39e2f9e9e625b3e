//! `values.schema.json` names every value and every setting of the service, and none besides.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use sluicegate::config::settings::schema;

use super::chart;

/// What the chart says itself: what it mounts, binds, or must differ from replica to replica.
const OWN: &[&str] = &[
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

fn read() -> Value {
    let text = fs::read_to_string(chart().join("values.schema.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// With `BLESS` set the settings are written into the schema.
#[test]
fn the_shipped_schema_of_values_takes_every_setting_that_is_not_the_charts_own() {
    let mut wanted = read();
    let mut settings = schema();
    let settings = settings.as_object_mut().unwrap();
    settings.remove("$schema");
    let properties = settings["properties"].as_object_mut().unwrap();
    for name in OWN {
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
fn every_value_has_a_default_and_every_default_is_of_the_schema() {
    let text = fs::read_to_string(chart().join("values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&text).unwrap();
    // Helm's own, of a chart that has this one beneath it.
    let helms = ["global".to_owned()].into();
    assert_eq!(&named(&read()) - &helms, keys(&values, ""));
}

/// The paths of all values, down to objects that Kubernetes or the service defines.
fn named(schema: &Value) -> BTreeSet<String> {
    let Some(properties) = schema["properties"].as_object() else { return BTreeSet::new() };
    let below = |(name, value): (&String, &Value)| {
        let inner = if name == "settings" { BTreeSet::new() } else { named(value) };
        if inner.is_empty() {
            BTreeSet::from([name.clone()])
        } else {
            inner.into_iter().map(|path| format!("{name}.{path}")).collect()
        }
    };
    properties.iter().flat_map(below).collect()
}

/// The paths of all defaults, as deep as the schema goes.
fn keys(values: &Value, path: &str) -> BTreeSet<String> {
    let schema = read();
    let pointer = match path {
        "" => String::new(),
        path => format!("/properties/{}", path.replace('.', "/properties/")),
    };
    let opened = schema.pointer(&pointer).is_some_and(|s| s["properties"].is_object());
    match values {
        Value::Object(map) if opened && path != "settings" => map
            .iter()
            .flat_map(|(name, value)| keys(value, format!("{path}.{name}").trim_matches('.')))
            .collect(),
        _ => BTreeSet::from([path.to_owned()]),
    }
}
