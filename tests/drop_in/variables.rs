//! Tests of the effect of every environment variable of envoyproxy/ratelimit.

use std::collections::{BTreeSet, HashMap};

use sluicegate::cli::ratelimit::parse::{VariableKind, VariableValue, parse_variable};
use sluicegate::cli::ratelimit::table::{TABLE, VariableEffect};
use sluicegate::cli::ratelimit::{RatelimitSettings, read_environment};
use sluicegate::config::settings::{LoadedSettings, SettingsInput, read as settle, table};

enum Effect {
    /// The variable sets a setting: its name, and its value in `--print-config`.
    Is(&'static str, &'static str),
    /// Startup logs a note that contains this text.
    Notes(&'static str),
    /// Startup fails with an error that contains this text.
    Stops(&'static str),
}

use Effect::{Is, Notes, Stops};

/// A variable, its value, other variables that it needs, and its effect.
type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)], Effect);

type Variables = &'static [(&'static str, &'static str)];

const TRACED: Variables = &[("TRACING_ENABLED", "true")];
const TLS: Variables = &[
    ("GRPC_SERVER_USE_TLS", "true"),
    ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
    ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
];
const MUTUAL: Variables = &[TLS[0], TLS[1], TLS[2], ("GRPC_CLIENT_TLS_CACERT", "/certs/ca.crt")];
const XDS: Variables = &[("CONFIG_TYPE", "GRPC_XDS_SOTW")];
const XDS_TLS: Variables = &[XDS[0], ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")];
const XDS_PAIR: Variables = &[
    XDS_TLS[0],
    XDS_TLS[1],
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/c"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/k"),
];
const TREE: Variables = &[("RUNTIME_ROOT", "/"), ("RUNTIME_SUBDIRECTORY", "tmp")];
const TCP: Variables = &[("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "h:1")];
const REDIS_TLS: Variables = &[TCP[0], TCP[1], ("REDIS_TLS", "true")];
const REDIS_PAIR: Variables = &[
    TCP[0],
    TCP[1],
    ("REDIS_TLS", "true"),
    ("REDIS_TLS_CLIENT_CERT", "/c"),
    ("REDIS_TLS_CLIENT_KEY", "/k"),
];
const SENTINELS: Variables = &[("REDIS_TYPE", "sentinel"), ("REDIS_URL", "main,h:1,i:2")];
const SECOND: Variables = &[
    ("REDIS_PERSECOND", "true"),
    ("REDIS_PERSECOND_SOCKET_TYPE", "tcp"),
    ("REDIS_PERSECOND_URL", "h:1"),
];
const SECOND_SENTINELS: Variables = &[
    ("REDIS_PERSECOND", "true"),
    ("REDIS_PERSECOND_TYPE", "sentinel"),
    ("REDIS_PERSECOND_URL", "main,h:1"),
];
const PROMETHEUS: Variables = &[("USE_STATSD", "false"), ("USE_PROMETHEUS", "true")];
const DOG: Variables = &[("USE_STATSD", "false"), ("USE_DOG_STATSD", "true")];
const MOGRIFIED: Variables = &[
    DOG[0],
    DOG[1],
    ("DOG_STATSD_MOGRIFIER_A_PATTERN", "^a\\.(.*)"),
    ("DOG_STATSD_MOGRIFIER_A_NAME", "b"),
    ("DOG_STATSD_MOGRIFIER_A_TAGS", "t:$1"),
];

const CASES: &[Case] = &[
    ("HOST", "127.0.0.2", &[], Is("compat.listen.http_host", "\"127.0.0.2\"")),
    ("HOST", "localhost", &[], Is("compat.listen.http_host", "\"127.0.0.1\"")),
    ("HOST", "", &[], Is("compat.listen.http_host", "\"0.0.0.0\"")),
    ("PORT", "0x50", &[], Is("listen.http_port", "80")),
    ("PORT", "", &[], Stops("PORT takes a whole number")),
    ("PORT", "70000", &[], Stops("a port from 0 to 65535")),
    ("PORT", "tcp://10.0.0.1:80", &[], Stops("enableServiceLinks")),
    ("GRPC_HOST", "::1", &[], Is("compat.listen.grpc_host", "\"::1\"")),
    ("GRPC_PORT", "18081", &[], Is("listen.grpc_port", "18081")),
    ("GRPC_UDS", "/run/rl.sock", &[], Is("listen.grpc_socket", "\"/run/rl.sock\"")),
    ("DEBUG_HOST", "127.0.0.1", &[], Is("listen.admin_host", "\"127.0.0.1\"")),
    ("DEBUG_PORT", "16070", &[], Is("listen.admin_port", "16070")),
    ("GRPC_MAX_CONNECTION_AGE", "1m", &[], Is("listen.max_connection_age", "60s")),
    ("GRPC_MAX_CONNECTION_AGE", "10", &[], Stops("a duration with its unit")),
    (
        "GRPC_MAX_CONNECTION_AGE_GRACE",
        "1.5s",
        &[],
        Is("compat.listen.max_connection_age_grace", "1500ms"),
    ),
    ("GRPC_SERVER_USE_TLS", "true", TLS, Is("listen.tls.cert_file", "\"/certs/tls.crt\"")),
    ("GRPC_SERVER_USE_TLS", "true", &[], Stops("GRPC_SERVER_TLS_CERT must name a file")),
    ("GRPC_SERVER_USE_TLS", "yes", &[], Stops("takes true or false")),
    (
        "GRPC_SERVER_TLS_CERT",
        "/certs/tls.crt",
        TLS,
        Is("listen.tls.cert_file", "\"/certs/tls.crt\""),
    ),
    ("GRPC_SERVER_TLS_CERT", "/c", &[], Notes("plain text")),
    (
        "GRPC_SERVER_TLS_KEY",
        "/certs/other.key",
        TLS,
        Is("listen.tls.key_file", "\"/certs/other.key\""),
    ),
    ("GRPC_SERVER_TLS_KEY", "/elsewhere/tls.key", TLS, Stops("in the directory of")),
    ("GRPC_CLIENT_TLS_CACERT", "/ca", TLS, Is("listen.tls.client_ca_file", "\"/ca\"")),
    ("GRPC_CLIENT_TLS_SAN", "envoy.test", MUTUAL, Is("listen.tls.client_name", "\"envoy.test\"")),
    ("GRPC_CLIENT_TLS_SAN", "envoy.test", TLS, Notes("clients need no certificate")),
    ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt", TLS, Is("listen.tls.client_ca_file", "\"\"")),
    ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt", TLS, Notes("does not read it")),
    ("LOG_LEVEL", "Warning", &[], Is("telemetry.log.level", "warn")),
    ("LOG_LEVEL", "panic", &[], Is("telemetry.log.level", "error")),
    ("LOG_LEVEL", "", &[], Stops("LOG_LEVEL takes")),
    ("LOG_LEVEL", "bogus", &[], Stops("LOG_LEVEL takes")),
    ("LOG_FORMAT", "JSON", &[], Is("telemetry.log.format", "compat")),
    ("LOG_FORMAT", "anything", &[], Is("telemetry.log.format", "text")),
    ("CONFIG_TYPE", "GRPC_XDS_SOTW", &[], Is("limits.xds.server", "\"localhost:18000\"")),
    ("CONFIG_TYPE", "file", &[], Stops("FILE or GRPC_XDS_SOTW")),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "1", XDS, Is("limits.start_without", "true")),
    ("MERGE_DOMAIN_CONFIG", "T", &[], Is("limits.merge_domains", "true")),
    ("RUNTIME_ROOT", "/tmp", TREE, Is("limits.paths", "[\"/tmp/tmp\"]")),
    ("RUNTIME_ROOT", "/no/such/place", TREE, Stops("a directory that is there")),
    ("RUNTIME_SUBDIRECTORY", "tmp/x", TREE, Is("limits.paths", "[\"/tmp/x\"]")),
    ("RUNTIME_SUBDIRECTORY", "", TREE, Notes("nothing is limited")),
    ("RUNTIME_APPDIRECTORY", "app", TREE, Is("compat.limits.file_prefix", "\"app\"")),
    ("RUNTIME_IGNOREDOTFILES", "true", TREE, Is("compat.limits.dot_files", "false")),
    ("RUNTIME_WATCH_ROOT", "false", TREE, Stops("/tmp/config is none")),
    (
        "CONFIG_GRPC_XDS_NODE_ID",
        "envoy-ratelimit",
        XDS,
        Is("limits.xds.node_id", "\"envoy-ratelimit\""),
    ),
    (
        "CONFIG_GRPC_XDS_NODE_METADATA",
        "a=b=c,junk,d=e",
        XDS,
        Is("compat.xds.node_metadata", "\"a=b=c,d=e\""),
    ),
    (
        "CONFIG_GRPC_XDS_SERVER_URL",
        "envoy-gateway:18001",
        XDS,
        Is("limits.xds.server", "\"envoy-gateway:18001\""),
    ),
    ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001", &[], Notes("CONFIG_TYPE is FILE")),
    (
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        "1s",
        XDS,
        Notes("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL"),
    ),
    (
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
        "x-a:1,x-b:2",
        XDS,
        Is("compat.xds.headers", "\"(set, not shown)\""),
    ),
    ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-a:1:2", XDS, Stops("one colon in each")),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true", XDS, Is("limits.xds.use_tls", "true")),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/c", XDS_PAIR, Is("limits.xds.tls.cert_file", "\"/c\"")),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/k", XDS_PAIR, Is("limits.xds.tls.key_file", "\"/k\"")),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/ca", XDS_TLS, Is("limits.xds.tls.ca_file", "\"/ca\"")),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/ca", XDS_TLS, Is("compat.xds.system_cas", "true")),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/ca", XDS, Notes("plain text")),
    (
        "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
        "eg.test",
        XDS_TLS,
        Is("limits.xds.tls.server_name", "\"eg.test\""),
    ),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "2s", XDS, Is("compat.xds.backoff_min", "2s")),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "20s", XDS, Is("compat.xds.backoff_max", "20s")),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.7", XDS, Notes("double")),
    ("XDS_CLIENT_BACKOFF_JITTER", "false", XDS, Is("compat.xds.backoff_jitter", "false")),
    ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "1000", XDS, Is("compat.xds.max_message", "1000")),
    (
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        "true",
        &[],
        Is("limits.required_for_health", "true"),
    ),
    ("BACKEND_TYPE", "", &[], Is("compat.store.key_format", "compat")),
    ("BACKEND_TYPE", "memcache", &[], Stops("Set BACKEND_TYPE=redis and REDIS_URL")),
    ("BACKEND_TYPE", "Redis", &[], Stops("BACKEND_TYPE takes redis")),
    ("CACHE_KEY_PREFIX", "rl:prod:", &[], Is("compat.store.key_prefix", "\"rl:prod:\"")),
    ("EXPIRATION_JITTER_MAX_SECONDS", "10", &[], Is("compat.store.expiry_jitter", "10s")),
    ("EXPIRATION_JITTER_MAX_SECONDS", "-1", &[], Is("compat.store.expiry_jitter", "0s")),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "1_048_576", &[], Is("compat.store.deny_cache", "1048576")),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "1", &[], Is("compat.store.deny_cache", "524288")),
    ("NEAR_LIMIT_RATIO", "0.5", &[], Is("telemetry.metrics.near_limit_ratio", "0.5")),
    ("NEAR_LIMIT_RATIO", "1.5", &[], Is("telemetry.metrics.near_limit_ratio", "1")),
    ("NEAR_LIMIT_RATIO", "-1", &[], Notes("0 is taken")),
    (
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        "true",
        &[],
        Is("compat.store.stop_when_over", "true"),
    ),
    ("SHADOW_MODE", "t", &[], Is("answers.shadow_mode", "true")),
    ("QUOTA_MODE", "True", &[], Is("compat.limits.quota_mode", "true")),
    ("RESPONSE_DYNAMIC_METADATA", "1", &[], Is("answers.metadata", "true")),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", "true", &[], Is("answers.headers", "compat")),
    ("LIMIT_REQUEST_HEADERS_ENABLED", "true", &[], Is("compat.answers.request_headers", "true")),
    ("LIMIT_LIMIT_HEADER", "x-limit", &[], Is("compat.answers.limit_header", "\"x-limit\"")),
    ("LIMIT_REMAINING_HEADER", "x-left", &[], Is("compat.answers.remaining_header", "\"x-left\"")),
    ("LIMIT_RESET_HEADER", "", &[], Is("compat.answers.reset_header", "\"\"")),
    ("ENABLE_NEGATIVE_HITS", "true", &[], Is("limits.refunds", "true")),
    (
        "REDIS_SOCKET_TYPE",
        "tcp",
        &[("REDIS_URL", "redis:6379")],
        Is("store.url", "\"redis://redis:6379\""),
    ),
    (
        "REDIS_TYPE",
        "Cluster",
        &[("REDIS_URL", "a:1,b:2")],
        Is("store.url", "\"redis+cluster://a:1,b:2\""),
    ),
    ("REDIS_TYPE", "bogus", &[], Stops("SINGLE, SENTINEL or CLUSTER")),
    ("REDIS_TYPE", "sentinel", &[("REDIS_URL", "main")], Stops("at least one sentinel")),
    ("REDIS_URL", "/run/r.sock", &[], Is("store.url", "\"redis+unix:///run/r.sock\"")),
    ("REDIS_URL", "redis://u:p@h:1/5", &[], Is("store.url", "\"redis://u:***@h:1/5\"")),
    ("REDIS_URL", "redis://h:1?db=3", &[], Is("store.url", "\"redis://h:1/3\"")),
    ("REDIS_URL", "rediss://h:1", TCP, Stops("no other scheme")),
    ("REDIS_POOL_SIZE", "20", &[], Notes("no pool to size")),
    ("REDIS_AUTH", "us er:p@ss:w", TCP, Is("store.url", "\"redis://us er:***@h:1\"")),
    ("REDIS_AUTH_FILE", "/pw", &[], Is("store.password_file", "\"/pw\"")),
    ("REDIS_SENTINEL_AUTH", "u:p", SENTINELS, Is("store.sentinel.user", "\"u\"")),
    ("REDIS_TLS", "true", TCP, Is("store.url", "\"rediss://h:1\"")),
    ("REDIS_TLS", "true", &[], Stops("no meaning for a Unix socket")),
    ("REDIS_TLS_CLIENT_CERT", "/c", REDIS_PAIR, Is("store.tls.cert_file", "\"/c\"")),
    ("REDIS_TLS_CLIENT_KEY", "/k", REDIS_PAIR, Is("store.tls.key_file", "\"/k\"")),
    ("REDIS_TLS_CACERT", "/ca", REDIS_TLS, Is("store.tls.ca_file", "\"/ca\"")),
    ("REDIS_TLS_CACERT", "/ca", REDIS_TLS, Is("compat.store.system_cas", "true")),
    ("REDIS_TLS_CACERT", "", REDIS_TLS, Is("compat.store.system_cas", "false")),
    ("REDIS_TLS_CACERT", "/ca", TCP, Notes("plain text")),
    (
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
        "true",
        REDIS_TLS,
        Is("compat.store.any_server_name", "true"),
    ),
    ("REDIS_PIPELINE_WINDOW", "150us", &[], Notes("travel together")),
    ("REDIS_PIPELINE_LIMIT", "8", &[], Notes("travel together")),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "4", &[], Notes("at the same time")),
    ("REDIS_TIMEOUT", "250ms", &[], Is("store.deadline", "250ms")),
    ("REDIS_TIMEOUT", "0", &[], Notes("10s is taken")),
    ("REDIS_OP_TIMEOUT", "20ms", &[("REDIS_TIMEOUT", "5s")], Is("store.deadline", "20ms")),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "wait", &[], Notes("no pool to size")),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "create", &[], Stops("takes WAIT")),
    ("REDIS_STARTUP_INITIAL_INTERVAL", "1s", &[], Notes("without Redis")),
    ("REDIS_STARTUP_MAX_INTERVAL", "1s", &[], Notes("without Redis")),
    ("REDIS_STARTUP_MAX_ELAPSED_TIME", "1s", &[], Notes("without Redis")),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true", &[], Is("store.required_for_health", "true")),
    ("REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", "true", &[], Notes("always left")),
    ("REDIS_AWS_IAM_AUTH", "true", &[], Stops("REDIS_AUTH_FILE")),
    (
        "REDIS_PERSECOND",
        "true",
        &[],
        Is(
            "compat.store.per_second_url",
            "\"redis+unix:///var/run/nutcracker/ratelimitpersecond.sock\"",
        ),
    ),
    (
        "REDIS_PERSECOND_SOCKET_TYPE",
        "tcp",
        SECOND,
        Is("compat.store.per_second_url", "\"redis://h:1\""),
    ),
    (
        "REDIS_PERSECOND_TYPE",
        "cluster",
        SECOND,
        Is("compat.store.per_second_url", "\"redis+cluster://h:1\""),
    ),
    ("REDIS_PERSECOND_URL", "i:2", SECOND, Is("compat.store.per_second_url", "\"redis://i:2\"")),
    ("REDIS_PERSECOND_POOL_SIZE", "20", SECOND, Notes("no pool to size")),
    (
        "REDIS_PERSECOND_AUTH",
        "p",
        SECOND,
        Is("compat.store.per_second_url", "\"redis://:***@h:1\""),
    ),
    (
        "REDIS_PERSECOND_SENTINEL_AUTH",
        "p",
        SECOND_SENTINELS,
        Is("compat.store.sentinel_password", "\"(set, not shown)\""),
    ),
    ("REDIS_PERSECOND_TLS", "true", SECOND, Is("compat.store.per_second_url", "\"rediss://h:1\"")),
    ("REDIS_PERSECOND_PIPELINE_WINDOW", "1ms", SECOND, Notes("travel together")),
    ("REDIS_PERSECOND_PIPELINE_LIMIT", "1", SECOND, Notes("travel together")),
    ("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "2", SECOND, Notes("at the same time")),
    ("REDIS_PERSECOND_TIMEOUT", "1s", SECOND, Notes("one deadline")),
    ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "ERROR", SECOND, Stops("takes WAIT")),
    ("MEMCACHE_HOST_PORT", "a:1,b:2", &[], Notes("no memcached")),
    ("MEMCACHE_SRV", "_m._tcp.x", &[], Notes("no memcached")),
    ("MEMCACHE_SRV_REFRESH", "5", &[], Stops("a duration with its unit")),
    ("MEMCACHE_MAX_IDLE_CONNS", "4", &[], Notes("no memcached")),
    ("MEMCACHE_TLS", "true", &[], Notes("no memcached")),
    ("MEMCACHE_TLS_CLIENT_CERT", "/c", &[], Notes("no memcached")),
    ("MEMCACHE_TLS_CLIENT_KEY", "/k", &[], Notes("no memcached")),
    ("MEMCACHE_TLS_CACERT", "/ca", &[], Notes("no memcached")),
    ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "true", &[], Notes("no memcached")),
    ("DISABLE_STATS", "true", PROMETHEUS, Is("listen.metrics_port", "\"\"")),
    ("USE_STATSD", "true", &[], Is("compat.stats.sink", "statsd")),
    ("USE_STATSD", "false", &[], Is("compat.stats.sink", "log")),
    ("USE_DOG_STATSD", "true", DOG, Is("compat.stats.sink", "dogstatsd")),
    ("USE_DOG_STATSD", "true", &[], Stops("cannot go with USE_STATSD")),
    ("USE_PROMETHEUS", "true", PROMETHEUS, Is("compat.metrics.names", "all")),
    ("USE_PROMETHEUS", "true", &[], Stops("cannot go with USE_STATSD")),
    ("STATSD_HOST", "statsd.test", &[], Is("compat.stats.address", "\"statsd.test:8125\"")),
    ("STATSD_PORT", "9125", &[], Is("compat.stats.address", "\"localhost:9125\"")),
    ("STATSD_PROTOCOL", "udp", &[], Is("compat.stats.protocol", "udp")),
    ("STATS_FLUSH_INTERVAL", "1s", &[], Is("compat.stats.interval", "1s")),
    ("EXTRA_TAGS", "env:prod,empty:,z:1", &[], Is("compat.stats.tags", "\"env=prod,z=1\"")),
    ("EXTRA_TAGS", "env:prod", PROMETHEUS, Notes("labels in Prometheus")),
    (
        "USE_DOG_STATSD_MOGRIFIERS",
        "A",
        MOGRIFIED,
        Is(
            "compat.stats.mogrifiers",
            r#"[{"pattern":"^a\\.(.*)","name":"b","tags":[["t","$1"]]}]"#,
        ),
    ),
    (
        "USE_DOG_STATSD_MOGRIFIERS",
        "A,B",
        MOGRIFIED,
        Stops("DOG_STATSD_MOGRIFIER_B_PATTERN must not be empty"),
    ),
    ("PROMETHEUS_ADDR", ":19001", PROMETHEUS, Is("listen.metrics_port", "19001")),
    (
        "PROMETHEUS_ADDR",
        "127.0.0.1:1",
        PROMETHEUS,
        Is("compat.listen.metrics_host", "\"127.0.0.1\""),
    ),
    ("PROMETHEUS_PATH", "/m", PROMETHEUS, Is("compat.metrics.path", "\"/m\"")),
    ("PROMETHEUS_MAPPER_YAML", "/m.yaml", PROMETHEUS, Is("compat.metrics.mapping", "\"/m.yaml\"")),
    (
        "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
        "true",
        PROMETHEUS,
        Is("compat.metrics.milliseconds", "true"),
    ),
    ("TRACING_ENABLED", "true", &[], Is("telemetry.otlp.enabled", "true")),
    ("TRACING_ENABLED", "true", &[], Is("compat.tracing.metrics", "false")),
    ("TRACING_EXPORTER_PROTOCOL", "grpc", &[], Notes("TRACING_ENABLED is not on")),
    ("TRACING_EXPORTER_PROTOCOL", "grpc", TRACED, Is("compat.tracing.protocol", "grpc")),
    ("TRACING_EXPORTER_PROTOCOL", "http", TRACED, Is("compat.tracing.protocol", "http/protobuf")),
    ("TRACING_EXPORTER_PROTOCOL", "zipkin", TRACED, Stops("takes http or grpc")),
    ("TRACING_SERVICE_NAME", "n", TRACED, Is("compat.tracing.service_name", "\"n\"")),
    (
        "TRACING_SERVICE_NAMESPACE",
        "n",
        TRACED,
        Is("compat.tracing.attributes", "\"service.namespace=n\""),
    ),
    (
        "TRACING_SERVICE_INSTANCE_ID",
        "i",
        TRACED,
        Is("compat.tracing.attributes", "\"service.instance.id=i\""),
    ),
    ("TRACING_SAMPLING_RATE", "0.5", TRACED, Is("compat.tracing.sampling_ratio", "0.5")),
    ("TRACING_SAMPLING_RATE", "2", TRACED, Is("compat.tracing.sampling_ratio", "1")),
];

/// The environment variables of a test case, with a `RUNTIME_ROOT` that exists.
pub fn environment(variable: &str, text: &str, others: &[(&str, &str)]) -> HashMap<String, String> {
    let places = [("RUNTIME_ROOT", "/"), ("RUNTIME_SUBDIRECTORY", "tmp")];
    let all = places.into_iter().chain(others.iter().copied()).chain([(variable, text)]);
    all.map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
}

fn settled(read: &RatelimitSettings) -> Result<LoadedSettings, String> {
    let input =
        SettingsInput { ratelimit_values: read.settings.clone(), ..SettingsInput::default() };
    settle(&input)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

fn wrong(&(variable, text, others, ref effect): &Case) -> Option<String> {
    let read = read_environment(environment(variable, text, others), &BTreeSet::new());
    let problem = match (&read, effect) {
        (Err(sentences), Stops(part)) => {
            (!sentences.iter().any(|it| it.contains(part))).then(|| sentences.join("\n"))
        }
        (Ok(_), Stops(_)) => Some("it starts".to_owned()),
        (Err(sentences), _) => Some(sentences.join("\n")),
        (Ok(read), Notes(part)) => {
            let is_wanted = |note: &sluicegate::cli::ratelimit::VariableNote| {
                note.variable == variable && note.line.contains(part)
            };
            (!read.notes.iter().any(is_wanted)).then(|| format!("{:?}", read.notes))
        }
        (Ok(read), Is(setting, shown)) => match settled(read) {
            Err(problems) => Some(problems),
            Ok(loaded) => {
                let row = table().iter().find(|row| row.name == *setting).unwrap();
                let is = row.show(&loaded.settings);
                (is != *shown).then(|| format!("`{setting}` is {is}"))
            }
        },
    };
    problem.map(|problem| format!("{variable}={text}: {problem}"))
}

#[test]
fn a_refused_header_value_is_not_printed() {
    let credential = "authorization:Basic user:open-sesame";
    let variable = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
    let Err(sentences) = read_environment(environment(variable, credential, XDS), &BTreeSet::new())
    else {
        panic!("taken")
    };
    let refused = sentences.join("\n");
    assert!(refused.contains("one colon in each") && !refused.contains("sesame"), "{refused}");
}

#[test]
fn every_variable_has_its_expected_effect() {
    let wrong: Vec<_> = CASES.iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_variable_has_a_test_case_and_known_settings() {
    let tested: BTreeSet<_> = CASES.iter().map(|case| case.0).collect();
    let known: BTreeSet<_> = TABLE.iter().map(|row| row.name).collect();
    assert_eq!(known, tested);
    assert_eq!(known.len(), TABLE.len(), "a variable twice");
    for row in TABLE {
        assert!(
            row.default.is_empty() || parse_variable(row.kind, row.default).is_some(),
            "{}",
            row.name
        );
        let VariableEffect::Settings(names) = row.effect else { continue };
        for name in names.split(", ") {
            assert!(table().iter().any(|setting| setting.name == name), "{}: {name}", row.name);
        }
    }
}

#[test]
fn defaults_match_envoyproxy_ratelimit_and_log_no_notes() {
    let environment = environment("UNKNOWN_VARIABLE", "anything", &[]);
    let read = read_environment(environment, &BTreeSet::new())
        .unwrap_or_else(|sentences| panic!("{sentences:?}"));
    assert_eq!(read.notes, []);
    let settings = settled(&read).unwrap().settings;
    assert_eq!(
        (settings.listen.http_port, settings.listen.grpc_port, settings.listen.admin_port),
        (8080, 8081, 6070)
    );
    assert_eq!(settings.store.deadline.0, 10_000_000_000);
    assert_eq!(settings.listen.max_connection_age.0, 24 * 3_600_000_000_000);
    assert!(
        !settings.telemetry.otlp.enabled
            && settings.listen.metrics_port.is_none()
            && settings.compat.limits.dot_files
            && settings.limits.start_without
    );
}

#[test]
fn all_startup_errors_are_reported_together() {
    let environment = environment("PORT", "", &[("CONFIG_TYPE", "x"), ("LOG_LEVEL", "y")]);
    let Err(sentences) = read_environment(environment, &BTreeSet::new()) else {
        panic!("it starts")
    };
    assert_eq!(sentences.len(), 3, "{sentences:?}");
}

#[test]
fn variable_values_parse_as_in_envoyproxy_ratelimit() {
    let int = |text| parse_variable(VariableKind::Int, text);
    assert_eq!(int("010"), Some(VariableValue::Int(8)));
    assert_eq!(int("0b11"), Some(VariableValue::Int(3)));
    assert_eq!(int("0x_1_0"), Some(VariableValue::Int(16)));
    assert_eq!(int("-5"), Some(VariableValue::Int(-5)));
    assert_eq!(int("1_048_576"), Some(VariableValue::Int(1_048_576)));
    assert_eq!(int("-1_0"), Some(VariableValue::Int(-10)));
    assert_eq!(int("0_7"), Some(VariableValue::Int(7)));
    let parted = ["_1", "1_", "1__0", "-_1", "_", "0_", "0_8", "0x1_", "0x__1", "0b_"];
    for text in ["", " 1", "0x", "1.0", "--1", "0x-1", "09"].into_iter().chain(parted) {
        assert_eq!(int(text), None, "{text}");
    }
    let float = |text| parse_variable(VariableKind::Float, text);
    for (text, value) in [("0.5", 0.5), ("0.2_5", 0.25), ("-1_0.2_5", -10.25), ("1e0_1", 10.0)] {
        assert_eq!(float(text), Some(VariableValue::Float(value)), "{text}");
    }
    for text in ["", "_1", "1_", "1__0", "1_.5", "0._5", "1_e1", "in_f"] {
        assert_eq!(float(text), None, "{text}");
    }
    let nanos = |text| parse_variable(VariableKind::Duration, text);
    for (text, value) in [
        ("0", 0),
        ("150us", 150_000),
        ("1h30m", 5_400_000_000_000),
        ("1.5s", 1_500_000_000),
        (".5ms", 500_000),
        ("-2ns", -2),
    ] {
        assert_eq!(nanos(text), Some(VariableValue::Duration(value)), "{text}");
    }
    for text in ["", "10", "s", "1d", "1 s", ".s", "1s2"] {
        assert_eq!(nanos(text), None, "{text}");
    }
    let words = ["1", "t", "T", "true", "TRUE", "True", "0", "f", "F", "false", "FALSE", "False"];
    assert!(words.iter().all(|word| parse_variable(VariableKind::Bool, word).is_some()));
    assert!(
        ["", "yes", "tRUE"].iter().all(|word| parse_variable(VariableKind::Bool, word).is_none())
    );
    assert_eq!(parse_variable(VariableKind::List, " "), Some(VariableValue::List(Vec::new())));
    assert_eq!(
        parse_variable(VariableKind::List, "a, b"),
        Some(VariableValue::List(vec!["a".into(), " b".into()]))
    );
    assert!(
        ["a", "a:b:c", "a:b,"].iter().all(|map| parse_variable(VariableKind::Map, map).is_none())
    );
}

const PAGE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/docs/migrate-from-envoyproxy-ratelimit.md");
const OPENING: &str = "<!-- variables -->\n";
const END: &str = "<!-- end -->";

#[test]
fn migration_page_lists_every_variable_and_default() {
    let row = |row: &sluicegate::cli::ratelimit::table::VariableRow| {
        let default =
            if row.default.is_empty() { String::new() } else { format!("`{}`", row.default) };
        let means = match row.effect {
            VariableEffect::Settings(names) => {
                names.split(", ").map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
            }
            VariableEffect::NoEffect(line) => line.to_owned(),
        };
        format!("| `{}` | {default} | {means} |\n", row.name)
    };
    let rows: String = TABLE.iter().map(row).collect();
    let wanted = format!("| variable | default | what becomes of it |\n|---|---|---|\n{rows}");
    let text = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = text.split_once(OPENING).unwrap();
    let (found, after) = rest.split_once(END).unwrap();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(PAGE, format!("{before}{OPENING}{wanted}{END}{after}")).unwrap();
    } else {
        assert_eq!(found, wanted, "stale: write it with `BLESS=1 cargo test drop_in`");
    }
}
