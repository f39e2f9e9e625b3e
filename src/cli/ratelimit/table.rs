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
    /// The default text in envoyproxy/ratelimit. Empty for the empty value of the type.
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
    "one connection carries every question here, in pipelines; there is no pool to size";
const ALWAYS_BATCHED: &str =
    "questions that come while another is under way always travel together here";
const ALWAYS_PARALLEL: &str = "the slots of a Cluster are always asked at the same time here";
const STARTS_WITHOUT_REDIS: &str = "this service starts and answers without Redis and calls it for ever, so that nothing has to wait";
const NO_MEMCACHED: &str = "there is no memcached here: counters are where `backend` says";

/// All environment variables of envoyproxy/ratelimit that compatibility mode knows.
pub static TABLE: &[VariableRow] = &[
    // Variables for listeners and the log.
    row("HOST", Text, "0.0.0.0", Is("http_host")),
    row("PORT", Int, "8080", Is("http_port")),
    row("GRPC_HOST", Text, "0.0.0.0", Is("grpc_host")),
    row("GRPC_PORT", Int, "8081", Is("grpc_port")),
    row("GRPC_UDS", Text, "", Is("grpc_socket")),
    row("DEBUG_HOST", Text, "0.0.0.0", Is("admin_host")),
    row("DEBUG_PORT", Int, "6070", Is("admin_port")),
    row("GRPC_MAX_CONNECTION_AGE", Duration, "24h", Is("grpc_max_age")),
    row("GRPC_MAX_CONNECTION_AGE_GRACE", Duration, "1h", Is("grpc_max_age_grace")),
    row("GRPC_SERVER_USE_TLS", Bool, "false", Is("grpc_tls_cert_file")),
    row("GRPC_SERVER_TLS_CERT", Text, "", Is("grpc_tls_cert_file")),
    row("GRPC_SERVER_TLS_KEY", Text, "", Is("grpc_tls_key_file")),
    row("GRPC_CLIENT_TLS_CACERT", Text, "", Is("grpc_tls_client_ca_file")),
    row("GRPC_CLIENT_TLS_SAN", Text, "", Is("grpc_tls_client_name")),
    row(
        "GRPC_SERVER_TLS_CA_CERT",
        Text,
        "",
        NoEffect(
            "envoyproxy/ratelimit does not read it, so clients need no certificate because of it; \
             GRPC_CLIENT_TLS_CACERT demands one",
        ),
    ),
    row("LOG_LEVEL", Text, "WARN", Is("log_level")),
    row("LOG_FORMAT", Text, "text", Is("log_format")),
    // Variables for the source of limits.
    row("CONFIG_TYPE", Text, "FILE", Is("limits, xds_server")),
    row("FORCE_START_WITHOUT_INITIAL_CONFIG", Bool, "false", Is("start_without_config")),
    row("MERGE_DOMAIN_CONFIG", Bool, "false", Is("merge_domains")),
    row("RUNTIME_ROOT", Text, "/srv/runtime_data/current", Is("limits")),
    row("RUNTIME_SUBDIRECTORY", Text, "", Is("limits")),
    row("RUNTIME_APPDIRECTORY", Text, "config", Is("limits, limits_prefix")),
    row("RUNTIME_IGNOREDOTFILES", Bool, "false", Is("limits_dot_files")),
    row("RUNTIME_WATCH_ROOT", Bool, "true", Is("limits_prefix, limits_optional")),
    row("CONFIG_GRPC_XDS_NODE_ID", Text, "default", Is("xds_node_id")),
    row("CONFIG_GRPC_XDS_NODE_METADATA", Text, "", Is("xds_node_metadata")),
    row("CONFIG_GRPC_XDS_SERVER_URL", Text, "localhost:18000", Is("xds_server")),
    row(
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        Duration,
        "3s",
        NoEffect(
            "it has no effect in envoyproxy/ratelimit either; XDS_CLIENT_BACKOFF_INITIAL_INTERVAL has",
        ),
    ),
    row("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", Map, "", Is("xds_headers")),
    row("CONFIG_GRPC_XDS_SERVER_USE_TLS", Bool, "false", Is("xds_tls")),
    row("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", Text, "", Is("xds_tls_cert_file")),
    row("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", Text, "", Is("xds_tls_key_file")),
    row("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", Text, "", Is("xds_tls_ca_file, xds_tls_system_roots")),
    row("CONFIG_GRPC_XDS_SERVER_TLS_SAN", Text, "", Is("xds_tls_server_name")),
    row("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", Duration, "10s", Is("xds_backoff_min")),
    row("XDS_CLIENT_BACKOFF_MAX_INTERVAL", Duration, "60s", Is("xds_backoff_max")),
    row(
        "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
        Float,
        "0.5",
        NoEffect(
            "waits double up to the longest and begin anew after a stream that brought something",
        ),
    ),
    row("XDS_CLIENT_BACKOFF_JITTER", Bool, "true", Is("xds_backoff_jitter")),
    row("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", Int, "0", Is("xds_max_message")),
    row("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", Bool, "false", Is("healthy_with_config")),
    // Variables for counting, Redis, statistics and traces.
    row("BACKEND_TYPE", Text, "redis", Is("backend")),
    row("CACHE_KEY_PREFIX", Text, "", Is("reference_key_prefix")),
    row("EXPIRATION_JITTER_MAX_SECONDS", Int, "300", Is("expiry_jitter")),
    row("LOCAL_CACHE_SIZE_IN_BYTES", Int, "0", Is("local_deny_cache")),
    row("NEAR_LIMIT_RATIO", Float, "0.8", Is("near_limit_ratio")),
    row("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", Bool, "false", Is("stop_when_over")),
    row("SHADOW_MODE", Bool, "false", Is("shadow_mode")),
    row("QUOTA_MODE", Bool, "false", Is("quota_mode")),
    row("RESPONSE_DYNAMIC_METADATA", Bool, "false", Is("dynamic_metadata")),
    row("LIMIT_RESPONSE_HEADERS_ENABLED", Bool, "false", Is("response_headers")),
    row("LIMIT_REQUEST_HEADERS_ENABLED", Bool, "false", Is("request_headers")),
    row("LIMIT_LIMIT_HEADER", Text, "RateLimit-Limit", Is("limit_header")),
    row("LIMIT_REMAINING_HEADER", Text, "RateLimit-Remaining", Is("remaining_header")),
    row("LIMIT_RESET_HEADER", Text, "RateLimit-Reset", Is("reset_header")),
    row("ENABLE_NEGATIVE_HITS", Bool, "false", Is("negative_hits")),
    row("REDIS_SOCKET_TYPE", Text, "unix", Is("backend")),
    row("REDIS_TYPE", Text, "SINGLE", Is("backend")),
    row("REDIS_URL", Text, "/var/run/nutcracker/ratelimit.sock", Is("backend")),
    row("REDIS_POOL_SIZE", Int, "10", NoEffect(ONE_CONNECTION)),
    row("REDIS_AUTH", Text, "", Is("backend")),
    row("REDIS_AUTH_FILE", Text, "", Is("backend_password_file")),
    row("REDIS_SENTINEL_AUTH", Text, "", Is("backend_sentinel_password")),
    row("REDIS_TLS", Bool, "false", Is("backend")),
    row("REDIS_TLS_CLIENT_CERT", Text, "", Is("backend_tls_cert_file")),
    row("REDIS_TLS_CLIENT_KEY", Text, "", Is("backend_tls_key_file")),
    row("REDIS_TLS_CACERT", Text, "", Is("backend_tls_ca_file, backend_tls_system_roots")),
    row("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", Bool, "false", Is("backend_tls_any_name")),
    row("REDIS_PIPELINE_WINDOW", Duration, "0", NoEffect(ALWAYS_BATCHED)),
    row("REDIS_PIPELINE_LIMIT", Int, "0", NoEffect(ALWAYS_BATCHED)),
    row("REDIS_CLUSTER_PIPELINE_PARALLELISM", Int, "1", NoEffect(ALWAYS_PARALLEL)),
    row("REDIS_TIMEOUT", Duration, "10s", Is("backend_deadline")),
    row("REDIS_OP_TIMEOUT", Duration, "0", Is("backend_deadline")),
    row("REDIS_POOL_ON_EMPTY_BEHAVIOR", Text, "WAIT", NoEffect(ONE_CONNECTION)),
    row("REDIS_STARTUP_INITIAL_INTERVAL", Duration, "1s", NoEffect(STARTS_WITHOUT_REDIS)),
    row("REDIS_STARTUP_MAX_INTERVAL", Duration, "30s", NoEffect(STARTS_WITHOUT_REDIS)),
    row("REDIS_STARTUP_MAX_ELAPSED_TIME", Duration, "0", NoEffect(STARTS_WITHOUT_REDIS)),
    row("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", Bool, "false", Is("healthy_with_backend")),
    row(
        "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR",
        Bool,
        "false",
        NoEffect("a Redis that may not write is always left for the one that may"),
    ),
    row("REDIS_AWS_IAM_AUTH", Bool, "false", Is("backend_password_file")),
    row("REDIS_PERSECOND", Bool, "false", Is("backend_per_second")),
    row("REDIS_PERSECOND_SOCKET_TYPE", Text, "unix", Is("backend_per_second")),
    row("REDIS_PERSECOND_TYPE", Text, "SINGLE", Is("backend_per_second")),
    row(
        "REDIS_PERSECOND_URL",
        Text,
        "/var/run/nutcracker/ratelimitpersecond.sock",
        Is("backend_per_second"),
    ),
    row("REDIS_PERSECOND_POOL_SIZE", Int, "10", NoEffect(ONE_CONNECTION)),
    row("REDIS_PERSECOND_AUTH", Text, "", Is("backend_per_second")),
    row("REDIS_PERSECOND_SENTINEL_AUTH", Text, "", Is("backend_sentinel_password")),
    row("REDIS_PERSECOND_TLS", Bool, "false", Is("backend_per_second")),
    row("REDIS_PERSECOND_PIPELINE_WINDOW", Duration, "0", NoEffect(ALWAYS_BATCHED)),
    row("REDIS_PERSECOND_PIPELINE_LIMIT", Int, "0", NoEffect(ALWAYS_BATCHED)),
    row("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", Int, "1", NoEffect(ALWAYS_PARALLEL)),
    row("REDIS_PERSECOND_TIMEOUT", Duration, "10s", Is("backend_deadline")),
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
    row("DISABLE_STATS", Bool, "false", Is("stats_sink, metrics")),
    row("USE_STATSD", Bool, "true", Is("stats_sink")),
    row("USE_DOG_STATSD", Bool, "false", Is("stats_sink")),
    row("USE_PROMETHEUS", Bool, "false", Is("metrics")),
    row("STATSD_HOST", Text, "localhost", Is("stats_address")),
    row("STATSD_PORT", Int, "8125", Is("stats_address")),
    row("STATSD_PROTOCOL", Text, "tcp", Is("stats_protocol")),
    row("STATS_FLUSH_INTERVAL", Duration, "10s", Is("stats_interval")),
    row("EXTRA_TAGS", Map, "", Is("stats_tags")),
    row("USE_DOG_STATSD_MOGRIFIERS", List, "", Is("stats_mogrifiers")),
    row("PROMETHEUS_ADDR", Text, ":9090", Is("metrics_host, metrics_port")),
    row("PROMETHEUS_PATH", Text, "/metrics", Is("metrics_path")),
    row("PROMETHEUS_MAPPER_YAML", Text, "", Is("metrics_mapping")),
    row("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", Bool, "false", Is("metrics_milliseconds")),
    row("TRACING_ENABLED", Bool, "false", Is("otlp, otlp_counts")),
    row("TRACING_EXPORTER_PROTOCOL", Text, "http", Is("otlp_protocol")),
    row("TRACING_SERVICE_NAME", Text, "RateLimit", Is("otlp_service")),
    row("TRACING_SERVICE_NAMESPACE", Text, "", Is("otlp_attributes")),
    row("TRACING_SERVICE_INSTANCE_ID", Text, "", Is("otlp_attributes")),
    row("TRACING_SAMPLING_RATE", Float, "1", Is("otlp_sampled")),
];
