//! The facts about one Envoy, from its admin port and that of the service.
//!
//! Guarantees:
//! - The facts are data: evaluation needs no I/O.

use std::collections::BTreeMap;

use super::config_dump::DumpedConfigs;
use super::fleet::FleetProxies;

/// The facts about one Envoy.
#[derive(Debug, Default)]
pub(super) struct EnvoyFacts {
    /// The URL of Envoy's admin port.
    pub(super) admin: String,
    /// The version, such as `1.40.0`.
    pub(super) version: String,
    /// `false` if Envoy was built without dynamic modules.
    pub(super) has_dynamic_modules: bool,
    pub(super) configs: DumpedConfigs,
    /// The counters that show failures, by name.
    pub(super) counters: BTreeMap<String, u64>,
    /// The proxies of the service, if its admin port is known.
    pub(super) fleet: Option<FleetProxies>,
}
