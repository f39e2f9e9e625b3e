//! The files that are shipped say what the table says.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use sluicegate::config::settings::{HeaderName, LATER, Settings, schema, server_yaml, table};

use super::{file, sound};
use sluicegate::config;
use sluicegate::kernel::units::Revision;

/// Compares a file of `config/` with what it should be; with `BLESS` set, writes it.
fn holds(name: &str, wanted: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("config").join(name);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, wanted, "config/{name} is stale: write it with `BLESS=1 cargo test shipped`");
}

#[test]
fn the_shipped_server_yaml_is_the_table() {
    holds("server.yaml", &server_yaml());
}

#[test]
fn the_shipped_schema_is_the_table() {
    holds("schema/sluicegate-server.schema.json", &format!("{:#}\n", schema()));
}

#[test]
fn the_shipped_server_yaml_names_every_setting_and_changes_none() {
    let loaded = sound(&file(&server_yaml()));
    assert_eq!(loaded.settings, Settings::default());
    assert_eq!(loaded.origins.len(), table().len());
}

#[test]
fn defaults_are_those_of_the_reference_where_it_has_the_setting() {
    let defaults = Settings::default();
    assert_eq!((defaults.grpc_port, defaults.http_port, defaults.admin_port), (8081, 8080, 6070));
    let names = [&defaults.limit_header, &defaults.remaining_header, &defaults.reset_header];
    let reference = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"];
    assert_eq!(names.map(HeaderName::as_str), reference);
    assert_eq!(defaults.near_limit_ratio.get().to_bits(), 0.8_f32.to_bits());
    let switches = [
        defaults.shadow_mode,
        defaults.quota_mode,
        defaults.merge_domains,
        defaults.dynamic_metadata,
        defaults.retry_after,
        defaults.negative_hits,
        defaults.start_without_config,
        defaults.healthy_with_config,
    ];
    assert_eq!(switches, [false; 8]);
}

#[test]
fn every_row_has_a_sentence_and_a_name_of_its_own() {
    let names: BTreeSet<_> = table().iter().map(|row| row.name).collect();
    assert_eq!(names.len(), table().len());
    assert!(LATER.iter().all(|later| !names.contains(later)));
    for row in table() {
        assert!(row.doc.ends_with('.') && !row.unit.is_empty(), "{}", row.name);
        assert_eq!(row.flag.replace('-', "_"), row.name);
        assert_eq!(row.variable, format!("SLUICEGATE_{}", row.name.to_uppercase()));
    }
}

#[test]
fn the_schema_knows_every_setting_and_its_default() {
    let schema = schema();
    let defaults = Settings::default();
    for row in table() {
        let property = &schema["properties"][row.name];
        let default = &property["default"];
        let shown = row.show(&defaults);
        let default = default.as_str().map_or_else(|| default.to_string(), str::to_owned);
        assert_eq!(default, shown.trim_matches('"'), "{}", row.name);
        assert!(property["type"].is_string() || property["type"].is_array(), "{}", row.name);
    }
}

#[test]
fn the_settings_to_start_with_are_sound() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("config/start.yaml");
    let loaded = sound(&file(&fs::read_to_string(path).unwrap()));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    assert_eq!(loaded.settings.limits, [PathBuf::from("config/limits")]);
}

#[test]
fn the_settings_for_hooks_name_a_domain_that_the_shipped_ceilings_have() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let settings = fs::read_to_string(root.join("config/hooks.yaml")).unwrap();
    let loaded = sound(&file(&settings));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let text = fs::read(root.join("config/ceilings/edge.yaml")).unwrap();
    let (config, said) = config::load([("edge.yaml", &*text)], Revision(1), false).unwrap();
    assert!(said.is_empty(), "{said}");
    let hook = loaded.settings.hooks.named(Some("edge")).unwrap();
    assert_eq!(config.domains[&*hook.domain].tree.ceilings().len(), 2);
}
