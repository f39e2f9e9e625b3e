//! Tests of warnings about variables that are probably misspelled.

use std::collections::BTreeSet;

use sluicegate::cli::ratelimit::read_environment;

use super::environment;

/// The note about a variable with this value, if there is one.
fn note(variable: &str, value: &str) -> Option<String> {
    let read = read_environment(environment(variable, value, &[]), &BTreeSet::new()).ok().unwrap();
    read.notes.into_iter().find(|note| note.variable == variable).map(|note| note.line)
}

#[test]
fn misspelled_variable_gets_a_suggestion() {
    for (variable, meant) in [
        ("REDIS_PASSWORD", "REDIS_AUTH"),
        ("REDIS_PERSECOND_PASSWORD", "REDIS_PERSECOND_AUTH"),
        ("REDIS_HOST", "REDIS_URL"),
        ("REDIS_SSL", "REDIS_TLS"),
        ("REDIS_POOL_SIZ", "REDIS_POOL_SIZE"),
        ("LOG_LEVLE", "LOG_LEVEL"),
        ("USE_PROMETEUS", "USE_PROMETHEUS"),
        ("NEAR_LIMIT_RATOI", "NEAR_LIMIT_RATIO"),
    ] {
        let wanted = format!("unknown variable, no effect; did you mean {meant}?");
        assert_eq!(note(variable, "secret"), Some(wanted), "{variable}");
    }
}

#[test]
fn unfamiliar_variable_of_a_known_family_warns_without_a_suggestion() {
    assert_eq!(note("REDIS_ENDPOINT_MODE", "x").as_deref(), Some("unknown variable, no effect"));
}

#[test]
fn other_variables_cause_no_warning() {
    for (variable, value) in [
        ("PATH", "/bin"),
        ("HOSTNAME", "h"),
        ("HOME", "/"),
        ("DEBUG_MODE", "1"),
        ("KUBERNETES_PORT", "tcp://10.0.0.1:443"),
        ("REDIS_PORT", "tcp://10.0.0.1:6379"),
        ("REDIS_PORT_6379_TCP_ADDR", "10.0.0.1"),
        ("REDIS_SERVICE_HOST", "10.0.0.1"),
        ("SLUICEGATE_LOG_LEVLE", "debug"),
        ("DOG_STATSD_MOGRIFIER_A_PATTERN", "x"),
    ] {
        assert_eq!(note(variable, value), None, "{variable}");
    }
}
