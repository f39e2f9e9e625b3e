//! One configured filter: its config, its limiter and its counters.

use std::fs;

use sluicegate_descriptors::filter_config::{FilterConfig, FilterConfigError, RouteFilterConfig};

use crate::counters::{Counters, DefineCounter, UncountedEvents};
use crate::guard;
use crate::limiter::{self, Limiter};
use crate::stream::EnvoyStream;

/// The only filter of this module.
const FILTER_NAME: &str = "sluicegate_envoy";

/// One configured filter, which all its streams share.
#[derive(Debug)]
pub(crate) struct FilterModule {
    pub(crate) config: FilterConfig,
    /// `None` in Envoy's validation mode, which checks no requests.
    pub(crate) limiter: Option<Limiter>,
    pub(crate) counters: Counters,
}

/// The reason why a config is rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("`filter_name` is `{0}`; write `{FILTER_NAME}`")]
    FilterName(String),
    #[error(transparent)]
    Config(#[from] FilterConfigError),
    #[error("`service` {0}")]
    Limiter(#[from] sluicegate_proxy::StartError),
    #[error(
        "Envoy refused to define the filter's counters; see the limits on statistics in its bootstrap"
    )]
    Counters,
}

/// The task of the process: to serve requests, or only to validate a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunMode {
    Serve,
    Validate,
}

impl FilterModule {
    /// Reads the config of a filter, and connects to the service in [`RunMode::Serve`].
    pub(crate) fn new(
        name: &str,
        json: &str,
        mode: RunMode,
        define: &mut DefineCounter<'_>,
    ) -> Result<Self, ConfigError> {
        check_filter_name(name)?;
        let config = FilterConfig::parse(json)?;
        let counters = Counters::define(define).ok_or(ConfigError::Counters)?;
        let proxy = config.name.clone().unwrap_or_else(host_name);
        let limiter = match mode {
            RunMode::Serve => Some(limiter::limiter_for(&config, &proxy)?),
            RunMode::Validate => None,
        };
        Ok(Self { config, limiter, counters })
    }

    /// Counts events that happen also outside of streams.
    pub(crate) fn count_events(&self, stream: &impl EnvoyStream) {
        let events = UncountedEvents {
            panics: guard::take_uncounted_panics(),
            borrowed_hits: limiter::take_borrowed_hits(),
            memory_refused: self.limiter.as_ref().map_or(0, Limiter::take_refused),
        };
        self.counters.count_events(stream, &events);
    }
}

/// Reads the config of a route.
pub(crate) fn read_route_config(name: &str, json: &str) -> Result<RouteFilterConfig, ConfigError> {
    check_filter_name(name)?;
    Ok(RouteFilterConfig::parse(json)?)
}

fn check_filter_name(name: &str) -> Result<(), ConfigError> {
    if name == FILTER_NAME { Ok(()) } else { Err(ConfigError::FilterName(name.to_owned())) }
}

fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "envoy".to_owned() } else { name.to_owned() }
}
