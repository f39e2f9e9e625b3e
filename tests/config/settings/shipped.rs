//! Tests that the shipped files in `config/` and `docs/` match the list of settings in the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use sluicegate::config::settings::{
    HeaderName, Settings, reference_page, schema, server_yaml, setting_blocks, table,
};

use super::{file, load_valid};
use sluicegate::config;
use sluicegate::kernel::units::Revision;

/// Compares a shipped file with `wanted`. With `BLESS` set, writes the file first.
fn assert_shipped(name: &str, wanted: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, wanted, "{name} is stale: write it with `BLESS=1 cargo test shipped`");
}

#[test]
fn shipped_server_yaml_matches_the_settings() {
    assert_shipped("config/server.yaml", &server_yaml());
}

#[test]
fn shipped_settings_schema_matches_the_settings() {
    assert_shipped("config/schema/sluicegate-server.schema.json", &format!("{:#}\n", schema()));
}

#[test]
fn reference_page_matches_the_settings() {
    assert_shipped("docs/reference/settings.md", &reference_page());
}

#[test]
fn shipped_server_yaml_lists_all_settings_at_defaults() {
    let loaded = load_valid(&file(&server_yaml()));
    assert_eq!(loaded.settings, Settings::default());
    assert_eq!(loaded.origins.len(), table().len());
}

#[test]
fn defaults_match_envoyproxy_ratelimit() {
    let defaults = Settings::default();
    assert_eq!(
        (defaults.listen.grpc_port, defaults.listen.http_port, defaults.listen.admin_port),
        (8081, 8080, 6070)
    );
    let names = [
        &defaults.compat.answers.limit_header,
        &defaults.compat.answers.remaining_header,
        &defaults.compat.answers.reset_header,
    ];
    let reference = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"];
    assert_eq!(names.map(HeaderName::as_str), reference);
    assert_eq!(defaults.telemetry.near_limit.get().to_bits(), 0.8_f32.to_bits());
    let switches = [
        defaults.answers.shadow_mode,
        defaults.compat.limits.quota_mode,
        defaults.limits.merge_domains,
        defaults.answers.metadata,
        defaults.answers.retry_after,
        defaults.limits.refunds,
        !defaults.limits.required_at_start,
        defaults.limits.required_for_health,
    ];
    assert_eq!(switches, [false; 8]);
}

#[test]
fn settings_have_unique_names_and_documentation() {
    let flags: BTreeSet<_> = table().iter().map(|row| &row.flag).collect();
    assert_eq!(flags.len(), table().len());
    for row in table() {
        assert!(row.doc.ends_with('.') && !row.unit.is_empty(), "{}", row.name);
        let flat = row.name.replace('.', "_");
        assert_eq!(row.flag.replace('-', "_"), flat);
        assert_eq!(row.variable, format!("SLUICEGATE_{}", flat.to_uppercase()));
    }
    for block in setting_blocks() {
        assert!(block.doc.ends_with('.'), "{}", block.name);
    }
}

#[test]
fn settings_schema_lists_every_setting_with_its_default() {
    let schema = schema();
    let defaults = Settings::default();
    for row in table() {
        let path = row.name.replace('.', "/properties/");
        let property = schema.pointer(&format!("/properties/{path}")).expect(row.name);
        let default = &property["default"];
        let shown = row.show(&defaults);
        let default = default.as_str().map_or_else(|| default.to_string(), str::to_owned);
        assert_eq!(default, shown.trim_matches('"'), "{}", row.name);
        assert!(property["type"].is_string() || property["type"].is_array(), "{}", row.name);
    }
}

#[test]
fn shipped_start_yaml_loads_without_warnings() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("config/start.yaml");
    let loaded = load_valid(&file(&fs::read_to_string(path).unwrap()));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    assert_eq!(loaded.settings.limits.paths, [PathBuf::from("config/limits")]);
}

#[test]
fn shipped_hooks_yaml_uses_the_shipped_concurrency_domain() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let settings = fs::read_to_string(root.join("config/hooks.yaml")).unwrap();
    let loaded = load_valid(&file(&settings));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let text = fs::read(root.join("config/concurrency/edge.yaml")).unwrap();
    let (config, findings) = config::load([("edge.yaml", &*text)], Revision(1), false).unwrap();
    assert!(findings.is_empty(), "{findings}");
    let hook = loaded.settings.hooks.find_or_first(Some("edge")).unwrap();
    assert_eq!(config.domains[&*hook.domain].tree.concurrency_limits().len(), 2);
}

#[test]
fn shipped_hooks_for_budgets_use_the_shipped_budgets() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let settings = fs::read_to_string(root.join("config/hooks_budgets.yaml")).unwrap();
    let loaded = load_valid(&file(&settings));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let text = fs::read(root.join("config/budgets/llm.yaml")).unwrap();
    let (config, findings) = config::load([("llm.yaml", &*text)], Revision(1), false).unwrap();
    assert!(findings.is_empty(), "{findings}");
    let hook = loaded.settings.hooks.find_or_first(Some("llm")).unwrap();
    assert_eq!(config.domains[&*hook.domain].tree.budgets().len(), 2);
}
