//! Settings that contradict each other, have no effect or are outside their range.

use sluicegate::config::settings::{LogLevel, RatelimitValue, SettingsInput, print_config};
use sluicegate::kernel::units::Nanos;

use crate::config::settings::{dotted, environment, file, flags, load_valid, pairs, read_errors};

const XDS: &str = "limits.xds.server: a:1";

const STATSD: &str = "compat.stats.sink: statsd\ncompat.stats.address: a:1";

#[test]
fn source_and_statistics_settings_without_effect_are_refused() {
    for (others, text, required) in [
        ("", "compat.xds.backoff_min: 1s", XDS),
        ("", "compat.xds.backoff_max: 1m", XDS),
        ("", "compat.xds.backoff_jitter: false", XDS),
        (XDS, "compat.limits.file_prefix: a", "limits.paths: [a]"),
        (XDS, "compat.limits.dot_files: true", "limits.paths: [a]"),
        (XDS, "compat.limits.optional_paths: true", ""),
        ("", "compat.stats.interval: 1s", STATSD),
        ("", "compat.stats.interval: 1s", "compat.stats.sink: log"),
        ("", "compat.stats.tags: a=b", STATSD),
        ("", "compat.stats.tags: a=b", "compat.stats.sink: log"),
    ] {
        let about = format!("`{}` has no effect, because ", text.split(':').next().unwrap());
        let messages = read_errors(&dotted(&format!("{others}\n{text}\n")));
        assert!(
            messages.len() == 1 && messages[0].contains(&about),
            "{others}, {text}: {messages:?}"
        );
        load_valid(&dotted(&format!("{required}\n{text}\n")));
    }
}

#[test]
fn xds_backoff_max_below_min_is_refused() {
    for (waits, place) in [
        ("compat.xds.backoff_min: 31s", "server.yaml:3:18"),
        ("compat.xds.backoff_max: 499ms", "server.yaml:3:18"),
        ("compat.xds.backoff_max: 1s\ncompat.xds.backoff_min: 2s", "server.yaml:3:18"),
    ] {
        let messages = read_errors(&dotted(&format!("{XDS}\n{waits}\n")));
        assert!(
            messages.len() == 1 && messages[0].contains("is longer than"),
            "{waits}: {messages:?}"
        );
        assert!(messages[0].starts_with(&format!("error: {place}: ")), "{waits}: {messages:?}");
    }
    load_valid(&dotted(&format!(
        "{XDS}\ncompat.xds.backoff_min: 2s\ncompat.xds.backoff_max: 2s\n"
    )));
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
    let by_default =
        [("compat.limits.dot_files", "true"), ("compat.limits.optional_paths", "true")];
    let by_default = by_default.map(|(setting, text)| named(setting, text, false));
    let waits = [("compat.xds.backoff_min", "2m"), ("compat.xds.backoff_max", "1m")];
    let waits = waits.map(|(setting, text)| named(setting, text, true));
    let doors = SettingsInput {
        ratelimit_values: [by_default, waits].concat(),
        ..dotted(&format!("{XDS}\n"))
    };
    assert_eq!(load_valid(&doors).settings.compat.xds.backoff_min, Nanos::from_secs(120));
    let environment = pairs(&[("SLUICEGATE_COMPAT_XDS_BACKOFF_MAX", "1m")]);
    assert_eq!(read_errors(&SettingsInput { environment, ..doors }).len(), 1);
}

#[test]
fn key_prefix_and_replicas_min_are_validated() {
    assert_eq!(load_valid(&dotted("store.key_prefix: a:b\n")).settings.store.key_prefix, "a:b");
    for wrong in ["store.key_prefix: '{a}'\n", "store.key_prefix: a b\n", "fleet.min_replicas: 0\n"]
    {
        assert_eq!(read_errors(&dotted(wrong)).len(), 1, "{wrong}");
    }
    assert_eq!(
        load_valid(&dotted("fleet.min_replicas: 3\n")).settings.fleet.min_replicas.get().get(),
        3
    );
}

#[test]
fn admin_beyond_loopback_needs_a_token() {
    let messages = read_errors(&dotted("listen.admin_host: 0.0.0.0\n"));
    assert_eq!(
        messages,
        [
            "error: server.yaml:2:15: `listen.admin_host` 0.0.0.0 lets other machines read the limits, and \
          no admin token is set; set admin.token_file, or listen on 127.0.0.1"
        ]
    );
    assert!(
        load_valid(&dotted("listen.admin_host: 0.0.0.0\nadmin.token: s3cret-of-the-port\n"))
            .warnings
            .is_empty()
    );
    load_valid(&dotted("listen.admin_host: 127.0.0.2\n"));
}

#[test]
fn admin_token_matches_exactly_and_stays_hidden() {
    let loaded = load_valid(&dotted("admin.token: s3cret-of-the-port\n"));
    let token = loaded.settings.admin.token.clone().expect("it was given");
    assert!(token.matches(b"s3cret-of-the-port"));
    for wrong in [&b""[..], b"s3cret-of-the-por", b"s3cret-of-the-portS", b"S3cret-of-the-port"] {
        assert!(!token.matches(wrong));
    }
    assert!(!print_config(&loaded).contains("s3cret-of-the-port"));
    assert!(!format!("{loaded:?}").contains("s3cret-of-the-port"));
    let messages = read_errors(&environment(&[(
        "SLUICEGATE_ADMIN_TOKEN",
        "s3cret-of-the-port s3cret-of-the-port",
    )]));
    assert!(!messages[0].contains("s3cret-of-the-port"), "{messages:?}");
}

#[test]
fn values_outside_their_range_are_refused() {
    let cases = [
        ("listen.grpc_port", "0", true),
        ("listen.grpc_port", "65535", true),
        ("listen.grpc_port", "65536", false),
        ("listen.grpc_port", "+1", false),
        ("telemetry.near_limit", "0", true),
        ("telemetry.near_limit", "1", true),
        ("telemetry.near_limit", "1.01", false),
        ("telemetry.near_limit", "NaN", false),
        ("listen.drain_delay", "0", true),
        ("listen.drain_delay", "1us", true),
        ("listen.drain_delay", "5", false),
        ("listen.drain_delay", "s", false),
        ("listen.drain_delay", "-5s", false),
        ("listen.drain_delay", "213503d", true),
        ("listen.drain_delay", "213504d", false),
        ("compat.answers.limit_header", "X Limit", false),
        ("compat.answers.limit_header", "X-Limit:", false),
        ("listen.host", "localhost", false),
        ("admin.token", "two words", false),
        ("limits.paths", "", true),
        ("compat.limits.quota_mode", "1", false),
    ];
    for (name, text, good) in cases {
        let variable = format!("SLUICEGATE_{}", name.replace('.', "_").to_uppercase());
        let read = sluicegate::config::settings::read(&environment(&[(&variable, text)]));
        assert_eq!(read.is_ok(), good, "{name} {text}");
    }
}

#[test]
fn log_level_accepts_only_listed_names() {
    assert_eq!(
        load_valid(&flags(&[("telemetry-log-level", "warn")])).settings.telemetry.log.level,
        LogLevel::Warn
    );
    assert_eq!(read_errors(&flags(&[("telemetry-log-level", "loud")])).len(), 1);
}

#[test]
fn a_block_or_dotted_name_is_an_error_with_its_nested_form() {
    assert_eq!(
        read_errors(&file("store.url: memory\nstore: 1\n")),
        [
            "error: server.yaml:1:1: `store.url` must be nested, not written with dots; write `store: {url: …}`",
            "error: server.yaml:2:1: `store` is a block, and needs settings inside it; write for example `store: {url: …}`",
        ]
    );
}

#[test]
fn message_sizes_out_of_bounds_are_refused() {
    for (text, why) in [
        ("listen.max_message: 65535", "`listen.max_message` 65535 is not from 65536 to 4194304"),
        ("listen.max_message: 4194305", "is not from 65536 to 4194304"),
        ("listen.max_body_memory: 1048575", "1048575 is below `listen.max_message`"),
    ] {
        let errors = read_errors(&dotted(&format!("{text}\n")));
        assert!(errors.len() == 1 && errors[0].contains(why), "{text}: {errors:?}");
    }
    load_valid(&dotted("listen.max_message: 4194304\nlisten.max_body_memory: 4194304\n"));
}
