//! Finds conflicts between settings.
//!
//! Guarantees:
//! - Contradicting settings are an error that includes the fix.
//! - A setting without effect is an error that includes the fix.
//! - Values without effect from envoyproxy/ratelimit's variables are dropped instead.
//!
//! Not covered:
//! - Errors in a single value: see [`super::value`].
//! - Settings at their default, which cannot be distinguished from unset ones.
//! - `key_prefix`, `backend_deadline` and fleet settings with the memory store.
//! - Metrics settings without a metrics port.
//! - `grpc_host` and `grpc_port` beside `grpc_socket`.
//! - `max_rule_stats` without statistics.
//!
//! The last four are accepted so that several processes can share one file.

use super::{Backend, CounterKeys, MetricNames, Place, RedisUrl, Settings, StatsSink};
use crate::kernel::units::Nanos;

/// The longest `expiry_jitter`, in seconds. Redis accepts longer expiries.
const LONGEST_JITTER: u64 = u32::MAX as u64;

/// A conflict: the setting, the message and the fix.
pub(super) struct Clash {
    pub(super) setting: &'static str,
    pub(super) message: String,
    pub(super) help: &'static str,
    pub(super) of_theirs: Theirs,
}

/// The treatment of a conflict if an envoyproxy/ratelimit variable set the value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Theirs {
    /// The conflict is an error.
    Refused,
    /// The value is accepted.
    Taken,
    /// The value is dropped.
    Dropped,
    /// The value is dropped if this other setting has a value from
    /// Sluicegate's own input. Otherwise the conflict is an error.
    DroppedBeside(&'static str),
}

pub(super) fn clashes(settings: &Settings) -> Vec<Clash> {
    let found = [
        admin(settings),
        password(settings),
        identity(settings),
        second(settings),
        jitter(settings),
    ];
    let found = found.into_iter().flatten().chain(users(settings)).chain(tls(settings));
    let found = found.chain(sentinels(settings)).chain(reference(settings));
    let found = found.chain(source(settings)).chain(grpc(settings)).chain(told(settings));
    let found = found.chain(syslog(settings)).chain(otlp(settings));
    let found = found.chain(files(settings)).chain(waits(settings)).chain(statistics(settings));
    found.chain(super::peers::clashes(settings)).collect()
}

/// Returns each configured Redis with the name of its setting.
fn stores(settings: &Settings) -> impl Iterator<Item = (&'static str, &RedisUrl)> {
    let main = match &settings.backend {
        Backend::Redis(url) => Some(("backend", url)),
        Backend::Memory => None,
    };
    let second = settings.backend_per_second.as_ref().map(|url| ("backend_per_second", url));
    main.into_iter().chain(second)
}

pub(super) fn clash(
    setting: &'static str,
    message: impl Into<String>,
    help: &'static str,
) -> Clash {
    Clash { setting, message: message.into(), help, of_theirs: Theirs::Refused }
}

/// Returns a conflict about a setting without effect.
fn idle(setting: &'static str, message: impl Into<String>, help: &'static str) -> Clash {
    Clash { of_theirs: Theirs::Dropped, ..clash(setting, message, help) }
}

fn admin(settings: &Settings) -> Option<Clash> {
    let open = !settings.admin_host.is_loopback() && settings.admin_token.is_none();
    let open = open && !settings.debug_pages;
    let message = || {
        format!(
            "`admin_host` {} lets other machines read the limits, and `admin_token` is not set",
            settings.admin_host
        )
    };
    let help = "set admin_token, or listen on 127.0.0.1";
    open.then(|| clash("admin_host", message(), help))
}

fn password(settings: &Settings) -> Option<Clash> {
    settings.backend_password_file.as_ref()?;
    let name = "backend_password_file";
    if stores(settings).next().is_none() {
        return Some(idle(
            name,
            "`backend_password_file` is for a Redis, and `backend` names none",
            "leave it out: nothing would heed it",
        ));
    }
    stores(settings).all(|(_, url)| url.password.is_some()).then(|| {
        let message = "`backend` has a password and `backend_password_file` names another";
        let of_theirs = Theirs::DroppedBeside("backend");
        Clash { of_theirs, ..clash(name, message, "keep one of them") }
    })
}

fn users(settings: &Settings) -> Vec<Clash> {
    let is_half = |url: &RedisUrl| url.user.is_some() && url.password.is_none();
    let half = stores(settings).filter(|(_, url)| is_half(url));
    let half = half.filter(|_| settings.backend_password_file.is_none());
    half.map(|(name, _)| {
        let message = format!("`{name}` names a user without a password, whom no Redis knows");
        clash(name, message, "write user:password@, or set backend_password_file")
    })
    .collect()
}

fn second(settings: &Settings) -> Option<Clash> {
    let alone = settings.backend_per_second.is_some() && settings.backend == Backend::Memory;
    alone.then(|| {
        let message = "`backend_per_second` is a second Redis, and `backend` is not the first";
        let help = "name the store of all other limits as `backend`";
        idle("backend_per_second", message, help)
    })
}

fn jitter(settings: &Settings) -> Option<Clash> {
    let jitter = settings.expiry_jitter;
    let seconds = jitter.0 / Nanos::SECOND.0;
    let uneven = !jitter.0.is_multiple_of(Nanos::SECOND.0) || LONGEST_JITTER < seconds;
    uneven.then(|| {
        let message =
            format!("`expiry_jitter` {jitter} is not a whole number of up to 2^32 - 1 seconds");
        clash("expiry_jitter", message, "300s is the reference's")
    })
}

fn reference(settings: &Settings) -> Vec<Clash> {
    let is_redis = matches!(settings.backend, Backend::Redis(_));
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
            idle(name, message, "set `counter_keys: envoyproxy` and a Redis as `backend`")
        })
        .collect()
}

fn syslog(settings: &Settings) -> Vec<Clash> {
    let defaults = Settings::default();
    let given = [
        ("syslog_host", settings.syslog_host != defaults.syslog_host),
        ("syslog_from", settings.syslog_from != defaults.syslog_from),
    ];
    let given = given.into_iter().filter(|(_, given)| *given && settings.syslog_port.is_none());
    given
        .map(|(name, _)| {
            let message = format!("`{name}` is about releases by datagrams, and there is no port");
            idle(name, message, "set syslog_port, or leave this out")
        })
        .collect()
}

fn identity(settings: &Settings) -> Option<Clash> {
    let (name, other) = match (&settings.backend_tls_cert_file, &settings.backend_tls_key_file) {
        (Some(_), None) => ("backend_tls_cert_file", "backend_tls_key_file"),
        (None, Some(_)) => ("backend_tls_key_file", "backend_tls_cert_file"),
        _ => return None,
    };
    let message = format!("`{name}` is set and `{other}` is not");
    let help = "a client's certificate is good with its key only: name both";
    Some(Clash { of_theirs: Theirs::DroppedBeside(other), ..clash(name, message, help) })
}

fn tls(settings: &Settings) -> Vec<Clash> {
    if stores(settings).any(|(_, url)| url.tls) {
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
            idle(name, message, "write rediss for redis in `backend`, or leave this out")
        })
        .collect()
}

/// Checks sentinel settings that are set without
/// sentinels, are incomplete or contradict each other.
fn sentinels(settings: &Settings) -> Vec<Clash> {
    let user = !settings.backend_sentinel_user.is_empty();
    let password = settings.backend_sentinel_password.is_some();
    let file = settings.backend_sentinel_password_file.is_some();
    let given = [
        ("backend_sentinel_user", user),
        ("backend_sentinel_password", password),
        ("backend_sentinel_password_file", file),
    ];
    let is_sentinel = stores(settings).any(|(_, url)| matches!(url.place, Place::Sentinel(..)));
    if !is_sentinel {
        let given = given.into_iter().filter(|(_, given)| *given);
        let of = |name| {
            let message = format!("`{name}` is set, and `backend` names no sentinels");
            idle(name, message, "write redis+sentinel:// in `backend`, or leave this out")
        };
        return given.map(|(name, _)| of(name)).collect();
    }
    let mut found = Vec::new();
    if password && file {
        let message =
            "`backend_sentinel_password` and `backend_sentinel_password_file` are both set";
        found.push(clash("backend_sentinel_password_file", message, "keep one of them"));
    }
    if user && !password && !file {
        let message = "`backend_sentinel_user` is set without a password, whom no sentinel knows";
        let help = "set backend_sentinel_password_file or backend_sentinel_password";
        found.push(clash("backend_sentinel_user", message, help));
    }
    found
}

/// Returns a conflict for each setting in `given` that is set without effect.
pub(super) fn unheeded(
    given: &[(&'static str, bool)],
    why: &str,
    help: &'static str,
) -> Vec<Clash> {
    let set = given.iter().filter(|(_, is_set)| *is_set);
    set.map(|(name, _)| idle(name, format!("`{name}` is set, and {why}"), help)).collect()
}

/// Checks that a certificate and its key are both set or both absent.
fn halves(pair: [(&'static str, bool); 2]) -> Vec<Clash> {
    let [(one, has_one), (other, has_other)] = pair;
    let (there, absent) = match (has_one, has_other) {
        (true, false) => (one, other),
        (false, true) => (other, one),
        _ => return Vec::new(),
    };
    let message = format!("`{there}` is set and `{absent}` is not");
    let help = "a certificate is good with its key only: name both";
    vec![Clash { of_theirs: Theirs::DroppedBeside(absent), ..clash(there, message, help) }]
}

const NO_SERVER: &str = "`xds_server` names no management server";
const SET_SERVER: &str = "set xds_server, or leave this out";

fn files(settings: &Settings) -> Vec<Clash> {
    if settings.xds_server.is_none() {
        return Vec::new();
    }
    let given = [
        ("limits_prefix", !settings.limits_prefix.is_empty()),
        ("limits_dot_files", settings.limits_dot_files),
        ("limits_optional", settings.limits_optional),
    ];
    unheeded(&given, "`xds_server` has the limits", "leave out one of them")
}

/// Checks the reconnect waits: they need an xDS server,
/// and the longest must not be below the shortest.
fn waits(settings: &Settings) -> Vec<Clash> {
    let defaults = Settings::default();
    let (least, most) = (settings.xds_backoff_min, settings.xds_backoff_max);
    if settings.xds_server.is_none() {
        let given = [
            ("xds_backoff_min", least != defaults.xds_backoff_min),
            ("xds_backoff_max", most != defaults.xds_backoff_max),
            ("xds_backoff_jitter", settings.xds_backoff_jitter != defaults.xds_backoff_jitter),
        ];
        return unheeded(&given, NO_SERVER, SET_SERVER);
    }
    if least <= most {
        return Vec::new();
    }
    let is_moved = most != defaults.xds_backoff_max;
    let name = if is_moved { "xds_backoff_max" } else { "xds_backoff_min" };
    let message = format!("`xds_backoff_min` {least} is longer than `xds_backoff_max` {most}");
    let clash = clash(name, message, "shorten the one or lengthen the other");
    vec![Clash { of_theirs: Theirs::Taken, ..clash }]
}

fn source(settings: &Settings) -> Vec<Clash> {
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
        return unheeded(&[&given[..], &tls].concat(), NO_SERVER, SET_SERVER);
    }
    let files = [("limits", !settings.limits.is_empty())];
    let mut found = unheeded(&files, "`xds_server` has the limits", "keep one of them");
    if !settings.xds_tls {
        let why = "the management server is not spoken to in TLS";
        found.extend(unheeded(&tls, why, "set xds_tls, or leave this out"));
    }
    found.extend(halves(pair));
    found
}

fn grpc(settings: &Settings) -> Vec<Clash> {
    let pair = [
        ("grpc_tls_cert_file", settings.grpc_tls_cert_file.is_some()),
        ("grpc_tls_key_file", settings.grpc_tls_key_file.is_some()),
    ];
    let mut found = halves(pair);
    if !pair[0].1 && !pair[1].1 {
        let client = [
            ("grpc_tls_client_ca_file", settings.grpc_tls_client_ca_file.is_some()),
            ("grpc_tls_client_name", settings.grpc_tls_client_name.is_some()),
        ];
        found.extend(unheeded(&client, "gRPC is in plain text", "set grpc_tls_cert_file"));
    } else if settings.grpc_tls_client_ca_file.is_none() {
        let name = [("grpc_tls_client_name", settings.grpc_tls_client_name.is_some())];
        let why = "clients need no certificate";
        found.extend(unheeded(&name, why, "set grpc_tls_client_ca_file"));
    }
    let grace = [("grpc_max_age_grace", settings.grpc_max_age_grace.0 != 0)];
    if settings.grpc_max_age.0 == 0 {
        found.extend(unheeded(&grace, "connections last for ever", "set grpc_max_age"));
    }
    found
}

fn told(settings: &Settings) -> Vec<Clash> {
    let mut found = Vec::new();
    if !settings.metrics_path.starts_with('/') {
        let message = "`metrics_path` is no path";
        found.push(clash("metrics_path", message, "a path begins with `/`"));
    }
    if settings.metrics_names == MetricNames::Own {
        let given = [
            ("metrics_mapping", settings.metrics_mapping.is_some()),
            ("metrics_milliseconds", settings.metrics_milliseconds),
        ];
        let why = "envoyproxy/ratelimit's metrics are not shown";
        found.extend(unheeded(&given, why, "set `metrics_names: all`, or leave this out"));
    }
    let is_sent = matches!(settings.stats_sink, StatsSink::Statsd | StatsSink::Dogstatsd);
    if is_sent && settings.stats_address.is_none() {
        let message = "`stats_sink` names a service and `stats_address` does not say where it is";
        found.push(clash("stats_sink", message, "set stats_address"));
    }
    if !is_sent {
        let given = [("stats_address", settings.stats_address.is_some())];
        let why = "statistics are not sent anywhere";
        found.extend(unheeded(&given, why, "set stats_sink, or leave this out"));
    }
    if settings.stats_interval.0 == 0 {
        let message = "`stats_interval` 0 would send for ever";
        found.push(clash("stats_interval", message, "10s is the default"));
    }
    if settings.stats_sink != StatsSink::Dogstatsd {
        let given = [("stats_mogrifiers", !settings.stats_mogrifiers.0.is_empty())];
        let why = "DogStatsD is not spoken";
        found.extend(unheeded(&given, why, "set `stats_sink: dogstatsd`, or leave this out"));
    }
    found
}

fn statistics(settings: &Settings) -> Vec<Clash> {
    let defaults = Settings::default();
    let protocol = ("stats_protocol", settings.stats_protocol != defaults.stats_protocol);
    let always = [
        ("stats_interval", settings.stats_interval != defaults.stats_interval),
        ("stats_tags", !settings.stats_tags.0.is_empty()),
    ];
    let given = match settings.stats_sink {
        StatsSink::None => [&[protocol][..], &always].concat(),
        StatsSink::Log => vec![protocol],
        // DogStatsD always uses UDP, so any `stats_protocol` is harmless.
        StatsSink::Statsd | StatsSink::Dogstatsd => Vec::new(),
    };
    unheeded(&given, "statistics are not sent anywhere", "set stats_sink, or leave this out")
}

fn otlp(settings: &Settings) -> Vec<Clash> {
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
    unheeded(&given, "`otlp` is off", "set otlp, or leave this out")
}
