//! Examines an Envoy with Sluicegate's module, for `sluicegate doctor --envoy`.
//!
//! Guarantees:
//! - Reads only pages of the admin ports, each with a timeout.
//! - Judges each config of the filter as `validate --envoy-filter` does.
//! - Never sends the token of the service's admin port to Envoy.
//!
//! Not covered:
//! - Config dumps above 16 MiB, and admin ports with TLS.
//! - The service's other replicas: Envoy is connected to one.

mod config_dump;
mod evaluate;
mod facts;
mod fleet;

use std::collections::BTreeMap;

use serde_json::Value;

use super::evaluate::DoctorFinding;
use crate::cli::admin_client;
use config_dump::DumpedConfigs;
use facts::EnvoyFacts;
use fleet::FleetProxies;

/// The counters that show failures.
const FAILURE_COUNTERS: &str = r"\.(panics|fallback_allowed|fallback_denied)$";

/// The result of an examination.
#[derive(Debug)]
pub(super) struct ExaminedEnvoy {
    pub(super) version: String,
    pub(super) findings: Vec<DoctorFinding>,
}

/// Examines the Envoy whose admin port is at `admin`. `server` is the service's admin port.
///
/// # Errors
/// A message with the URL of the page that failed, the reason and the fix.
pub(super) fn examine(admin: &str, server: Option<&str>) -> Result<ExaminedEnvoy, String> {
    let admin = admin.trim_end_matches('/');
    let info = get_json(admin, "server_info")?;
    let dump = get_json(admin, "config_dump")?;
    let stats = admin_client::get_envoy_page(admin, "stats", &[("filter", FAILURE_COUNTERS)])?;
    let facts = EnvoyFacts {
        admin: admin.to_owned(),
        version: version_of(&info).ok_or_else(|| not_envoy(admin))?,
        has_dynamic_modules: has_dynamic_modules(&info),
        configs: DumpedConfigs::find(&dump),
        counters: read_counters(&String::from_utf8_lossy(&stats)),
        fleet: server.map(fetch_fleet).transpose()?,
    };
    Ok(ExaminedEnvoy { findings: evaluate::evaluate(&facts), version: facts.version })
}

fn get_json(admin: &str, path: &str) -> Result<Value, String> {
    let page = admin_client::get_envoy_page(admin, path, &[])?;
    serde_json::from_slice(&page).map_err(|error| format!("{admin}/{path}: invalid JSON: {error}"))
}

fn not_envoy(admin: &str) -> String {
    format!("{admin}/server_info has no version of Envoy; is --envoy the admin port of Envoy?")
}

/// Returns the version in `revision/1.40.0/Clean/RELEASE/BoringSSL`.
fn version_of(info: &Value) -> Option<String> {
    info.get("version")?.as_str()?.split('/').nth(1).map(str::to_owned)
}

/// Searches the filter's type in the list of Envoy's extensions. Without this list, returns `true`.
fn has_dynamic_modules(info: &Value) -> bool {
    let Some(extensions) = info.pointer("/node/extensions").and_then(Value::as_array) else {
        return true;
    };
    let types = extensions.iter().filter_map(|it| it.get("type_urls")?.as_array()).flatten();
    types.filter_map(Value::as_str).any(|name| name.ends_with(config_dump::FILTER_TYPE))
}

/// Reads lines such as `dynamicmodulescustom.panics: 2`.
fn read_counters(page: &str) -> BTreeMap<String, u64> {
    let counters = page.lines().filter_map(|line| line.rsplit_once(": "));
    counters.filter_map(|(name, count)| Some((name.to_owned(), count.parse().ok()?))).collect()
}

fn fetch_fleet(server: &str) -> Result<FleetProxies, String> {
    let page = admin_client::get_page(server, "fleet", &[])?;
    let page = serde_json::from_slice(&page)
        .map_err(|error| format!("{server}: invalid reply to /fleet: {error}"))?;
    Ok(FleetProxies::read(server, &page))
}
