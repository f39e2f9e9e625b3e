//! Tests of `SLUICEGATE_*` environment variables together with envoyproxy/ratelimit's variables.
//!
//! Guarantees:
//! - A `SLUICEGATE_*` variable overrides envoyproxy/ratelimit's variable of the same meaning.
//! - Other variables of envoyproxy/ratelimit still apply if their setting is in use.

use sluicegate::cli::ratelimit::{RatelimitSettings, read_environment};
use sluicegate::config::settings::{
    LoadedSettings, Settings, SettingsInput, read as settle, table,
};

use super::variables::environment;

type Pairs = &'static [(&'static str, &'static str)];

const SENTINELS: Pairs =
    &[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "main,h:1"), ("REDIS_SENTINEL_AUTH", "u:p")];
const TLS: Pairs = &[
    ("GRPC_SERVER_USE_TLS", "true"),
    ("GRPC_SERVER_TLS_CERT", "/c/tls.crt"),
    ("GRPC_SERVER_TLS_KEY", "/c/tls.key"),
];
const XDS_TLS: Pairs = &[
    ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/ca"),
];
const MAPPED: Pairs = &[
    ("USE_STATSD", "false"),
    ("USE_PROMETHEUS", "true"),
    ("PROMETHEUS_MAPPER_YAML", "/m.yaml"),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "true"),
];
const MOGRIFIED: Pairs = &[
    ("USE_DOG_STATSD_MOGRIFIERS", "A"),
    ("DOG_STATSD_MOGRIFIER_A_PATTERN", "a"),
    ("DOG_STATSD_MOGRIFIER_A_NAME", "b"),
    ("DOG_STATSD_MOGRIFIER_A_TAGS", "t:1"),
];
const PLAIN: &str = "redis://h:1";

fn load_both(ours: Pairs, theirs: Pairs) -> (RatelimitSettings, LoadedSettings) {
    let texts = |(name, text): &(&str, &str)| (format!("SLUICEGATE_{name}"), (*text).to_owned());
    let input =
        SettingsInput { environment: ours.iter().map(texts).collect(), ..SettingsInput::default() };
    let theirs = environment("UNKNOWN_VARIABLE", "anything", theirs);
    let read = read_environment(theirs, &input.explicit_setting_names())
        .unwrap_or_else(|sentences| panic!("{ours:?}: {sentences:?}"));
    let loaded = settle(&SettingsInput { ratelimit_values: read.settings.clone(), ..input })
        .unwrap_or_else(|problems| panic!("{ours:?}: {problems:?}"));
    (read, loaded)
}

/// `SLUICEGATE_*` variables, envoyproxy/ratelimit's variables, settings without effect, and
/// variables with a warning.
type UnusedCase = (Pairs, Pairs, &'static [&'static str], &'static [&'static str]);

/// Environment variables that only apply to envoyproxy/ratelimit's counter keys.
const KEYS: Pairs = &[
    ("BACKEND_TYPE", "memcache"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "1048576"),
    ("CACHE_KEY_PREFIX", "p:"),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "10"),
];
const KEY_SETTINGS: &[&str] = &[
    "compat.store.deny_cache",
    "compat.store.key_prefix",
    "compat.store.stop_when_over",
    "compat.store.expiry_jitter",
];
const KEY_WARNINGS: &[&str] = &[KEYS[1].0, KEYS[2].0, KEYS[3].0, KEYS[4].0];

const UNUSED: &[UnusedCase] = &[
    (&[("COMPAT_STATS_SINK", "none")], &[], &["compat.stats.address"], &[]),
    (
        &[("COMPAT_STATS_SINK", "log")],
        &[("STATSD_HOST", "s")],
        &["compat.stats.address"],
        &["STATSD_HOST"],
    ),
    (
        &[("COMPAT_STATS_SINK", "statsd")],
        MOGRIFIED,
        &["compat.stats.mogrifiers"],
        &[MOGRIFIED[0].0],
    ),
    (
        &[("LISTEN_MAX_CONNECTION_AGE", "never")],
        &[],
        &["compat.listen.max_connection_age_grace"],
        &[],
    ),
    (
        &[("LISTEN_TLS_CERT_FILE", "")],
        TLS,
        &["listen.tls.cert_file", "listen.tls.key_file"],
        &["GRPC_SERVER_TLS_KEY"],
    ),
    (
        &[("TELEMETRY_OTLP_EXPORT", "none")],
        &[("TRACING_ENABLED", "true"), ("TRACING_SERVICE_NAME", "n")],
        &["compat.tracing.protocol", "compat.tracing.attributes"],
        &["TRACING_SERVICE_NAME"],
    ),
    (&[("STORE_URL", "memory")], KEYS, KEY_SETTINGS, KEY_WARNINGS),
    (&[("COMPAT_STORE_KEY_FORMAT", "own"), ("STORE_URL", PLAIN)], KEYS, KEY_SETTINGS, KEY_WARNINGS),
    (
        &[("COMPAT_METRICS_NAMES", "own")],
        MAPPED,
        &["compat.metrics.mapping", "compat.metrics.milliseconds"],
        &[MAPPED[2].0, MAPPED[3].0],
    ),
    (
        &[("STORE_URL", PLAIN)],
        SENTINELS,
        &["store.sentinel.user", "compat.store.sentinel_password"],
        &["REDIS_SENTINEL_AUTH"],
    ),
    (
        &[("STORE_URL", PLAIN)],
        &[("REDIS_TLS_CACERT", "/ca"), ("REDIS_TLS_CLIENT_CERT", "/c")],
        &["store.tls.ca_file", "compat.system_cas", "store.tls.cert_file"],
        &["REDIS_TLS_CACERT", "REDIS_TLS_CLIENT_CERT"],
    ),
    // If the Redis for per-second limits is unused, so are its TLS settings.
    (
        &[("STORE_URL", "memory")],
        &[
            ("REDIS_PERSECOND", "true"),
            ("REDIS_PERSECOND_SOCKET_TYPE", "tcp"),
            ("REDIS_PERSECOND_URL", "h:1"),
            ("REDIS_PERSECOND_TLS", "true"),
            ("REDIS_TLS_CACERT", "/ca"),
        ],
        &["compat.store.per_second_url", "store.tls.ca_file"],
        &["REDIS_PERSECOND_URL", "REDIS_TLS_CACERT"],
    ),
    (
        &[("STORE_URL", "memory")],
        &[("REDIS_AUTH_FILE", "/pw")],
        &["store.password_file"],
        &["REDIS_AUTH_FILE"],
    ),
    (
        &[("STORE_URL", "redis://:pw@h:1")],
        &[("REDIS_AUTH_FILE", "/pw")],
        &["store.password_file"],
        &["REDIS_AUTH_FILE"],
    ),
    (&[("LIMITS_XDS_USE_TLS", "false")], XDS_TLS, &["limits.xds.tls.ca_file"], &[XDS_TLS[2].0]),
];

#[test]
fn overriding_a_setting_warns_once_for_each_variable_without_effect() {
    let defaults = Settings::default();
    for (ours, theirs, settings, variables) in UNUSED {
        let (_, loaded) = load_both(ours, theirs);
        for name in *settings {
            let row = table().iter().find(|row| row.name == *name).unwrap();
            assert_eq!(row.show(&loaded.settings), row.show(&defaults), "{ours:?}: {name}");
        }
        let mut warned: Vec<_> =
            loaded.warnings.iter().map(|warning| warning.origin.to_string()).collect();
        let mut variables = variables.to_vec();
        warned.sort();
        variables.sort_unstable();
        assert_eq!(warned, variables, "{ours:?}: {:?}", loaded.warnings);
    }
}

/// `SLUICEGATE_*` variables, envoyproxy/ratelimit's variables, a setting, and its value in
/// `--print-config`.
type CombinedCase = (Pairs, Pairs, &'static str, &'static str);

const OUR_TLS: Pairs =
    &[("LISTEN_TLS_CERT_FILE", "/ours/tls.crt"), ("LISTEN_TLS_KEY_FILE", "/ours/tls.key")];
const CLIENTS: Pairs = &[("GRPC_CLIENT_TLS_CACERT", "/ca"), ("GRPC_CLIENT_TLS_SAN", "envoy.test")];

const COMBINED: &[CombinedCase] = &[
    (OUR_TLS, CLIENTS, "listen.tls.client_ca_file", "\"/ca\""),
    (OUR_TLS, CLIENTS, "listen.tls.client_name", "\"envoy.test\""),
    (
        &[("LISTEN_TLS_CLIENT_CA_FILE", "/ours/ca")],
        &[TLS[0], TLS[1], TLS[2], CLIENTS[1]],
        "listen.tls.client_name",
        "\"envoy.test\"",
    ),
    (
        &[("STORE_URL", "rediss://h:1")],
        &[("REDIS_TLS_CACERT", "/ca")],
        "store.tls.ca_file",
        "\"/ca\"",
    ),
    (
        &[("STORE_URL", "rediss://h:1")],
        &[("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true")],
        "compat.store.any_server_name",
        "true",
    ),
    (
        &[("COMPAT_STORE_PER_SECOND_URL", "rediss://h:1")],
        &[("REDIS_TLS_CACERT", "/ca")],
        "store.tls.ca_file",
        "\"/ca\"",
    ),
    (
        &[("STORE_URL", "redis+sentinel://h:1/main")],
        &[("REDIS_SENTINEL_AUTH", "u:p")],
        "store.sentinel.user",
        "\"u\"",
    ),
    (
        &[("COMPAT_STORE_PER_SECOND_URL", "redis+sentinel://h:1/main")],
        &[("REDIS_PERSECOND_SENTINEL_AUTH", "u:p")],
        "compat.store.sentinel_password",
        "\"(set, not shown)\"",
    ),
    (
        &[("LIMITS_XDS_USE_TLS", "true")],
        &[XDS_TLS[0], XDS_TLS[2]],
        "limits.xds.tls.ca_file",
        "\"/ca\"",
    ),
    (
        &[("LISTEN_MAX_CONNECTION_AGE", "1h")],
        &[("GRPC_MAX_CONNECTION_AGE", "0"), ("GRPC_MAX_CONNECTION_AGE_GRACE", "5s")],
        "compat.listen.max_connection_age_grace",
        "5s",
    ),
    (
        &[("COMPAT_STATS_SINK", "statsd")],
        &[("USE_STATSD", "false"), ("USE_PROMETHEUS", "true"), ("STATSD_HOST", "s")],
        "compat.stats.address",
        "\"s:8125\"",
    ),
    (
        &[("COMPAT_STATS_SINK", "dogstatsd")],
        MOGRIFIED,
        "compat.stats.mogrifiers",
        r#"[{"pattern":"a","name":"b","tags":[["t","1"]]}]"#,
    ),
];

#[test]
fn envoyproxy_variables_complete_sluicegate_settings() {
    for (ours, theirs, setting, shown) in COMBINED {
        let (read, loaded) = load_both(ours, theirs);
        let row = table().iter().find(|row| row.name == *setting).unwrap();
        assert_eq!(row.show(&loaded.settings), *shown, "{ours:?}: {setting}");
        assert_eq!(read.notes, [], "{ours:?}");
        assert_eq!(loaded.warnings, [], "{ours:?}");
    }
}

#[test]
fn overridden_memcached_backend_logs_only_its_unused_address() {
    let theirs = &[("BACKEND_TYPE", "memcache"), ("MEMCACHE_HOST_PORT", "m:11211")];
    let (read, _) = load_both(&[("STORE_URL", "memory")], theirs);
    let [note] = &read.notes[..] else { panic!("{:?}", read.notes) };
    assert_eq!(note.variable, "MEMCACHE_HOST_PORT");
    assert!(note.line.contains("`store.url` selects the store"), "{}", note.line);
}
