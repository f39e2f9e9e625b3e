//! Validates the configs of Sluicegate's own filter, which Envoy loads as a dynamic module.
//!
//! Guarantees:
//! - An error has the position of its field, or of the block that lacks the field.
//! - Configs of filters, routes and virtual hosts are examined.
//!
//! Not covered:
//! - Modules of others.
//! - Merge keys (`<<`), which are unknown fields here.

use serde_json::{Map, Number, Value as Json};

use super::super::diagnostic::{Code, Findings, Span};
use super::super::hooks::filter_config::{
    FailureMode, FilterConfig, FilterConfigError, RouteFilterConfig,
};
use super::super::manifest::field;
use super::super::yaml::{ScalarValue, YamlId, YamlKind, YamlTree};

/// The name of the module and of its only filter.
const NAME: &str = "sluicegate_envoy";

/// The largest number of nodes of one config, with aliases followed.
const MAX_NODES: usize = 100_000;

/// The deepest nesting of one config.
const MAX_DEPTH: usize = 64;

/// The place of a config: it determines its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConfigPlace {
    Filter,
    Route,
}

impl ConfigPlace {
    /// Returns the place of a config with this `@type`, or `None` for other types.
    pub(super) fn of_type(type_name: &str) -> Option<Self> {
        let name = type_name.rsplit_once(".http.dynamic_modules.v3.")?.1;
        match name {
            "DynamicModuleFilter" => Some(Self::Filter),
            "DynamicModuleFilterPerRoute" => Some(Self::Route),
            _ => None,
        }
    }
}

/// One config of the filter, in a document that starts at `offset`.
pub(super) struct ModuleFilter<'t> {
    pub(super) tree: &'t YamlTree<'t>,
    pub(super) node: YamlId,
    pub(super) place: ConfigPlace,
    pub(super) offset: usize,
}

impl ModuleFilter<'_> {
    /// Adds the findings of this config. Returns the failure mode of a valid filter of Sluicegate.
    pub(super) fn examine(&self, findings: &mut Findings) -> Option<FailureMode> {
        let module = self.either_field(self.node, ["dynamic_module_config", "dynamicModuleConfig"]);
        let filter_name = self.either_field(self.node, ["filter_name", "filterName"]);
        let module_name = module.and_then(|module| self.either_field(module, ["name", "name"]));
        let is_named = |name: Option<YamlId>| self.text(name) == Some(NAME);
        if !is_named(module_name) && !is_named(filter_name) {
            return None;
        }
        self.examine_module(module, findings);
        if !is_named(filter_name) {
            let error = FilterConfigError {
                field: "filter_name".to_owned(),
                problem: format!("is not `{NAME}`"),
                fix: format!("write `filter_name: {NAME}`"),
            };
            add_error(&error, self.span(filter_name.unwrap_or(self.node)), findings);
        }
        self.examine_config(findings)
    }

    fn examine_module(&self, module: Option<YamlId>, findings: &mut Findings) {
        let closes = module.and_then(|it| self.either_field(it, ["do_not_close", "doNotClose"]));
        let value = closes.and_then(|it| self.tree.scalar(it)).map(|(_, value)| value);
        if value != Some(ScalarValue::Bool(true)) {
            let at = self.span(closes.or(module).unwrap_or(self.node));
            let message = "Envoy closes this module with its last filter, and only its link option keeps it loaded";
            findings.add_with_help(Code::Unloadable, at, message, "set `do_not_close: true`");
        }
    }

    fn examine_config(&self, findings: &mut Findings) -> Option<FailureMode> {
        let config = self.either_field(self.node, ["filter_config", "filterConfig"]);
        let value = config.and_then(|config| field(self.tree, config, "value"));
        let value = value.map(|value| self.tree.target(value));
        let json = match value.and_then(|value| self.tree.scalar(value)) {
            Some((text, ScalarValue::Text)) => text.to_owned(),
            _ => self.to_json(value).to_string(),
        };
        let parsed = match self.place {
            ConfigPlace::Filter => FilterConfig::parse(&json).map(|config| Some(config.failure)),
            ConfigPlace::Route => RouteFilterConfig::parse(&json).map(|_| None),
        };
        let base = value.or(config).unwrap_or(self.node);
        parsed.unwrap_or_else(|error| {
            add_error(&error, self.span(self.descend(base, &error.field)), findings);
            None
        })
    }

    /// Returns the deepest node on a path such as `descriptors[0][1].request_headers`.
    fn descend(&self, base: YamlId, path: &str) -> YamlId {
        let mut node = base;
        for segment in path.split(['.', '[']) {
            let next = match segment.strip_suffix(']').map(str::parse::<usize>) {
                Some(Ok(index)) => self.tree.children(node).get(index).copied(),
                _ => field(self.tree, node, segment),
            };
            let Some(next) = next else { break };
            node = self.tree.target(next);
        }
        node
    }

    fn to_json(&self, value: Option<YamlId>) -> Json {
        let mut budget = MAX_NODES;
        value.map_or_else(
            || Json::Object(Map::new()),
            |value| self.node_to_json(value, 0, &mut budget),
        )
    }

    /// A config beyond the bounds loses nodes, so it is invalid.
    fn node_to_json(&self, node: YamlId, depth: usize, budget: &mut usize) -> Json {
        if *budget == 0 || depth == MAX_DEPTH {
            return Json::Null;
        }
        *budget -= 1;
        let node = self.tree.target(node);
        match self.tree.kind(node) {
            YamlKind::Sequence(_) => {
                let items = self.tree.children(node).iter();
                items.map(|item| self.node_to_json(*item, depth + 1, budget)).collect()
            }
            YamlKind::Mapping(_) => {
                let text =
                    |key| self.tree.scalar(self.tree.target(key)).map(|(text, _)| text.to_owned());
                let pairs = self.tree.pairs(node);
                let pairs = pairs.filter_map(|(key, value)| Some((text(key)?, value)));
                pairs
                    .map(|(key, value)| (key, self.node_to_json(value, depth + 1, budget)))
                    .collect()
            }
            YamlKind::Scalar { .. } | YamlKind::Alias(_) => self.scalar_to_json(node),
        }
    }

    fn scalar_to_json(&self, node: YamlId) -> Json {
        match self.tree.scalar(node) {
            None | Some((_, ScalarValue::Null)) => Json::Null,
            Some((_, ScalarValue::Bool(value))) => Json::Bool(value),
            Some((_, ScalarValue::Int(number))) => Json::from(number),
            Some((_, ScalarValue::Unsigned(number))) => Json::from(number),
            Some((_, ScalarValue::Float(number))) => {
                Number::from_f64(number).map_or(Json::Null, Json::Number)
            }
            Some((text, ScalarValue::Text | ScalarValue::Binary(_))) => {
                Json::String(text.to_owned())
            }
        }
    }

    fn either_field(&self, node: YamlId, names: [&str; 2]) -> Option<YamlId> {
        let found = names.iter().find_map(|name| field(self.tree, node, name));
        found.map(|found| self.tree.target(found))
    }

    fn text(&self, node: Option<YamlId>) -> Option<&str> {
        self.tree.scalar(node?).map(|(text, _)| text)
    }

    fn span(&self, node: YamlId) -> Span {
        let Span { start, end } = self.tree.span(node);
        Span { start: self.offset + start, end: self.offset + end }
    }
}

fn add_error(error: &FilterConfigError, at: Span, findings: &mut Findings) {
    let message = format!("`{}` {}", error.field, error.problem);
    findings.add_with_help(Code::BadModuleConfig, at, message, &error.fix);
}
