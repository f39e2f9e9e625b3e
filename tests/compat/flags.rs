//! Translates recorded environment variables of envoyproxy/ratelimit to flags of `sluicegate
//! serve`.

use std::collections::BTreeMap;

/// Flags for every replay: counters are shared as in the recording, the process keeps running
/// without rules if its first configuration is refused, and metadata has no entry of ours.
const ALWAYS: [&str; 6] = [
    "--compat-store-key-format",
    "compat",
    "--limits-required-at-start",
    "false",
    "--limits-overrides",
    "replace",
];

/// Each row is an environment variable, its flag, and the conversion of its value.
const FLAGS: [(&str, &str, Value); 10] = [
    ("LIMIT_RESPONSE_HEADERS_ENABLED", "--answers-headers", Value::Reference),
    ("LIMIT_LIMIT_HEADER", "--compat-answers-limit-header", Value::Text),
    ("LIMIT_REMAINING_HEADER", "--compat-answers-remaining-header", Value::Text),
    ("LIMIT_RESET_HEADER", "--compat-answers-reset-header", Value::Text),
    ("RESPONSE_DYNAMIC_METADATA", "--answers-metadata", Value::Bool),
    ("SHADOW_MODE", "--answers-shadow-mode", Value::Bool),
    ("QUOTA_MODE", "--compat-limits-quota-mode", Value::Bool),
    ("MERGE_DOMAIN_CONFIG", "--limits-merge-domains", Value::Bool),
    ("NEAR_LIMIT_RATIO", "--telemetry-near-limit", Value::Text),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "--limits-required-for-health", Value::Bool),
];

/// Environment variables that affect only key names and expiry in Redis.
const STORE_ONLY: [&str; 2] = ["CACHE_KEY_PREFIX", "EXPIRATION_JITTER_MAX_SECONDS"];

enum Value {
    Text,
    Bool,
    /// A Boolean variable whose flag accepts one of several names, such as `compat`.
    Reference,
}

pub fn from_env(env: &BTreeMap<String, String>) -> Vec<String> {
    ALWAYS.map(str::to_owned).into_iter().chain(among(&FLAGS, env)).collect()
}

fn among(known: &[(&str, &str, Value)], env: &BTreeMap<String, String>) -> Vec<String> {
    let set = known.iter().filter_map(|(variable, flag, value)| {
        Some([(*flag).to_owned(), value.of(env.get(*variable)?)])
    });
    set.flatten().collect()
}

/// Returns `true` if the replay with the memory store supports this environment variable.
pub fn is_mapped(variable: &str) -> bool {
    STORE_ONLY.contains(&variable) || FLAGS.iter().any(|(known, ..)| *known == variable)
}

impl Value {
    fn of(&self, text: &str) -> String {
        let is_true = matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True");
        match self {
            Self::Text => text.to_owned(),
            Self::Bool => is_true.to_string(),
            Self::Reference => (if is_true { "compat" } else { "none" }).to_owned(),
        }
    }
}

#[test]
fn boolean_variables_become_flag_values() {
    let env = [("SHADOW_MODE", "F"), ("LIMIT_RESPONSE_HEADERS_ENABLED", "true")];
    let env = env.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
    let expected = ["--answers-headers", "compat", "--answers-shadow-mode", "false"];
    assert_eq!(from_env(&env)[ALWAYS.len()..], expected);
    assert!(is_mapped("CACHE_KEY_PREFIX") && !is_mapped("LOCAL_CACHE_SIZE_IN_BYTES"));
}
