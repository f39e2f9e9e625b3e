//! Evaluates the facts about an Envoy, and returns the findings. Uses no I/O.
//!
//! Guarantees:
//! - Each finding has the problem, its consequence and the fix.

use super::super::evaluate::{DoctorFinding, DoctorSeverity};
use super::facts::EnvoyFacts;
use super::fleet::{FleetProxies, ProxyListing};
use crate::config::diagnostic::{Diagnostic, Severity};
use crate::config::envoy_filter::examine_filters;

/// The versions with which the module is tested.
const OLDEST_VERSION: (u32, u32) = (1, 38);
const NEWEST_VERSION: (u32, u32) = (1, 40);

/// Severity, code, message and fix.
type Found = (DoctorSeverity, &'static str, String, String);

/// Returns the findings about an Envoy, errors first.
pub(super) fn evaluate(facts: &EnvoyFacts) -> Vec<DoctorFinding> {
    let mut found = Vec::new();
    found.extend(check_version(&facts.version));
    found.extend(check_presence(facts));
    found.extend(facts.configs.rejections.iter().map(|reason| rejection(reason)));
    found.extend(check_configs(facts));
    found.extend(check_counters(facts));
    found.extend(facts.fleet.as_ref().and_then(|fleet| check_connection(facts, fleet)));
    let finding = |(severity, code, message, help): Found| DoctorFinding {
        severity,
        code,
        at: facts.admin.clone(),
        message,
        help,
    };
    let mut findings: Vec<_> = found.into_iter().map(finding).collect();
    findings.sort_by_key(|finding| finding.severity != DoctorSeverity::Error);
    findings
}

fn check_version(text: &str) -> Option<Found> {
    let mut numbers = text.split('.').map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next()?, numbers.next()?);
    if version < OLDEST_VERSION {
        let message = format!("Envoy {text} cannot load the module");
        let help = "use Envoy 1.38 to 1.40, or Envoy's rate limit filter".to_owned();
        return Some((DoctorSeverity::Error, "version", message, help));
    }
    let message = format!("the module is not tested with Envoy {text}");
    let help = "use Envoy 1.38 to 1.40, or a newer Sluicegate".to_owned();
    (NEWEST_VERSION < version).then_some((DoctorSeverity::Warning, "version", message, help))
}

fn check_presence(facts: &EnvoyFacts) -> Option<Found> {
    if !facts.has_dynamic_modules {
        let message = "this Envoy was built without dynamic modules".to_owned();
        let help = "use Envoy's own images, or Envoy's rate limit filter".to_owned();
        return Some((DoctorSeverity::Error, "extension", message, help));
    }
    let is_missing = facts.configs.filters.is_empty();
    let message = "no HTTP filter is `sluicegate_envoy`: no request is limited inside Envoy";
    let help = "add the filter of config/envoy/module.yaml to the HTTP connection manager";
    is_missing.then(|| (DoctorSeverity::Error, "filter", message.to_owned(), help.to_owned()))
}

fn rejection(reason: &str) -> Found {
    let message = format!("Envoy rejected an update and keeps the old config: {reason}");
    let help = "correct the config; `validate --envoy-filter` shows its errors".to_owned();
    (DoctorSeverity::Error, "rejected", message, help)
}

/// Returns the findings of `validate --envoy-filter` about each config.
fn check_configs(facts: &EnvoyFacts) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for config in facts.configs.all() {
        let findings = examine_filters("config_dump", config.to_string().as_bytes());
        for finding in findings.iter().filter_map(config_finding) {
            if !found.contains(&finding) {
                found.push(finding);
            }
        }
    }
    found
}

fn config_finding(diagnostic: &Diagnostic) -> Option<Found> {
    let (severity, code) = match diagnostic.severity() {
        Severity::Error => (DoctorSeverity::Error, "config"),
        Severity::Warning => (DoctorSeverity::Warning, "do_not_close"),
        Severity::Note => return None,
    };
    let help = diagnostic.help.clone().unwrap_or_default();
    Some((severity, code, diagnostic.message.clone(), help))
}

fn check_counters(facts: &EnvoyFacts) -> Vec<Found> {
    let namespaces = facts.configs.namespaces();
    let count = |name: &str| -> u64 {
        let names = namespaces.iter().map(|namespace| format!("{namespace}.{name}"));
        names.filter_map(|name| facts.counters.get(&name)).sum()
    };
    let [panics, allowed, denied] = ["panics", "fallback_allowed", "fallback_denied"].map(count);
    let mut found = Vec::new();
    if 0 < panics {
        let message = format!("{panics} panics in the module since Envoy started");
        let help = "report the panic in Envoy's log; requests followed `failure`".to_owned();
        found.push((DoctorSeverity::Error, "panics", message, help));
    }
    if 0 < allowed || 0 < denied {
        let message = format!(
            "without an answer of Sluicegate, {allowed} requests were allowed and {denied} denied \
             since Envoy started"
        );
        let help = "check `service.address`, the service's health, and `deadline`".to_owned();
        found.push((DoctorSeverity::Warning, "fallback", message, help));
    }
    found
}

/// The service refuses proxies with another protocol, so a listed proxy fits.
fn check_connection(facts: &EnvoyFacts, fleet: &FleetProxies) -> Option<Found> {
    let server = &fleet.server;
    let found = match fleet.search(&facts.configs.proxy_names(), &facts.admin) {
        ProxyListing::Listed => return None,
        ProxyListing::Unidentified => {
            let count = fleet.count();
            let message = format!("{server} lists {count} proxies, but not by this address");
            let help = "set `name` in the filter's config, or pass Envoy's IP address to --envoy";
            (DoctorSeverity::Warning, message, help)
        }
        ProxyListing::Missing if 1 < fleet.replicas => {
            let message = format!("this Envoy is not connected to the replica {server}");
            (DoctorSeverity::Warning, message, "pass --server of the other replicas: one lists it")
        }
        ProxyListing::Missing => {
            let message =
                format!("this Envoy is not connected to {server}: requests follow `failure`");
            let help = "check `service.address`, TLS and network policies; see the service's log for \
                        a refused protocol";
            (DoctorSeverity::Error, message, help)
        }
    };
    let (severity, message, help) = found;
    Some((severity, "connection", message, help.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::{DoctorSeverity, EnvoyFacts, check_version, evaluate};

    #[test]
    fn only_tested_envoy_versions_have_no_finding() {
        let severity = |version| check_version(version).map(|(severity, ..)| severity);
        for supported in ["1.38.0", "1.39.3", "1.40.0", "1.40.0-dev"] {
            assert_eq!(severity(supported), None, "{supported}");
        }
        for old in ["1.36.4", "1.37.9", "0.99.0"] {
            assert_eq!(severity(old), Some(DoctorSeverity::Error), "{old}");
        }
        for new in ["1.41.0", "2.0.0"] {
            assert_eq!(severity(new), Some(DoctorSeverity::Warning), "{new}");
        }
    }

    #[test]
    fn an_envoy_without_dynamic_modules_is_an_error() {
        let codes = |has_dynamic_modules| {
            let version = "1.40.0".to_owned();
            let facts = EnvoyFacts { version, has_dynamic_modules, ..EnvoyFacts::default() };
            evaluate(&facts).iter().map(|finding| finding.code).collect::<Vec<_>>()
        };
        assert_eq!((codes(false), codes(true)), (vec!["extension"], vec!["filter"]));
    }
}
