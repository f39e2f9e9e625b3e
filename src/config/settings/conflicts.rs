//! Finds settings that contradict each other or have no effect together.
//!
//! Guarantees:
//! - Contradicting settings are an error, with a suggested fix.
//! - A setting without effect is an error, with a suggested fix.
//! - A value from an environment variable of envoyproxy/ratelimit that has no effect is dropped
//!   instead.
//!
//! Not covered:
//! - Invalid values of single settings (see [`super::value`]).
//! - Settings that have their default value, which look as if they were not set.
//! - `key_prefix`, `backend_deadline` and the settings `fleet_…` with the memory store.
//! - Settings `metrics_…` without a metrics port.
//! - `grpc_host` and `grpc_port` beside `grpc_socket`.
//! - `max_rule_stats` if no statistics under envoyproxy/ratelimit's names are exported.
//!
//! Settings of the last four points are accepted without effect, so that processes with different
//! tasks can share one `server.yaml`.

use super::{CounterKeys, MetricNames, RedisEndpoint, RedisUrl, Settings, StatsSink, StoreSetting};
use crate::kernel::units::Nanos;

/// The largest `expiry_jitter`, in seconds. Redis would accept a longer one.
const MAX_JITTER_SECS: u64 = u32::MAX as u64;

/// A conflict between settings: the name of the setting to change, the message and the suggested
/// fix.
pub(super) struct SettingConflict {
    pub(super) setting: &'static str,
    pub(super) message: String,
    pub(super) help: &'static str,
    pub(super) ratelimit_action: RatelimitValueAction,
}

/// The way to resolve a conflict if the value comes from an environment variable of
/// envoyproxy/ratelimit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RatelimitValueAction {
    /// The conflict is an error.
    Report,
    /// The value is kept, without an error.
    Accept,
    /// The setting gets its default value again.
    Drop,
    /// If the other setting named here was set by a flag, variable or file of Sluicegate, the value
    /// is dropped. Otherwise the conflict is an error.
    DropBesideOwn(&'static str),
}

pub(super) fn find_conflicts(settings: &Settings) -> Vec<SettingConflict> {
    let found = [
        check_admin_access(settings),
        check_password_file(settings),
        check_redis_client_certificate(settings),
        check_second_redis(settings),
        check_expiry_jitter(settings),
    ];
    let found =
        found.into_iter().flatten().chain(check_users(settings)).chain(check_redis_tls(settings));
    let found = found.chain(check_sentinels(settings)).chain(check_ratelimit_keys(settings));
    let found = found
        .chain(check_xds(settings))
        .chain(check_grpc(settings))
        .chain(check_metrics_and_stats(settings));
    let found = found.chain(check_syslog(settings)).chain(check_otlp(settings));
    let found = found
        .chain(check_limits_files(settings))
        .chain(check_xds_backoff(settings))
        .chain(check_stats_sending(settings));
    found.chain(super::peer_conflicts::find_peer_conflicts(settings)).collect()
}

/// Returns the URL of each configured Redis, with the name of the setting that contains it.
fn redis_settings(settings: &Settings) -> impl Iterator<Item = (&'static str, &RedisUrl)> {
    let main = match &settings.backend {
        StoreSetting::Redis(url) => Some(("backend", url)),
        StoreSetting::Memory => None,
    };
    let second = settings.backend_per_second.as_ref().map(|url| ("backend_per_second", url));
    main.into_iter().chain(second)
}

pub(super) fn conflict(
    setting: &'static str,
    message: impl Into<String>,
    help: &'static str,
) -> SettingConflict {
    SettingConflict {
        setting,
        message: message.into(),
        help,
        ratelimit_action: RatelimitValueAction::Report,
    }
}

/// Returns the conflict for a setting that has no effect.
fn unused_setting(
    setting: &'static str,
    message: impl Into<String>,
    help: &'static str,
) -> SettingConflict {
    SettingConflict {
        ratelimit_action: RatelimitValueAction::Drop,
        ..conflict(setting, message, help)
    }
}

fn check_admin_access(settings: &Settings) -> Option<SettingConflict> {
    let open = !settings.admin_host.is_loopback() && settings.admin_token.is_none();
    let open = open && !settings.debug_pages;
    let message = || {
        format!(
            "`admin_host` {} lets other machines read the limits, and `admin_token` is not set",
            settings.admin_host
        )
    };
    let help = "set admin_token, or listen on 127.0.0.1";
    open.then(|| conflict("admin_host", message(), help))
}

fn check_password_file(settings: &Settings) -> Option<SettingConflict> {
    settings.backend_password_file.as_ref()?;
    let name = "backend_password_file";
    if redis_settings(settings).next().is_none() {
        return Some(unused_setting(
            name,
            "`backend_password_file` is for a Redis, and `backend` names none",
            "leave it out: nothing would heed it",
        ));
    }
    redis_settings(settings).all(|(_, url)| url.password.is_some()).then(|| {
        let message = "`backend` has a password and `backend_password_file` names another";
        let ratelimit_action = RatelimitValueAction::DropBesideOwn("backend");
        SettingConflict { ratelimit_action, ..conflict(name, message, "keep one of them") }
    })
}

fn check_users(settings: &Settings) -> Vec<SettingConflict> {
    let is_half = |url: &RedisUrl| url.user.is_some() && url.password.is_none();
    let half = redis_settings(settings).filter(|(_, url)| is_half(url));
    let half = half.filter(|_| settings.backend_password_file.is_none());
    half.map(|(name, _)| {
        let message = format!("`{name}` names a user without a password, whom no Redis knows");
        conflict(name, message, "write user:password@, or set backend_password_file")
    })
    .collect()
}

fn check_second_redis(settings: &Settings) -> Option<SettingConflict> {
    let has_no_first_redis =
        settings.backend_per_second.is_some() && settings.backend == StoreSetting::Memory;
    has_no_first_redis.then(|| {
        let message = "`backend_per_second` is a second Redis, and `backend` is not the first";
        let help = "name the store of all other limits as `backend`";
        unused_setting("backend_per_second", message, help)
    })
}

fn check_expiry_jitter(settings: &Settings) -> Option<SettingConflict> {
    let jitter = settings.expiry_jitter;
    let seconds = jitter.0 / Nanos::SECOND.0;
    let is_invalid = !jitter.0.is_multiple_of(Nanos::SECOND.0) || MAX_JITTER_SECS < seconds;
    is_invalid.then(|| {
        let message =
            format!("`expiry_jitter` {jitter} is not a whole number of up to 2^32 - 1 seconds");
        conflict("expiry_jitter", message, "300s is the reference's")
    })
}

fn check_ratelimit_keys(settings: &Settings) -> Vec<SettingConflict> {
    let is_redis = matches!(settings.backend, StoreSetting::Redis(_));
    if is_redis && settings.counter_keys == CounterKeys::Envoyproxy {
        return Vec::new();
    }
    let defaults = Settings::default();
    let given = [
        ("reference_key_prefix", settings.reference_key_prefix != defaults.reference_key_prefix),
        ("expiry_jitter", settings.expiry_jitter != defaults.expiry_jitter),
        ("local_deny_cache", settings.local_deny_cache != defaults.local_deny_cache),
        ("stop_when_over", settings.stop_when_over != defaults.stop_when_over),
    ];
    let given = given.into_iter().filter(|(_, given)| *given);
    given
        .map(|(name, _)| {
            let message =
                format!("`{name}` is about the reference's keys in a Redis, and there are none");
            unused_setting(name, message, "set `counter_keys: envoyproxy` and a Redis as `backend`")
        })
        .collect()
}

fn check_syslog(settings: &Settings) -> Vec<SettingConflict> {
    let defaults = Settings::default();
    let given = [
        ("syslog_host", settings.syslog_host != defaults.syslog_host),
        ("syslog_from", settings.syslog_from != defaults.syslog_from),
    ];
    let given = given.into_iter().filter(|(_, given)| *given && settings.syslog_port.is_none());
    given
        .map(|(name, _)| {
            let message = format!("`{name}` is about releases by datagrams, and there is no port");
            unused_setting(name, message, "set syslog_port, or leave this out")
        })
        .collect()
}

fn check_redis_client_certificate(settings: &Settings) -> Option<SettingConflict> {
    let (name, other) = match (&settings.backend_tls_cert_file, &settings.backend_tls_key_file) {
        (Some(_), None) => ("backend_tls_cert_file", "backend_tls_key_file"),
        (None, Some(_)) => ("backend_tls_key_file", "backend_tls_cert_file"),
        _ => return None,
    };
    let message = format!("`{name}` is set and `{other}` is not");
    let help = "a client's certificate is good with its key only: name both";
    Some(SettingConflict {
        ratelimit_action: RatelimitValueAction::DropBesideOwn(other),
        ..conflict(name, message, help)
    })
}

fn check_redis_tls(settings: &Settings) -> Vec<SettingConflict> {
    if redis_settings(settings).any(|(_, url)| url.tls) {
        return Vec::new();
    }
    let given = [
        ("backend_tls_ca_file", settings.backend_tls_ca_file.is_some()),
        ("backend_tls_system_roots", settings.backend_tls_system_roots),
        ("backend_tls_cert_file", settings.backend_tls_cert_file.is_some()),
        ("backend_tls_key_file", settings.backend_tls_key_file.is_some()),
        ("backend_tls_server_name", settings.backend_tls_server_name.is_some()),
        ("backend_tls_any_name", settings.backend_tls_any_name),
    ];
    let given = given.into_iter().filter(|(_, given)| *given);
    given
        .map(|(name, _)| {
            let message = format!("`{name}` is set, and `backend` does not speak TLS");
            unused_setting(name, message, "write rediss for redis in `backend`, or leave this out")
        })
        .collect()
}

/// Returns a conflict for each setting `backend_sentinel_…` that is set without sentinels, is
/// incomplete or contradicts another.
fn check_sentinels(settings: &Settings) -> Vec<SettingConflict> {
    let user = !settings.backend_sentinel_user.is_empty();
    let password = settings.backend_sentinel_password.is_some();
    let file = settings.backend_sentinel_password_file.is_some();
    let given = [
        ("backend_sentinel_user", user),
        ("backend_sentinel_password", password),
        ("backend_sentinel_password_file", file),
    ];
    let is_sentinel = redis_settings(settings)
        .any(|(_, url)| matches!(url.endpoint, RedisEndpoint::Sentinel(..)));
    if !is_sentinel {
        let given = given.into_iter().filter(|(_, given)| *given);
        let conflict_for = |name| {
            let message = format!("`{name}` is set, and `backend` names no sentinels");
            unused_setting(name, message, "write redis+sentinel:// in `backend`, or leave this out")
        };
        return given.map(|(name, _)| conflict_for(name)).collect();
    }
    let mut found = Vec::new();
    if password && file {
        let message =
            "`backend_sentinel_password` and `backend_sentinel_password_file` are both set";
        found.push(conflict("backend_sentinel_password_file", message, "keep one of them"));
    }
    if user && !password && !file {
        let message = "`backend_sentinel_user` is set without a password, whom no sentinel knows";
        let help = "set backend_sentinel_password_file or backend_sentinel_password";
        found.push(conflict("backend_sentinel_user", message, help));
    }
    found
}

/// Returns a conflict for each setting in `given` that is set, because it has no effect.
pub(super) fn unused_settings(
    given: &[(&'static str, bool)],
    why: &str,
    help: &'static str,
) -> Vec<SettingConflict> {
    let set = given.iter().filter(|(_, is_set)| *is_set);
    set.map(|(name, _)| unused_setting(name, format!("`{name}` is set, and {why}"), help)).collect()
}

/// Verifies that a certificate and its private key are both set or both absent.
fn check_certificate_pair(pair: [(&'static str, bool); 2]) -> Vec<SettingConflict> {
    let [(first, has_one), (second, has_other)] = pair;
    let (there, absent) = match (has_one, has_other) {
        (true, false) => (first, second),
        (false, true) => (second, first),
        _ => return Vec::new(),
    };
    let message = format!("`{there}` is set and `{absent}` is not");
    let help = "a certificate is good with its key only: name both";
    vec![SettingConflict {
        ratelimit_action: RatelimitValueAction::DropBesideOwn(absent),
        ..conflict(there, message, help)
    }]
}

const NO_XDS_SERVER: &str = "`xds_server` names no management server";
const SET_XDS_SERVER: &str = "set xds_server, or leave this out";

fn check_limits_files(settings: &Settings) -> Vec<SettingConflict> {
    if settings.xds_server.is_none() {
        return Vec::new();
    }
    let given = [
        ("limits_prefix", !settings.limits_prefix.is_empty()),
        ("limits_dot_files", settings.limits_dot_files),
        ("limits_optional", settings.limits_optional),
    ];
    unused_settings(&given, "`xds_server` has the limits", "leave out one of them")
}

/// Verifies that `xds_backoff_min` and `xds_backoff_max` have an xDS server, and that the maximum
/// is not below the minimum.
fn check_xds_backoff(settings: &Settings) -> Vec<SettingConflict> {
    let defaults = Settings::default();
    let (min, max) = (settings.xds_backoff_min, settings.xds_backoff_max);
    if settings.xds_server.is_none() {
        let given = [
            ("xds_backoff_min", min != defaults.xds_backoff_min),
            ("xds_backoff_max", max != defaults.xds_backoff_max),
            ("xds_backoff_jitter", settings.xds_backoff_jitter != defaults.xds_backoff_jitter),
        ];
        return unused_settings(&given, NO_XDS_SERVER, SET_XDS_SERVER);
    }
    if min <= max {
        return Vec::new();
    }
    let is_max_changed = max != defaults.xds_backoff_max;
    let name = if is_max_changed { "xds_backoff_max" } else { "xds_backoff_min" };
    let message = format!("`xds_backoff_min` {min} is longer than `xds_backoff_max` {max}");
    let conflict_found = conflict(name, message, "shorten the one or lengthen the other");
    vec![SettingConflict { ratelimit_action: RatelimitValueAction::Accept, ..conflict_found }]
}

fn check_xds(settings: &Settings) -> Vec<SettingConflict> {
    let defaults = Settings::default();
    let pair = [
        ("xds_tls_cert_file", settings.xds_tls_cert_file.is_some()),
        ("xds_tls_key_file", settings.xds_tls_key_file.is_some()),
    ];
    let tls = [
        ("xds_tls_ca_file", settings.xds_tls_ca_file.is_some()),
        ("xds_tls_system_roots", settings.xds_tls_system_roots),
        ("xds_tls_server_name", settings.xds_tls_server_name.is_some()),
        pair[0],
        pair[1],
    ];
    if settings.xds_server.is_none() {
        let given = [
            ("xds_node_id", settings.xds_node_id != defaults.xds_node_id),
            ("xds_node_metadata", !settings.xds_node_metadata.0.is_empty()),
            ("xds_headers", !settings.xds_headers.0.is_empty()),
            ("xds_tls", settings.xds_tls),
            ("xds_max_message", settings.xds_max_message != 0),
        ];
        return unused_settings(&[&given[..], &tls].concat(), NO_XDS_SERVER, SET_XDS_SERVER);
    }
    let files = [("limits", !settings.limits.is_empty())];
    let mut found = unused_settings(&files, "`xds_server` has the limits", "keep one of them");
    if !settings.xds_tls {
        let why = "the management server is not spoken to in TLS";
        found.extend(unused_settings(&tls, why, "set xds_tls, or leave this out"));
    }
    found.extend(check_certificate_pair(pair));
    found
}

fn check_grpc(settings: &Settings) -> Vec<SettingConflict> {
    let pair = [
        ("grpc_tls_cert_file", settings.grpc_tls_cert_file.is_some()),
        ("grpc_tls_key_file", settings.grpc_tls_key_file.is_some()),
    ];
    let mut found = check_certificate_pair(pair);
    if !pair[0].1 && !pair[1].1 {
        let client = [
            ("grpc_tls_client_ca_file", settings.grpc_tls_client_ca_file.is_some()),
            ("grpc_tls_client_name", settings.grpc_tls_client_name.is_some()),
        ];
        found.extend(unused_settings(&client, "gRPC is in plain text", "set grpc_tls_cert_file"));
    } else if settings.grpc_tls_client_ca_file.is_none() {
        let name = [("grpc_tls_client_name", settings.grpc_tls_client_name.is_some())];
        let why = "clients need no certificate";
        found.extend(unused_settings(&name, why, "set grpc_tls_client_ca_file"));
    }
    let grace = [("grpc_max_age_grace", settings.grpc_max_age_grace.0 != 0)];
    if settings.grpc_max_age.0 == 0 {
        found.extend(unused_settings(&grace, "connections last for ever", "set grpc_max_age"));
    }
    found
}

fn check_metrics_and_stats(settings: &Settings) -> Vec<SettingConflict> {
    let mut found = Vec::new();
    if !settings.metrics_path.starts_with('/') {
        let message = "`metrics_path` is no path";
        found.push(conflict("metrics_path", message, "a path begins with `/`"));
    }
    if settings.metrics_names == MetricNames::Own {
        let given = [
            ("metrics_mapping", settings.metrics_mapping.is_some()),
            ("metrics_milliseconds", settings.metrics_milliseconds),
        ];
        let why = "envoyproxy/ratelimit's metrics are not shown";
        found.extend(unused_settings(&given, why, "set `metrics_names: all`, or leave this out"));
    }
    let is_sent = matches!(settings.stats_sink, StatsSink::Statsd | StatsSink::Dogstatsd);
    if is_sent && settings.stats_address.is_none() {
        let message = "`stats_sink` names a service and `stats_address` does not say where it is";
        found.push(conflict("stats_sink", message, "set stats_address"));
    }
    if !is_sent {
        let given = [("stats_address", settings.stats_address.is_some())];
        let why = "statistics are not sent anywhere";
        found.extend(unused_settings(&given, why, "set stats_sink, or leave this out"));
    }
    if settings.stats_interval.0 == 0 {
        let message = "`stats_interval` 0 would send for ever";
        found.push(conflict("stats_interval", message, "10s is the default"));
    }
    if settings.stats_sink != StatsSink::Dogstatsd {
        let given = [("stats_mogrifiers", !settings.stats_mogrifiers.0.is_empty())];
        let why = "DogStatsD is not spoken";
        found.extend(unused_settings(
            &given,
            why,
            "set `stats_sink: dogstatsd`, or leave this out",
        ));
    }
    found
}

fn check_stats_sending(settings: &Settings) -> Vec<SettingConflict> {
    let defaults = Settings::default();
    let protocol = ("stats_protocol", settings.stats_protocol != defaults.stats_protocol);
    let for_all_sinks = [
        ("stats_interval", settings.stats_interval != defaults.stats_interval),
        ("stats_tags", !settings.stats_tags.0.is_empty()),
    ];
    let given = match settings.stats_sink {
        StatsSink::None => [&[protocol][..], &for_all_sinks].concat(),
        StatsSink::Log => vec![protocol],
        // With DogStatsD, `stats_protocol` has no effect, but no value of it is an error.
        StatsSink::Statsd | StatsSink::Dogstatsd => Vec::new(),
    };
    unused_settings(&given, "statistics are not sent anywhere", "set stats_sink, or leave this out")
}

fn check_otlp(settings: &Settings) -> Vec<SettingConflict> {
    if settings.otlp {
        return Vec::new();
    }
    let defaults = Settings::default();
    let given = [
        ("otlp_protocol", settings.otlp_protocol != defaults.otlp_protocol),
        ("otlp_counts", settings.otlp_counts != defaults.otlp_counts),
        ("otlp_service", settings.otlp_service != defaults.otlp_service),
        ("otlp_attributes", settings.otlp_attributes != defaults.otlp_attributes),
        ("otlp_sampled", settings.otlp_sampled != defaults.otlp_sampled),
    ];
    unused_settings(&given, "`otlp` is off", "set otlp, or leave this out")
}
