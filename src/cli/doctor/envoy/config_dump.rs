//! Finds the configs of Sluicegate's filter in Envoy's page `/config_dump`.
//!
//! Guarantees:
//! - A config that several sections contain is found once.
//! - Configs of draining listeners are left out; rejected ones are listed separately.

use std::collections::BTreeSet;

use serde_json::Value;

/// The name of the module and of its filter.
const NAME: &str = "sluicegate_envoy";

/// The types of a filter's and of a route's config, without the beginning.
pub(super) const FILTER_TYPE: &str = ".http.dynamic_modules.v3.DynamicModuleFilter";
const ROUTE_TYPE: &str = ".http.dynamic_modules.v3.DynamicModuleFilterPerRoute";

/// The namespace of the module's counters, unless its config has another one.
const DEFAULT_NAMESPACE: &str = "dynamicmodulescustom";

/// The configs of Sluicegate's filter.
#[derive(Debug, Default)]
pub(super) struct DumpedConfigs {
    /// The configs of filters.
    pub(super) filters: Vec<Value>,
    /// The configs of routes and virtual hosts.
    pub(super) routes: Vec<Value>,
    /// The reasons for which Envoy rejected an update with the filter.
    pub(super) rejections: BTreeSet<String>,
}

impl DumpedConfigs {
    /// Finds all configs at any depth.
    pub(super) fn find(dump: &Value) -> Self {
        let mut found = Self::default();
        found.add_configs(dump);
        found
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Value> {
        self.filters.iter().chain(&self.routes)
    }

    /// Returns the names that operators gave to this Envoy.
    pub(super) fn proxy_names(&self) -> BTreeSet<String> {
        self.filters.iter().filter_map(proxy_name).collect()
    }

    /// Returns the namespaces of the module's counters.
    pub(super) fn namespaces(&self) -> BTreeSet<&str> {
        let own = self.all().filter_map(|config| {
            config.pointer("/dynamic_module_config/metrics_namespace")?.as_str()
        });
        own.chain([DEFAULT_NAMESPACE]).collect()
    }

    /// The recursion is at most as deep as `serde_json` reads, 128 levels.
    fn add_configs(&mut self, value: &Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.add_configs(item)),
            Value::Object(fields) => match type_of(value) {
                Some(name) if name.ends_with(FILTER_TYPE) => add_own(&mut self.filters, value),
                Some(name) if name.ends_with(ROUTE_TYPE) => add_own(&mut self.routes, value),
                _ => fields.iter().for_each(|(name, field)| self.add_field(name, field)),
            },
            _ => {}
        }
    }

    fn add_field(&mut self, name: &str, value: &Value) {
        match name {
            "draining_state" => {}
            "error_state" => self.add_rejection(value),
            _ => self.add_configs(value),
        }
    }

    fn add_rejection(&mut self, state: &Value) {
        let failed = state.get("failed_configuration").map(Self::find).unwrap_or_default();
        if let (Some(_), Some(details)) =
            (failed.all().next(), state.get("details").and_then(Value::as_str))
        {
            self.rejections.insert(details.to_owned());
        }
    }
}

fn add_own(configs: &mut Vec<Value>, config: &Value) {
    let is_named = |path| config.pointer(path).and_then(Value::as_str) == Some(NAME);
    let is_own = is_named("/filter_name") || is_named("/dynamic_module_config/name");
    if is_own && !configs.contains(config) {
        configs.push(config.clone());
    }
}

fn type_of(value: &Value) -> Option<&str> {
    value.get("@type")?.as_str()
}

/// Returns the field `name` of a filter's config, which is a `Struct` or JSON text.
fn proxy_name(config: &Value) -> Option<String> {
    let value = config.pointer("/filter_config/value")?;
    let parsed = value.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    parsed.as_ref().unwrap_or(value).get("name")?.as_str().map(str::to_owned)
}
