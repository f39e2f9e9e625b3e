//! Tests of the Kubernetes objects and Helm chart values in `docs/`.

use std::fs;

use serde_json::Value;
use sluicegate::config::diagnostic::Severity;
use sluicegate::config::envoy_filter::examine_filters;
use sluicegate::config::hooks::filter_config::FilterConfig;

use super::cases::CASES;
use super::valid::validate;
use super::{Objects, chart, rendered, template};
use crate::docs::blocks;

/// Emissary objects have no schema in these tests; the page about Emissary says so.
const UNKNOWN: &str = "apiVersion: getambassador.io/";

#[test]
fn documented_kubernetes_objects_are_valid() {
    let shown = tempfile::tempdir().unwrap();
    let mut objects = 0;
    for block in blocks("yaml") {
        if block.text.starts_with("apiVersion:") && !block.text.starts_with(UNKNOWN) {
            let name = format!("{}.yaml", block.place.replace(['/', ':'], "_"));
            fs::write(shown.path().join(name), block.text).unwrap();
            objects += 1;
        }
    }
    assert!(6 < objects, "{objects} objects");
    let output = validate(shown.path());
    assert_eq!(output.matches("OK").count(), objects, "{output}");
}

#[test]
fn documented_values_render() {
    let mut rendered = 0;
    for block in blocks("yaml").into_iter().filter(|b| b.text.starts_with("# values.yaml")) {
        let values = tempfile::NamedTempFile::new().unwrap();
        fs::write(values.path(), block.text).unwrap();
        let flag = format!("--values={}", values.path().display());
        template(&chart(), &[&flag]).unwrap_or_else(|output| panic!("{}: {output}", block.place));
        rendered += 1;
    }
    assert!(3 < rendered, "{rendered} blocks");
}

/// The filter configs of an Envoy Gateway policy, as the JSON text that Envoy receives.
fn module_configs(objects: &Objects) -> Vec<String> {
    let modules = |object: &Value| object.pointer("/spec/dynamicModule")?.as_array().cloned();
    let modules = objects.0.iter().filter_map(modules).flatten();
    modules.filter_map(|module| Some(module.get("config")?.to_string())).collect()
}

#[test]
fn module_configs_of_docs_and_presets_are_valid() {
    let blocks = blocks("yaml");
    let policies = blocks.iter().filter(|block| block.text.contains("EnvoyExtensionPolicy"));
    let documented = policies.flat_map(|block| module_configs(&Objects::read(&block.text)));
    let preset = CASES.iter().find(|case| case.name == "envoy-gateway-module").unwrap();
    let configs: Vec<_> = documented.chain(module_configs(&rendered(preset.flags))).collect();
    assert_eq!(configs.len(), 2, "{configs:?}");
    for config in configs {
        FilterConfig::parse(&config).unwrap_or_else(|error| panic!("{config}: {error}"));
    }
    let is_filter = |text: &str| text.contains("v3.DynamicModuleFilter\n");
    let filters: Vec<_> = blocks.iter().filter(|block| is_filter(&block.text)).collect();
    assert_eq!(filters.len(), 1, "the EnvoyFilter of Istio");
    for block in filters {
        let findings = examine_filters(&block.place, block.text.as_bytes());
        let notes = findings.iter().filter(|finding| finding.severity() == Severity::Note);
        assert_eq!((notes.count(), findings.len()), (1, 1), "{findings}");
    }
}
