//! Settings that contradict each other, have no effect or are outside their range.

use sluicegate::config::settings::{LogLevel, RatelimitValue, SettingsInput, print_config};
use sluicegate::kernel::units::Nanos;

use crate::config::settings::{environment, file, flags, load_valid, pairs, read_errors};

const XDS: &str = "xds_server: a:1";

const STATSD: &str = "stats_sink: statsd\nstats_address: a:1";

#[test]
fn source_and_statistics_settings_without_effect_are_refused() {
    for (others, text, required) in [
        ("", "xds_backoff_min: 1s", XDS),
        ("", "xds_backoff_max: 1m", XDS),
        ("", "xds_backoff_jitter: false", XDS),
        (XDS, "limits_prefix: a", "limits: [a]"),
        (XDS, "limits_dot_files: true", "limits: [a]"),
        (XDS, "limits_optional: true", ""),
        ("", "stats_protocol: udp", STATSD),
        ("stats_sink: log", "stats_protocol: udp", "stats_sink: dogstatsd\nstats_address: a:1"),
        ("", "stats_interval: 1s", STATSD),
        ("", "stats_interval: 1s", "stats_sink: log"),
        ("", "stats_tags: a=b", STATSD),
        ("", "stats_tags: a=b", "stats_sink: log"),
    ] {
        let about = format!("`{}` is set, and ", text.split(':').next().unwrap());
        let messages = read_errors(&file(&format!("{others}\n{text}\n")));
        assert!(
            messages.len() == 1 && messages[0].contains(&about),
            "{others}, {text}: {messages:?}"
        );
        load_valid(&file(&format!("{required}\n{text}\n")));
    }
}

#[test]
fn xds_backoff_max_below_min_is_refused() {
    for (waits, place) in [
        ("xds_backoff_min: 31s", "server.yaml:2:18"),
        ("xds_backoff_max: 499ms", "server.yaml:2:18"),
        ("xds_backoff_max: 1s\nxds_backoff_min: 2s", "server.yaml:2:18"),
    ] {
        let messages = read_errors(&file(&format!("{XDS}\n{waits}\n")));
        assert!(
            messages.len() == 1 && messages[0].contains("is longer than"),
            "{waits}: {messages:?}"
        );
        assert!(messages[0].starts_with(&format!("error: {place}: ")), "{waits}: {messages:?}");
    }
    load_valid(&file(&format!("{XDS}\nxds_backoff_min: 2s\nxds_backoff_max: 2s\n")));
}

/// Compatibility mode accepts every combination that envoyproxy/ratelimit accepts. Sluicegate's own
/// variables are still validated.
#[test]
fn contradictory_compatibility_variables_are_accepted() {
    let named = |setting, text: &str, is_set| RatelimitValue {
        setting,
        texts: vec![text.to_owned()],
        variable: "ANY",
        is_set,
    };
    let by_default = [("limits_dot_files", "true"), ("limits_optional", "true")];
    let by_default = by_default.map(|(setting, text)| named(setting, text, false));
    let waits = [("xds_backoff_min", "2m"), ("xds_backoff_max", "1m")];
    let waits = waits.map(|(setting, text)| named(setting, text, true));
    let doors = SettingsInput {
        ratelimit_values: [by_default, waits].concat(),
        ..file(&format!("{XDS}\n"))
    };
    assert_eq!(load_valid(&doors).settings.xds_backoff_min, Nanos::from_secs(120));
    let environment = pairs(&[("SLUICEGATE_XDS_BACKOFF_MAX", "1m")]);
    assert_eq!(read_errors(&SettingsInput { environment, ..doors }).len(), 1);
}

#[test]
fn key_prefix_and_replicas_min_are_validated() {
    assert_eq!(load_valid(&file("key_prefix: a:b\n")).settings.key_prefix, "a:b");
    for wrong in ["key_prefix: '{a}'\n", "key_prefix: a b\n", "replicas_min: 0\n"] {
        assert_eq!(read_errors(&file(wrong)).len(), 1, "{wrong}");
    }
    assert_eq!(load_valid(&file("replicas_min: 3\n")).settings.replicas_min.get().get(), 3);
}

#[test]
fn admin_beyond_loopback_needs_a_token() {
    let messages = read_errors(&file("admin_host: 0.0.0.0\n"));
    assert_eq!(
        messages,
        ["error: server.yaml:1:13: `admin_host` 0.0.0.0 lets other machines read the limits, and \
          `admin_token` is not set; set admin_token, or listen on 127.0.0.1"]
    );
    assert!(load_valid(&file("admin_host: 0.0.0.0\nadmin_token: s3cret\n")).warnings.is_empty());
    load_valid(&file("admin_host: 127.0.0.2\n"));
}

#[test]
fn admin_token_matches_exactly_and_stays_hidden() {
    let loaded = load_valid(&file("admin_token: s3cret\n"));
    let token = loaded.settings.admin_token.clone().expect("it was given");
    assert!(token.matches(b"s3cret"));
    for wrong in [&b""[..], b"s3cre", b"s3crets", b"S3cret"] {
        assert!(!token.matches(wrong));
    }
    assert!(!print_config(&loaded).contains("s3cret"));
    assert!(!format!("{loaded:?}").contains("s3cret"));
    let messages = read_errors(&environment(&[("SLUICEGATE_ADMIN_TOKEN", "s3cret s3cret")]));
    assert!(!messages[0].contains("s3cret"), "{messages:?}");
}

#[test]
fn values_outside_their_range_are_refused() {
    let cases = [
        ("grpc_port", "0", true),
        ("grpc_port", "65535", true),
        ("grpc_port", "65536", false),
        ("grpc_port", "+1", false),
        ("near_limit_ratio", "0", true),
        ("near_limit_ratio", "1", true),
        ("near_limit_ratio", "1.01", false),
        ("near_limit_ratio", "NaN", false),
        ("drain_delay", "0", true),
        ("drain_delay", "1us", true),
        ("drain_delay", "5", false),
        ("drain_delay", "s", false),
        ("drain_delay", "-5s", false),
        ("drain_delay", "213503d", true),
        ("drain_delay", "213504d", false),
        ("limit_header", "X Limit", false),
        ("limit_header", "X-Limit:", false),
        ("host", "localhost", false),
        ("admin_token", "two words", false),
        ("limits", "", true),
        ("quota_mode", "1", false),
    ];
    for (name, text, good) in cases {
        let variable = format!("SLUICEGATE_{}", name.to_uppercase());
        let read = sluicegate::config::settings::read(&environment(&[(&variable, text)]));
        assert_eq!(read.is_ok(), good, "{name} {text}");
    }
}

#[test]
fn log_level_accepts_only_listed_names() {
    assert_eq!(load_valid(&flags(&[("log-level", "warn")])).settings.log_level, LogLevel::Warn);
    assert_eq!(read_errors(&flags(&[("log-level", "loud")])).len(), 1);
}
