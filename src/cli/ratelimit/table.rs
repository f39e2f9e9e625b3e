//! Lists the environment variables of envoyproxy/ratelimit, with their defaults and the settings
//! that they determine.
//!
//! Not in the table: `DOG_STATSD_MOGRIFIER_*`, whose names are not fixed (see [`super::stats`]),
//! and `OTEL_*`, which the exporter reads.

use super::parse::VariableKind;

/// An environment variable of envoyproxy/ratelimit.
#[derive(Debug)]
pub struct VariableRow {
    /// The name of the environment variable.
    pub name: &'static str,
    /// The type of the variable's value.
    pub kind: VariableKind,
    /// The default in envoyproxy/ratelimit, as text. Empty text, 0 and `false` are an empty text.
    pub default: &'static str,
    /// The effect of the variable in Sluicegate.
    pub effect: VariableEffect,
}

/// The effect of an environment variable of envoyproxy/ratelimit in Sluicegate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariableEffect {
    /// The variable determines these settings (comma-separated), alone or with other variables.
    Settings(&'static str),
    /// The variable has no effect. Contains the explanation for the log.
    NoEffect(&'static str),
}

const fn row(
    name: &'static str,
    kind: VariableKind,
    default: &'static str,
    effect: VariableEffect,
) -> VariableRow {
    VariableRow { name, kind, default, effect }
}

use VariableEffect::{NoEffect, Settings as Is};
use VariableKind::{Bool, Duration, Float, Int, List, Map, Text};

const ONE_CONNECTION: &str =
    "no effect: Sluicegate pipelines all calls over one connection, so there is no pool";
const ALWAYS_BATCHED: &str =
    "no effect: Sluicegate always batches checks that arrive during a store call";
const ALWAYS_PARALLEL: &str =
    "no effect: Sluicegate always calls the nodes of a Redis Cluster in parallel";
const STARTS_WITHOUT_REDIS: &str =
    "no effect: Sluicegate starts without Redis, and retries the connection without end";
const NO_MEMCACHED: &str =
    "no effect: memcached is not supported, and `store.url` selects the store";

/// All environment variables of envoyproxy/ratelimit that compatibility mode knows.
pub static TABLE: &[VariableRow] = &[
    // Variables for listeners and the log.
    row("HOST", Text, "0.0.0.0", Is("listen.host")),
    row("PORT", Int, "8080", Is("listen.http_port")),
    row("GRPC_HOST", Text, "0.0.0.0", Is("compat.listen.grpc_host")),
    row("GRPC_PORT", Int, "8081", Is("listen.grpc_port")),
    row("GRPC_UDS", Text, "", Is("listen.grpc_socket")),
    row("DEBUG_HOST", Text, "0.0.0.0", Is("listen.admin_host")),
    row("DEBUG_PORT", Int, "6070", Is("listen.admin_port")),
    row("GRPC_MAX_CONNECTION_AGE", Duration, "24h", Is("listen.max_connection_age")),
    row(
        "GRPC_MAX_CONNECTION_AGE_GRACE",
        Duration,
        "1h",
        Is("compat.listen.max_connection_age_grace"),
    ),
    row("GRPC_SERVER_USE_TLS", Bool, "false", Is("listen.tls.cert_file")),
    row("GRPC_SERVER_TLS_CERT", Text, "", Is("listen.tls.cert_file")),
    row("GRPC_SERVER_TLS_KEY", Text, "", Is("listen.tls.key_file")),
    row("GRPC_CLIENT_TLS_CACERT", Text, "", Is("listen.tls.client_ca_file")),
    row("GRPC_CLIENT_TLS_SAN", Text, "", Is("listen.tls.client_name")),
    row(
        "GRPC_SERVER_TLS_CA_CERT",
        Text,
        "",
        NoEffect(
            "no effect, as in envoyproxy/ratelimit; GRPC_CLIENT_TLS_CACERT requires client \
             certificates",
        ),
    ),
    row("LOG_LEVEL", Text, "WARN", Is("telemetry.log.level")),
    row("LOG_FORMAT", Text, "text", Is("telemetry.log.format")),
    // Variables for the source of limits.
    row("CONFIG_TYPE", Text, "FILE", Is("limits.paths, limits.xds.server")),
    row("FORCE_START_WITHOUT_INITIAL_CONFIG", Bool, "false", Is("limits.required_at_start")),
    row("MERGE_DOMAIN_CONFIG", Bool, "false", Is("limits.merge_domains")),
    row("RUNTIME_ROOT", Text, "/srv/runtime_data/current", Is("limits.paths")),
    row("RUNTIME_SUBDIRECTORY", Text, "", Is("limits.paths")),
    row("RUNTIME_APPDIRECTORY", Text, "config", Is("limits.paths, compat.limits.file_prefix")),
    row("RUNTIME_IGNOREDOTFILES", Bool, "false", Is("compat.limits.dot_files")),
    row(
        "RUNTIME_WATCH_ROOT",
        Bool,
        "true",
        Is("compat.limits.file_prefix, compat.limits.optional_paths"),
    ),
    row("CONFIG_GRPC_XDS_NODE_ID", Text, "default", Is("limits.xds.node_id")),
    row("CONFIG_GRPC_XDS_NODE_METADATA", Text, "", Is("compat.xds.node_metadata")),
    row("CONFIG_GRPC_XDS_SERVER_URL", Text, "localhost:18000", Is("limits.xds.server")),
    row(
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        Duration,
        "3s",
        NoEffect(
            "no effect, as in envoyproxy/ratelimit; set XDS_CLIENT_BACKOFF_INITIAL_INTERVAL \
             instead",
        ),
    ),
    row("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", Map, "", Is("compat.xds.headers")),
    row("CONFIG_GRPC_XDS_SERVER_USE_TLS", Bool, "false", Is("limits.xds.use_tls")),
    row("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", Text, "", Is("limits.xds.tls.cert_file")),
    row("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", Text, "", Is("limits.xds.tls.key_file")),
    row(
        "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
        Text,
        "",
        Is("limits.xds.tls.ca_file, compat.system_cas"),
    ),
    row("CONFIG_GRPC_XDS_SERVER_TLS_SAN", Text, "", Is("limits.xds.tls.server_name")),
    row("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", Duration, "10s", Is("compat.xds.backoff_min")),
    row("XDS_CLIENT_BACKOFF_MAX_INTERVAL", Duration, "60s", Is("compat.xds.backoff_max")),
    row(
        "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
        Float,
        "0.5",
        NoEffect(
            "no effect: waits double up to XDS_CLIENT_BACKOFF_MAX_INTERVAL, and restart after a \
             valid response",
        ),
    ),
    row("XDS_CLIENT_BACKOFF_JITTER", Bool, "true", Is("compat.xds.backoff_jitter")),
    row("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", Int, "0", Is("compat.xds.max_message")),
    row("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", Bool, "false", Is("limits.required_for_health")),
    // Variables for counting, Redis, statistics and traces.
    row("BACKEND_TYPE", Text, "redis", Is("store.url")),
    row("CACHE_KEY_PREFIX", Text, "", Is("compat.store.key_prefix")),
    row("EXPIRATION_JITTER_MAX_SECONDS", Int, "300", Is("compat.store.expiry_jitter")),
    row("LOCAL_CACHE_SIZE_IN_BYTES", Int, "0", Is("compat.store.deny_cache")),
    row("NEAR_LIMIT_RATIO", Float, "0.8", Is("telemetry.near_limit")),
    row(
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        Bool,
        "false",
        Is("compat.store.stop_when_over"),
    ),
    row("SHADOW_MODE", Bool, "false", Is("answers.shadow_mode")),
    row("QUOTA_MODE", Bool, "false", Is("compat.limits.quota_mode")),
    row("RESPONSE_DYNAMIC_METADATA", Bool, "false", Is("answers.metadata")),
    row("LIMIT_RESPONSE_HEADERS_ENABLED", Bool, "false", Is("answers.headers")),
    row("LIMIT_REQUEST_HEADERS_ENABLED", Bool, "false", Is("compat.answers.request_headers")),
    row("LIMIT_LIMIT_HEADER", Text, "RateLimit-Limit", Is("compat.answers.limit_header")),
    row(
        "LIMIT_REMAINING_HEADER",
        Text,
        "RateLimit-Remaining",
        Is("compat.answers.remaining_header"),
    ),
    row("LIMIT_RESET_HEADER", Text, "RateLimit-Reset", Is("compat.answers.reset_header")),
    row("ENABLE_NEGATIVE_HITS", Bool, "false", Is("limits.refunds")),
    row("REDIS_SOCKET_TYPE", Text, "unix", Is("store.url")),
    row("REDIS_TYPE", Text, "SINGLE", Is("store.url")),
    row("REDIS_URL", Text, "/var/run/nutcracker/ratelimit.sock", Is("store.url")),
    row("REDIS_POOL_SIZE", Int, "10", NoEffect(ONE_CONNECTION)),
    row("REDIS_AUTH", Text, "", Is("store.url")),
    row("REDIS_AUTH_FILE", Text, "", Is("store.password_file")),
    row("REDIS_SENTINEL_AUTH", Text, "", Is("compat.store.sentinel_password")),
    row("REDIS_TLS", Bool, "false", Is("store.url")),
    row("REDIS_TLS_CLIENT_CERT", Text, "", Is("store.tls.cert_file")),
    row("REDIS_TLS_CLIENT_KEY", Text, "", Is("store.tls.key_file")),
    row("REDIS_TLS_CACERT", Text, "", Is("store.tls.ca_file, compat.system_cas")),
    row("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", Bool, "false", Is("compat.store.any_server_name")),
    row("REDIS_PIPELINE_WINDOW", Duration, "0", NoEffect(ALWAYS_BATCHED)),
    row("REDIS_PIPELINE_LIMIT", Int, "0", NoEffect(ALWAYS_BATCHED)),
    row("REDIS_CLUSTER_PIPELINE_PARALLELISM", Int, "1", NoEffect(ALWAYS_PARALLEL)),
    row("REDIS_TIMEOUT", Duration, "10s", Is("store.timeout")),
    row("REDIS_OP_TIMEOUT", Duration, "0", Is("store.timeout")),
    row("REDIS_POOL_ON_EMPTY_BEHAVIOR", Text, "WAIT", NoEffect(ONE_CONNECTION)),
    row("REDIS_STARTUP_INITIAL_INTERVAL", Duration, "1s", NoEffect(STARTS_WITHOUT_REDIS)),
    row("REDIS_STARTUP_MAX_INTERVAL", Duration, "30s", NoEffect(STARTS_WITHOUT_REDIS)),
    row("REDIS_STARTUP_MAX_ELAPSED_TIME", Duration, "0", NoEffect(STARTS_WITHOUT_REDIS)),
    row("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", Bool, "false", Is("store.required_for_health")),
    row(
        "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR",
        Bool,
        "false",
        NoEffect("no effect: Sluicegate always reconnects to the primary if Redis is read-only"),
    ),
    row("REDIS_AWS_IAM_AUTH", Bool, "false", Is("store.password_file")),
    row("REDIS_PERSECOND", Bool, "false", Is("compat.store.per_second_url")),
    row("REDIS_PERSECOND_SOCKET_TYPE", Text, "unix", Is("compat.store.per_second_url")),
    row("REDIS_PERSECOND_TYPE", Text, "SINGLE", Is("compat.store.per_second_url")),
    row(
        "REDIS_PERSECOND_URL",
        Text,
        "/var/run/nutcracker/ratelimitpersecond.sock",
        Is("compat.store.per_second_url"),
    ),
    row("REDIS_PERSECOND_POOL_SIZE", Int, "10", NoEffect(ONE_CONNECTION)),
    row("REDIS_PERSECOND_AUTH", Text, "", Is("compat.store.per_second_url")),
    row("REDIS_PERSECOND_SENTINEL_AUTH", Text, "", Is("compat.store.sentinel_password")),
    row("REDIS_PERSECOND_TLS", Bool, "false", Is("compat.store.per_second_url")),
    row("REDIS_PERSECOND_PIPELINE_WINDOW", Duration, "0", NoEffect(ALWAYS_BATCHED)),
    row("REDIS_PERSECOND_PIPELINE_LIMIT", Int, "0", NoEffect(ALWAYS_BATCHED)),
    row("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", Int, "1", NoEffect(ALWAYS_PARALLEL)),
    row("REDIS_PERSECOND_TIMEOUT", Duration, "10s", Is("store.timeout")),
    row("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", Text, "WAIT", NoEffect(ONE_CONNECTION)),
    row("MEMCACHE_HOST_PORT", List, "", NoEffect(NO_MEMCACHED)),
    row("MEMCACHE_SRV", Text, "", NoEffect(NO_MEMCACHED)),
    row("MEMCACHE_SRV_REFRESH", Duration, "0", NoEffect(NO_MEMCACHED)),
    row("MEMCACHE_MAX_IDLE_CONNS", Int, "2", NoEffect(NO_MEMCACHED)),
    row("MEMCACHE_TLS", Bool, "false", NoEffect(NO_MEMCACHED)),
    row("MEMCACHE_TLS_CLIENT_CERT", Text, "", NoEffect(NO_MEMCACHED)),
    row("MEMCACHE_TLS_CLIENT_KEY", Text, "", NoEffect(NO_MEMCACHED)),
    row("MEMCACHE_TLS_CACERT", Text, "", NoEffect(NO_MEMCACHED)),
    row("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", Bool, "false", NoEffect(NO_MEMCACHED)),
    row("DISABLE_STATS", Bool, "false", Is("compat.stats.sink, listen.metrics_port")),
    row("USE_STATSD", Bool, "true", Is("compat.stats.sink")),
    row("USE_DOG_STATSD", Bool, "false", Is("compat.stats.sink")),
    row("USE_PROMETHEUS", Bool, "false", Is("listen.metrics_port")),
    row("STATSD_HOST", Text, "localhost", Is("compat.stats.address")),
    row("STATSD_PORT", Int, "8125", Is("compat.stats.address")),
    row("STATSD_PROTOCOL", Text, "tcp", Is("compat.stats.sink")),
    row("STATS_FLUSH_INTERVAL", Duration, "10s", Is("compat.stats.interval")),
    row("EXTRA_TAGS", Map, "", Is("compat.stats.tags")),
    row("SANITIZE_DESCRIPTOR_METRIC_DOTS", Bool, "false", Is("compat.stats.replace_dots")),
    row("USE_DOG_STATSD_MOGRIFIERS", List, "", Is("compat.stats.mogrifiers")),
    row("PROMETHEUS_ADDR", Text, ":9090", Is("compat.listen.metrics_host, listen.metrics_port")),
    row("PROMETHEUS_PATH", Text, "/metrics", Is("compat.metrics.path")),
    row("PROMETHEUS_MAPPER_YAML", Text, "", Is("compat.metrics.mapping")),
    row(
        "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
        Bool,
        "false",
        Is("compat.metrics.milliseconds"),
    ),
    row("TRACING_ENABLED", Bool, "false", Is("telemetry.otlp.export")),
    row("TRACING_EXPORTER_PROTOCOL", Text, "http", Is("compat.tracing.protocol")),
    row("TRACING_SERVICE_NAME", Text, "RateLimit", Is("compat.tracing.attributes")),
    row("TRACING_SERVICE_NAMESPACE", Text, "", Is("compat.tracing.attributes")),
    row("TRACING_SERVICE_INSTANCE_ID", Text, "", Is("compat.tracing.attributes")),
    row("TRACING_SAMPLING_RATE", Float, "1", Is("compat.tracing.sampling_ratio")),
];
