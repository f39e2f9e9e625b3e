//! One configured filter: its config, its limiter and its counters.

use std::fs;

use sluicegate_descriptors::filter_config::{FilterConfig, FilterConfigError, RouteFilterConfig};

use crate::additions::{Additions, ScheduleFn, is_envoy_thread};
use crate::counters::{Counters, DefineCounter, Event, PlainEvent};
use crate::guard;
use crate::limiter::{self, Limiter};
use crate::stream::CounterSink;

/// The only filter of this module.
const FILTER_NAME: &str = "sluicegate_envoy";

/// One configured filter, which all its streams share.
pub(crate) struct FilterModule {
    pub(crate) config: FilterConfig,
    /// `None` in Envoy's validation mode, which checks no requests.
    pub(crate) limiter: Option<Limiter>,
    counters: Counters,
    /// `None` in Envoy 1.38, which adds to counters only in the hooks of streams.
    additions: Option<Additions>,
}

/// Envoy's part of a filter config, while the config is made.
pub(crate) struct EnvoyConfig<'e> {
    pub(crate) mode: RunMode,
    pub(crate) define: &'e mut DefineCounter<'e>,
    /// `None` if Envoy cannot add to counters outside of streams.
    pub(crate) schedule: Option<ScheduleFn>,
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
    pub(crate) fn new(name: &str, json: &str, envoy: EnvoyConfig<'_>) -> Result<Self, ConfigError> {
        check_filter_name(name)?;
        let config = FilterConfig::parse(json)?;
        let counters = Counters::define(envoy.define).ok_or(ConfigError::Counters)?;
        let proxy = config.name.clone().unwrap_or_else(host_name);
        let limiter = match envoy.mode {
            RunMode::Serve => Some(limiter::limiter_for(&config, &proxy)?),
            RunMode::Validate => None,
        };
        let schedule = envoy.schedule.zip(limiter.clone());
        let additions = schedule.map(|(schedule, limiter)| Additions::new(schedule, limiter));
        Ok(Self { config, limiter, counters, additions })
    }

    /// Counts events of a stream: in the next addition, or at once.
    pub(crate) fn count<'e>(
        &self,
        stream: &impl CounterSink,
        events: impl Iterator<Item = Event<'e>> + Clone,
    ) {
        let additions = self.additions.as_ref();
        if !additions.is_some_and(|additions| additions.sum(events.clone())) {
            events.for_each(|event| self.counters.add(stream, event, 1));
        }
    }

    /// Counts events outside of streams at the start of a stream. Does nothing if additions do it.
    pub(crate) fn count_outside_events(&self, stream: &impl CounterSink) {
        if self.additions.is_none() {
            self.add_outside_events(stream);
        }
    }

    /// Counts a panic in a hook of a stream: in the next addition, or at once.
    pub(crate) fn count_panic(&self, stream: &impl CounterSink) {
        match &self.additions {
            Some(additions) => additions.request(),
            None => self.add_outside_events(stream),
        }
    }

    /// Adds the events since the last call to Envoy's counters.
    pub(crate) fn add_events(&self, sink: &impl CounterSink) {
        let Some(additions) = &self.additions else { return };
        for (event, count) in additions.take().iter() {
            self.counters.add(sink, event, count);
        }
        self.add_outside_events(sink);
    }

    /// Adds the last events of the config.
    pub(crate) fn close(&self, sink: &impl CounterSink) {
        if is_envoy_thread() {
            self.add_events(sink);
        }
    }

    fn add_outside_events(&self, sink: &impl CounterSink) {
        for (event, count) in [
            (PlainEvent::Panic, guard::take_uncounted_panics()),
            (PlainEvent::BorrowedHit, limiter::take_borrowed_hits()),
            (PlainEvent::MemoryRefused, self.limiter.as_ref().map_or(0, Limiter::take_refused)),
        ] {
            if count != 0 {
                self.counters.add(sink, Event::Plain(event), count);
            }
        }
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
