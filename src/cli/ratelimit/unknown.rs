//! Warns about environment variables that are probably misspelled.
//!
//! Guarantees:
//! - Variables that Kubernetes sets for Services cause no warning.
//! - A value is never printed.
//!
//! Not covered:
//! - `SLUICEGATE_*` (see [`crate::config::settings`]).

use super::env_reader::EnvReader;
use super::table::TABLE;
use crate::config::settings::nearest_within;

/// The first parts of envoyproxy/ratelimit's variables that few other programs use.
const FAMILIES: [&str; 12] = [
    "REDIS_",
    "MEMCACHE_",
    "RUNTIME_",
    "CONFIG_",
    "XDS_",
    "GRPC_",
    "STATSD_",
    "LOG_",
    "LIMIT_",
    "TRACING_",
    "USE_",
    "PROMETHEUS_",
];

/// Last words of variables of other programs, and the word that envoyproxy/ratelimit uses.
const SYNONYMS: [(&str, &str); 11] = [
    ("PASSWORD", "AUTH"),
    ("PASS", "AUTH"),
    ("USERNAME", "AUTH"),
    ("USER", "AUTH"),
    ("HOST", "URL"),
    ("PORT", "URL"),
    ("ADDR", "URL"),
    ("ADDRESS", "URL"),
    ("DB", "URL"),
    ("DATABASE", "URL"),
    ("SSL", "TLS"),
];

/// The shortest variable outside [`FAMILIES`] that can be a misspelled one.
const MIN_OTHER_LEN: usize = 10;

pub(super) fn read(reader: &mut EnvReader<'_>) {
    for variable in reader.unknown_variables() {
        if is_service_link(&variable, reader.raw(&variable)) {
            continue;
        }
        let is_in_family = FAMILIES.iter().any(|family| variable.starts_with(family));
        let near = near_variable(&variable, is_in_family);
        let line = match near {
            Some(near) => format!("unknown variable, no effect; did you mean {near}?"),
            None if is_in_family => "unknown variable, no effect".to_owned(),
            None => continue,
        };
        reader.add_note(&variable, &line);
    }
}

fn near_variable(variable: &str, is_in_family: bool) -> Option<&'static str> {
    let most_edits = if is_in_family { variable.len() / 4 } else { 2 };
    if !is_in_family && variable.len() < MIN_OTHER_LEN {
        return None;
    }
    let known = || TABLE.iter().map(|row| row.name);
    let synonym = SYNONYMS.iter().find_map(|(word, ours)| {
        let name = format!("{}{ours}", variable.strip_suffix(word)?);
        known().find(|known| *known == name)
    });
    synonym.or_else(|| nearest_within(variable, most_edits, known()))
}

/// Returns `true` for a variable that Kubernetes sets for a Service, such as `REDIS_PORT` with the
/// value `tcp://10.0.0.1:6379`.
fn is_service_link(name: &str, text: &str) -> bool {
    let is_address = ["tcp://", "udp://", "sctp://"].iter().any(|start| text.starts_with(start));
    let parts = ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT_"];
    is_address || parts.iter().any(|part| name.contains(part))
}
