//! The config of the filter that enforces limits inside Envoy.
//!
//! ```
//! use sluicegate_descriptors::filter_config::FilterConfig;
//!
//! let config = FilterConfig::parse(
//!     r#"{"service": {"address": "sluicegate:8081"}, "domain": "shop",
//!         "descriptors": [[{"remote_address": {}}]], "deadline": "5ms"}"#,
//! )?;
//! assert_eq!(config.deadline.as_millis(), 5);
//! let error = FilterConfig::parse(r#"{"service": {"address": "sluicegate"}}"#).unwrap_err();
//! assert_eq!(error.field, "service.address");
//! # Ok::<(), sluicegate_descriptors::filter_config::FilterConfigError>(())
//! ```
//!
//! Guarantees:
//! - Parsing opens no file and no connection.
//! - Every error names the field and the fix.
//! - Unknown fields, and fields without an effect, are errors.
//!
//! Not covered:
//! - The limits, which the service has.
//! - Whether the files of `service.tls` exist.

pub(crate) mod error;
mod memory;
mod service;
mod timeout;

pub use error::FilterConfigError;
pub use service::{ServiceAddress, ServiceConfig, ServiceTls};

use std::time::Duration;

use serde::Deserialize;

use super::{Action, PathSpelling};

/// The config of one filter: the service, and the check of each request.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterConfig {
    /// The connection to Sluicegate.
    pub service: ServiceConfig,
    /// The domain of the checks.
    pub domain: String,
    /// The lists of actions; each list builds one descriptor.
    pub descriptors: Vec<Vec<Action>>,
    /// The spelling of the path in the header `:path`.
    #[serde(default)]
    pub path: PathSpelling,
    /// The longest time that a request waits for the service: 1 ms to 1 s, by default 20 ms.
    #[serde(default = "timeout::default", deserialize_with = "timeout::deserialize")]
    pub deadline: Duration,
    /// The decision without the service.
    #[serde(default)]
    pub failure: FailureMode,
    /// The HTTP status of denied requests: 400 to 599, by default 429.
    #[serde(default = "default_status")]
    pub status: u16,
    /// The rate limit headers of responses.
    #[serde(default)]
    pub headers: HeaderStyle,
    /// The name of this proxy for operators, by default the host name.
    #[serde(default)]
    pub name: Option<String>,
    /// The memory for rules, leased hits, waiting requests and buckets, in bytes: 4 MiB to 64 GiB,
    /// by default 64 MiB. Filters of one service share it.
    #[serde(default = "memory::default", deserialize_with = "memory::deserialize")]
    pub memory: usize,
}

/// The config of one route, virtual host or route configuration.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteFilterConfig {
    /// The lists of actions that replace those of the filter.
    #[serde(default)]
    pub descriptors: Option<Vec<Vec<Action>>>,
    /// `false` to check no rate limits on this route.
    #[serde(default = "default_enabled")]
    pub enabled: bool,
}

/// The decision for a request if the service does not answer in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureMode {
    /// The request passes, as with Envoy's rate limit filter.
    #[default]
    Allow,
    /// The request gets a 503.
    Deny,
}

/// The rate limit headers of responses. The names are those of the setting `answers.headers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeaderStyle {
    /// No headers.
    #[default]
    None,
    /// The three headers of envoyproxy/ratelimit.
    Compat,
    /// The two headers of the IETF draft.
    Draft,
    /// All of them.
    All,
}

const fn default_status() -> u16 {
    429
}

const fn default_enabled() -> bool {
    true
}

impl FilterConfig {
    /// Parses the JSON that Envoy passes for the Struct in `filter_config`.
    ///
    /// # Errors
    /// The first unknown, missing or invalid field.
    pub fn parse(json: &str) -> Result<Self, FilterConfigError> {
        let config: Self = error::parse_json(json)?;
        config.service.validate()?;
        if config.domain.is_empty() {
            return Err(FilterConfigError::new(
                "domain",
                "is empty",
                "write the domain of your limits",
            ));
        }
        validate_descriptors(&config.descriptors)?;
        if !(400..=599).contains(&config.status) {
            let problem = format!("is {}, which is no error", config.status);
            return Err(FilterConfigError::new(
                "status",
                problem,
                "write a status from 400 to 599",
            ));
        }
        if config.name.as_ref().is_some_and(|name| name.is_empty() || 128 < name.len()) {
            let fix = "write 1 to 128 bytes, or remove it";
            return Err(FilterConfigError::new("name", "has the wrong length", fix));
        }
        Ok(config)
    }
}

impl RouteFilterConfig {
    /// Parses the JSON that Envoy passes for the Struct in `filter_config` of a route.
    ///
    /// # Errors
    /// The first unknown or invalid field, or a field without an effect.
    pub fn parse(json: &str) -> Result<Self, FilterConfigError> {
        let config: Self = error::parse_json(json)?;
        match &config.descriptors {
            Some(_) if !config.enabled => {
                let problem = "has no effect with `enabled: false`";
                Err(FilterConfigError::new("descriptors", problem, "remove one of the two fields"))
            }
            None if config.enabled => {
                let fix = "write `descriptors`, or `enabled: false`, or remove the route's config";
                Err(FilterConfigError::new("descriptors", "is missing", fix))
            }
            Some(descriptors) => validate_descriptors(descriptors).map(|()| config),
            None => Ok(config),
        }
    }
}

fn validate_descriptors(descriptors: &[Vec<Action>]) -> Result<(), FilterConfigError> {
    if descriptors.is_empty() {
        return Err(FilterConfigError::new("descriptors", "is empty", "add a list of actions"));
    }
    for (at, actions) in descriptors.iter().enumerate() {
        if actions.is_empty() {
            let field = format!("descriptors[{at}]");
            return Err(FilterConfigError::new(
                field,
                "has no action",
                "add an action, or remove the list",
            ));
        }
        let indexed = actions.iter().enumerate();
        indexed.into_iter().try_for_each(|(index, action)| validate_action(at, index, action))?;
    }
    Ok(())
}

/// Envoy's module interface returns texts only of the first level of the dynamic metadata.
fn validate_action(at: usize, index: usize, action: &Action) -> Result<(), FilterConfigError> {
    match action {
        Action::Metadata { metadata_key, .. } if metadata_key.path.len() != 1 => {
            let field = format!("descriptors[{at}][{index}].metadata.metadata_key.path");
            let problem = format!("has {} segments; the filter reads one", metadata_key.path.len());
            let fix = "write the text to a field at the top of its metadata namespace";
            Err(FilterConfigError::new(field, problem, fix))
        }
        _ => Ok(()),
    }
}
