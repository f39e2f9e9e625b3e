//! Our own words beside the reference's variables: ours win, and of theirs what they leave counts.

use sluicegate::cli::ratelimit::read;
use sluicegate::config::settings::{Doors, Loaded, Settings, read as settle, table};

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
const PLAIN: &str = "redis://h:1";

/// What both come to; panics with the sentences where it does not start.
fn beside(ours: Pairs, theirs: Pairs) -> Loaded {
    let texts = |(name, text): &(&str, &str)| (format!("SLUICEGATE_{name}"), (*text).to_owned());
    let doors = Doors { environment: ours.iter().map(texts).collect(), ..Doors::default() };
    let theirs = environment("UNKNOWN_VARIABLE", "anything", theirs);
    let read = read(theirs, &doors.named_settings())
        .unwrap_or_else(|sentences| panic!("{ours:?}: {sentences:?}"));
    settle(&Doors { named: read.named, ..doors })
        .unwrap_or_else(|problems| panic!("{ours:?}: {problems:?}"))
}

/// A word of ours, variables of theirs, settings that nothing then heeds, and which variables a person hears of.
type Dropped = (Pairs, Pairs, &'static [&'static str], &'static [&'static str]);

/// The reference's keys where there are none.
const KEYS: Pairs = &[
    ("BACKEND_TYPE", "memcache"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "1048576"),
    ("CACHE_KEY_PREFIX", "p:"),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "10"),
];
const OF_KEYS: &[&str] =
    &["local_deny_cache", "reference_key_prefix", "stop_when_over", "expiry_jitter"];
const ABOUT_KEYS: &[&str] = &[KEYS[1].0, KEYS[2].0, KEYS[3].0, KEYS[4].0];

const DROPPED: &[Dropped] = &[
    (&[("STATS_SINK", "none")], &[], &["stats_address"], &[]),
    (&[("STATS_SINK", "log")], &[("STATSD_HOST", "s")], &["stats_address"], &["STATSD_HOST"]),
    (&[("GRPC_MAX_AGE", "0s")], &[], &["grpc_max_age_grace"], &[]),
    (
        &[("GRPC_TLS_CERT_FILE", "")],
        TLS,
        &["grpc_tls_cert_file", "grpc_tls_key_file"],
        &["GRPC_SERVER_TLS_KEY"],
    ),
    (
        &[("OTLP", "false")],
        &[("TRACING_ENABLED", "true"), ("TRACING_SERVICE_NAME", "n")],
        &["otlp_protocol", "otlp_counts", "otlp_service"],
        &["TRACING_ENABLED", "TRACING_SERVICE_NAME"],
    ),
    (&[("BACKEND", "memory")], KEYS, OF_KEYS, ABOUT_KEYS),
    (&[("COUNTER_KEYS", "injective"), ("BACKEND", PLAIN)], KEYS, OF_KEYS, ABOUT_KEYS),
    (
        &[("METRICS_NAMES", "own")],
        MAPPED,
        &["metrics_mapping", "metrics_milliseconds"],
        &[MAPPED[2].0, MAPPED[3].0],
    ),
    (
        &[("BACKEND", PLAIN)],
        SENTINELS,
        &["backend_sentinel_user", "backend_sentinel_password"],
        &["REDIS_SENTINEL_AUTH"],
    ),
    // What only the second of the two stores would heed goes with it.
    (
        &[("BACKEND", "memory")],
        &[
            ("REDIS_PERSECOND", "true"),
            ("REDIS_PERSECOND_SOCKET_TYPE", "tcp"),
            ("REDIS_PERSECOND_URL", "h:1"),
            ("REDIS_PERSECOND_TLS", "true"),
            ("REDIS_TLS_CACERT", "/ca"),
        ],
        &["backend_per_second", "backend_tls_ca_file"],
        &["REDIS_PERSECOND_URL", "REDIS_TLS_CACERT"],
    ),
    (
        &[("BACKEND", "memory")],
        &[("REDIS_AUTH_FILE", "/pw")],
        &["backend_password_file"],
        &["REDIS_AUTH_FILE"],
    ),
    (
        &[("BACKEND", "redis://:pw@h:1")],
        &[("REDIS_AUTH_FILE", "/pw")],
        &["backend_password_file"],
        &["REDIS_AUTH_FILE"],
    ),
    (&[("XDS_TLS", "false")], XDS_TLS, &["xds_tls_ca_file"], &[XDS_TLS[2].0]),
];

#[test]
fn what_nothing_would_heed_beside_our_own_word_is_dropped_and_who_set_it_hears_of_it_once() {
    let defaults = Settings::default();
    for (ours, theirs, settings, variables) in DROPPED {
        let loaded = beside(ours, theirs);
        for name in *settings {
            let row = table().iter().find(|row| row.name == *name).unwrap();
            assert_eq!(row.show(&loaded.settings), row.show(&defaults), "{ours:?}: {name}");
        }
        let mut told: Vec<_> =
            loaded.warnings.iter().map(|warning| warning.origin.to_string()).collect();
        let mut variables = variables.to_vec();
        told.sort();
        variables.sort_unstable();
        assert_eq!(told, variables, "{ours:?}: {:?}", loaded.warnings);
    }
}
