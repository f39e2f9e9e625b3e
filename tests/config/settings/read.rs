//! Tests of settings: accepted values, precedence of their sources, and error messages.

mod conflicts;
mod file_store;
mod postgres;
mod redis;

use std::path::PathBuf;

use sluicegate::config::settings::{
    HeaderName, HostPort, ListenSettings, ResponseHeaders, SettingOrigin, Settings, SettingsInput,
    Shape, UnitFraction, WhenFull, print_config, read, setting_blocks, table,
};
use sluicegate::kernel::units::Nanos;

use super::{dotted, environment, file, flags, load_valid, messages, pairs, read_errors};

#[test]
fn empty_input_gives_the_defaults() {
    let loaded = load_valid(&SettingsInput::default());
    assert_eq!(loaded.settings, Settings::default());
    assert!(loaded.origins.is_empty() && loaded.warnings.is_empty());
}

#[test]
fn setting_precedence_is_flag_variable_file_default() {
    let mut doors = dotted("listen.grpc_port: 1\nlisten.http_port: 1\nlisten.admin_port: 1\n");
    doors.environment =
        pairs(&[("SLUICEGATE_LISTEN_GRPC_PORT", "2"), ("SLUICEGATE_LISTEN_HTTP_PORT", "2")]);
    doors.flags = vec![("listen-grpc-port".to_owned(), vec!["3".to_owned()])];
    let loaded = load_valid(&doors);
    let ListenSettings { grpc_port, http_port, admin_port, metrics_port, .. } =
        loaded.settings.listen;
    assert_eq!([grpc_port, http_port, admin_port], [3, 2, 1]);
    assert_eq!(metrics_port, Some(9090));
    let flag = SettingOrigin::Flag("listen-grpc-port".to_owned());
    assert_eq!(loaded.origins["listen.grpc_port"], flag);
    assert_eq!(
        loaded.origins["listen.http_port"],
        SettingOrigin::Environment("SLUICEGATE_LISTEN_HTTP_PORT".to_owned())
    );
    assert_eq!(
        loaded.origins["listen.admin_port"],
        SettingOrigin::File("server.yaml".into(), 2, 15)
    );
}

#[test]
fn flags_variables_and_file_accept_the_same_values() {
    let mut wanted = Settings::default();
    wanted.limits.paths = vec![PathBuf::from("a"), PathBuf::from("b/c.yaml")];
    wanted.listen.admin_host = "::1".parse().unwrap();
    wanted.store.max_keys = 5_000;
    wanted.store.when_full = WhenFull::Allow;
    wanted.answers.headers = ResponseHeaders::Draft;
    wanted.compat.answers.reset_header = HeaderName::new("").unwrap();
    wanted.compat.answers.limit_header = HeaderName::new("X-Limit").unwrap();
    wanted.telemetry.near_limit = UnitFraction::new(0.5).unwrap();
    wanted.answers.shadow_mode = true;
    wanted.listen.drain_delay = Nanos(250_000_000);
    wanted.listen.drain_timeout = Nanos(120_000_000_000);
    let written = dotted(
        "limits.paths: [a, b/c.yaml]\nlisten.admin_host: \"::1\"\nstore.max_keys: 5_000\n\
         store.when_full: allow\nanswers.headers: draft\ncompat.answers.reset_header: \"\"\n\
         compat.answers.limit_header: X-Limit\ntelemetry.near_limit: 0.5\n\
         answers.shadow_mode: true\nlisten.drain_delay: 250ms\nlisten.drain_timeout: 2m\n",
    );
    assert_eq!(load_valid(&written).settings, wanted);
    let given = [
        ("LIMITS_PATHS", "a:b/c.yaml"),
        ("LISTEN_ADMIN_HOST", "::1"),
        ("STORE_MAX_KEYS", "5_000"),
        ("STORE_WHEN_FULL", "allow"),
        ("ANSWERS_HEADERS", "draft"),
        ("COMPAT_ANSWERS_RESET_HEADER", ""),
        ("COMPAT_ANSWERS_LIMIT_HEADER", "X-Limit"),
        ("TELEMETRY_NEAR_LIMIT", "0.5"),
        ("ANSWERS_SHADOW_MODE", "true"),
        ("LISTEN_DRAIN_DELAY", "250ms"),
        ("LISTEN_DRAIN_TIMEOUT", "2m"),
    ];
    let variables: Vec<_> = given.map(|(name, text)| (format!("SLUICEGATE_{name}"), text)).into();
    let variables: Vec<_> = variables.iter().map(|(name, text)| (name.as_str(), *text)).collect();
    assert_eq!(load_valid(&environment(&variables)).settings, wanted);
    let mut flags: Vec<_> = given[1..]
        .iter()
        .map(|(name, text)| (name.to_lowercase().replace('_', "-"), vec![(*text).to_owned()]))
        .collect();
    flags.push(("limits-paths".to_owned(), vec!["a".to_owned(), "b/c.yaml".to_owned()]));
    assert_eq!(load_valid(&SettingsInput { flags, ..SettingsInput::default() }).settings, wanted);
}

/// Setting values that YAML would read as numbers or booleans, although the setting is text.
const SPELT: [&str; 10] = [
    "1.10",
    "0042",
    "no",
    "0x10",
    "1e3",
    "on",
    "-0",
    "00000000000000000000000000000042",
    "12e4567",
    ".inf",
];

/// Reads the settings. Returns them, or the error messages without their sources.
fn settings_or_messages(input: &SettingsInput) -> Result<Settings, Vec<String>> {
    match read(input) {
        Ok(loaded) => Ok(loaded.settings),
        Err(problems) => Err(problems.into_iter().map(|it| it.message).collect()),
    }
}

#[test]
fn empty_value_is_equivalent_in_every_source() {
    for setting in table().iter().filter(|setting| setting.shape == Shape::One) {
        let (name, variable) =
            (setting.name, settings_or_messages(&environment(&[(&setting.variable, "")])));
        assert_eq!(settings_or_messages(&flags(&[(&setting.flag, "")])), variable, "{name}");
        for empty in ["", " \"\"", " # nothing"] {
            assert_eq!(
                settings_or_messages(&dotted(&format!("{name}:{empty}\n"))),
                variable,
                "{name}:{empty}"
            );
        }
    }
    let none =
        "admin.token:\nlimits.xds.server:\nlisten.tls.cert_file:\nlisten.syslog_port: none\n";
    assert_eq!(load_valid(&dotted(none)).settings, Settings::default());
    // An explicit `null` or `~` could be meant as text, so it is refused.
    for text in ["null", "~"] {
        assert_eq!(read_errors(&dotted(&format!("admin.token: {text}\n"))).len(), 1, "{text}");
    }
    for (name, accepts) in
        [("telemetry.log.level", "error | warn"), ("listen.http_port", "a whole number")]
    {
        let messages = read_errors(&dotted(&format!("{name}:\n")));
        assert!(messages[0].contains(&format!("`{name}` takes {accepts}")), "{messages:?}");
    }
}

#[test]
fn unquoted_text_like_010_keeps_its_spelling_in_every_source() {
    let kinds = ["text", "word", "name", "header name", "path", "paths", "pairs", "place"];
    let also = ["address", "IP address", "networks", "duration"];
    let is_text = |unit: &str| kinds.contains(&unit) || also.contains(&unit);
    for setting in table().iter().filter(|setting| is_text(setting.unit)) {
        for text in SPELT {
            let flag = settings_or_messages(&flags(&[(&setting.flag, text)]));
            let name = setting.name;
            assert_eq!(
                settings_or_messages(&environment(&[(&setting.variable, text)])),
                flag,
                "{name}: {text}"
            );
            assert_eq!(
                settings_or_messages(&dotted(&format!("{name}: {text}\n"))),
                flag,
                "{name}: {text}"
            );
        }
    }
    let text = "listen.peer_port: 0\nstore.url: redis://host\nadmin.token: 00428711930042871193\n\
                store.key_prefix: 1.10\nlimits.paths: [no, 0x10]\n\
                compat.limits.file_prefix: &it on\nfleet.replica_name: *it\n\
                fleet.peers.secret: 00000000000000000000000000000042\n";
    let Settings { admin, limits, store, fleet, compat, .. } = load_valid(&dotted(text)).settings;
    assert_eq!(admin.token.unwrap().reveal(), "00428711930042871193");
    assert_eq!(fleet.peers.secret.unwrap().reveal(), SPELT[7]);
    let texts = [&*store.key_prefix, &compat.limits.file_prefix, &fleet.replica_name];
    assert_eq!(texts, ["1.10", "on", "on"]);
    assert_eq!(limits.paths, [PathBuf::from("no"), PathBuf::from("0x10")]);
}

#[test]
fn file_numbers_and_booleans_follow_yaml() {
    let text = "listen.grpc_port: 0x10\nstore.max_keys: 1e3\nanswers.shadow_mode: yes\n\
                telemetry.near_limit: 5e-1\nlisten.http_port: !!int 80\nlisten.syslog_port: 0x10\nfleet.min_replicas: 0o10\n";
    let Settings { listen, store, answers, telemetry, .. } = load_valid(&dotted(text)).settings;
    assert_eq!((listen.grpc_port, listen.http_port, store.max_keys), (16, 80, 1_000));
    assert!(answers.shadow_mode);
    assert_eq!(telemetry.near_limit, UnitFraction::new(0.5).unwrap());
}

#[test]
fn errors_of_flags_variables_and_file_name_their_source() {
    let mut doors = file(
        "listen: {http_port: 70000, grpc_prot: 1}\ntelemetry:\n  log: {level: [info]}\n\
         answers:\n  shadow_mode: {}\n",
    );
    doors.environment = pairs(&[
        ("SLUICEGATE_STORE_WHEN_FULL", "alow"),
        ("SLUICEGATE_TELEMETRY_METRICS_MAX_RULES", ""),
    ]);
    doors.flags = vec![
        ("store-max-keys".to_owned(), vec!["-1".to_owned()]),
        ("telemetry-metrics-max-rules".to_owned(), vec!["1".to_owned(), "2".to_owned()]),
        ("admin-prot".to_owned(), vec![]),
    ];
    assert_eq!(
        read_errors(&doors),
        [
            "error: server.yaml:1:21: `listen.http_port` takes a whole number from 0 to 65535, got `70000`",
            "error: server.yaml:1:28: unknown setting `listen.grpc_prot`; did you mean `listen.grpc_port`?",
            "error: server.yaml:3:16: `telemetry.log.level` takes error | warn | info | debug | trace",
            "error: server.yaml:5:16: `answers.shadow_mode` takes true or false",
            "error: SLUICEGATE_STORE_WHEN_FULL: `store.when_full` takes deny | allow, got `alow`; did you mean `allow`?",
            "error: SLUICEGATE_TELEMETRY_METRICS_MAX_RULES: `telemetry.metrics.max_rules` takes a whole number from 0 to 4294967295, got ``",
            "error: --store-max-keys: `store.max_keys` takes a whole number from 0, got `-1`",
            "error: --telemetry-metrics-max-rules: `telemetry.metrics.max_rules` is set 2 times; set it once",
            "error: --admin-prot: unknown setting; did you mean --listen-admin-port?",
        ]
    );
}

#[test]
fn overridden_invalid_value_is_still_an_error() {
    let mut doors = dotted("listen.grpc_port: nine\n");
    doors.flags = vec![("listen-grpc-port".to_owned(), vec!["9".to_owned()])];
    assert_eq!(read_errors(&doors).len(), 1);
}

#[test]
fn unknown_variable_warns_with_a_suggestion() {
    let loaded = load_valid(&environment(&[("SLUICEGATE_GRPC_PROT", "1"), ("GRPC_PROT", "1")]));
    assert_eq!(
        messages(&loaded.warnings),
        [
            "warning: SLUICEGATE_GRPC_PROT: unknown setting; did you mean SLUICEGATE_LISTEN_GRPC_PORT?"
        ]
    );
}

#[test]
fn kubernetes_service_variables_are_ignored_unless_they_name_settings() {
    let links = [
        ("SLUICEGATE_SERVICE_HOST", "10.0.0.1"),
        ("SLUICEGATE_SERVICE_PORT_GRPC", "8081"),
        ("SLUICEGATE_PORT", "tcp://10.0.0.1:8081"),
        ("SLUICEGATE_PORT_8081_TCP_ADDR", "10.0.0.1"),
    ];
    assert!(load_valid(&environment(&links)).warnings.is_empty());
    let messages =
        read_errors(&environment(&[("SLUICEGATE_LISTEN_GRPC_PORT", "tcp://10.0.0.1:8081")]));
    assert!(messages[0].contains("enableServiceLinks: false"), "{messages:?}");
}

fn address(host: &str, port: u16) -> HostPort {
    HostPort { host: host.to_owned(), port }
}

#[test]
fn printed_config_reloads_and_shows_origins() {
    let mut doors = dotted("# mine\ntelemetry.log.level: debug\n");
    doors.environment = pairs(&[("SLUICEGATE_LIMITS_PATHS", "a:b")]);
    doors.flags = vec![("answers-retry-after".to_owned(), vec!["true".to_owned()])];
    let loaded = load_valid(&doors);
    let printed = print_config(&loaded);
    let line = |key: &str| {
        let line = printed.lines().find(|line| line.trim().starts_with(&format!("{key}:")));
        line.expect(key).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("level"), "level: debug # server.yaml:3:12");
    assert_eq!(line("paths"), "paths: [\"a\", \"b\"] # SLUICEGATE_LIMITS_PATHS");
    assert_eq!(line("retry_after"), "retry_after: true # --answers-retry-after");
    assert_eq!(line("grpc_port"), "grpc_port: 8081 # default");
    assert_eq!(printed.lines().count(), table().len() + setting_blocks().len());
    assert_eq!(load_valid(&file(&printed)).settings, loaded.settings);
}

#[test]
fn invalid_settings_file_is_refused_with_line_and_column() {
    for (text, place) in [("- a\n", ":1:1:"), ("listen:\n  grpc_port: [\n", ":2:")] {
        let messages = read_errors(&file(text));
        assert!(messages.len() == 1 && messages[0].contains(place), "{messages:?}");
    }
    assert_eq!(load_valid(&file("")).settings, Settings::default());
    assert_eq!(load_valid(&file("# nothing\n")).settings, Settings::default());
}

#[test]
fn repeated_setting_is_refused() {
    assert_eq!(
        read_errors(&dotted("listen.grpc_port: 1\nlisten.grpc_port: 2\n")),
        ["error: server.yaml:3:3: duplicate key `grpc_port`; remove one"]
    );
}

#[test]
fn second_yaml_document_in_a_settings_file_is_refused() {
    let message = "a second YAML document starts here; write all settings in one document";
    let messages = read_errors(&file("listen: {grpc_port: 1}\n---\nlimits: {}\n"));
    assert_eq!(messages, [format!("error: server.yaml:3:1: {message}")]);
}
