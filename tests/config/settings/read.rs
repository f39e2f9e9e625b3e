//! Tests of settings: accepted values, precedence of their sources, and error messages.

mod conflicts;
mod redis;

use std::path::PathBuf;

use sluicegate::config::settings::{
    HeaderName, HostPort, ResponseHeaders, SettingOrigin, Settings, SettingsInput, Shape,
    UnitFraction, WhenFull, print_config, read, table,
};
use sluicegate::kernel::units::Nanos;

use super::{environment, file, flags, load_valid, messages, pairs, read_errors};

#[test]
fn empty_input_gives_the_defaults() {
    let loaded = load_valid(&SettingsInput::default());
    assert_eq!(loaded.settings, Settings::default());
    assert!(loaded.origins.is_empty() && loaded.warnings.is_empty());
}

#[test]
fn setting_precedence_is_flag_variable_file_default() {
    let mut doors = file("grpc_port: 1\nhttp_port: 1\nadmin_port: 1\n");
    doors.environment = pairs(&[("SLUICEGATE_GRPC_PORT", "2"), ("SLUICEGATE_HTTP_PORT", "2")]);
    doors.flags = vec![("grpc-port".to_owned(), vec!["3".to_owned()])];
    let loaded = load_valid(&doors);
    let Settings { grpc_port, http_port, admin_port, metrics_port, .. } = loaded.settings;
    assert_eq!([grpc_port, http_port, admin_port, metrics_port], [3, 2, 1, 9090]);
    assert_eq!(loaded.origins["grpc_port"], SettingOrigin::Flag("grpc-port".to_owned()));
    assert_eq!(
        loaded.origins["http_port"],
        SettingOrigin::Environment("SLUICEGATE_HTTP_PORT".to_owned())
    );
    assert_eq!(loaded.origins["admin_port"], SettingOrigin::File("server.yaml".into(), 3, 13));
}

#[test]
fn flags_variables_and_file_accept_the_same_values() {
    let wanted = Settings {
        limits: vec![PathBuf::from("a"), PathBuf::from("b/c.yaml")],
        admin_host: "::1".parse().unwrap(),
        max_keys: 5_000,
        when_full: WhenFull::Allow,
        response_headers: ResponseHeaders::Draft,
        reset_header: HeaderName::new("").unwrap(),
        limit_header: HeaderName::new("X-Limit").unwrap(),
        near_limit_ratio: UnitFraction::new(0.5).unwrap(),
        shadow_mode: true,
        drain_delay: Nanos(250_000_000),
        drain_timeout: Nanos(120_000_000_000),
        ..Settings::default()
    };
    let written = file(
        "limits: [a, b/c.yaml]\nadmin_host: \"::1\"\nmax_keys: 5_000\nwhen_full: allow\n\
         response_headers: draft\nreset_header: \"\"\nlimit_header: X-Limit\n\
         near_limit_ratio: 0.5\nshadow_mode: true\ndrain_delay: 250ms\ndrain_timeout: 2m\n",
    );
    assert_eq!(load_valid(&written).settings, wanted);
    let given = [
        ("LIMITS", "a:b/c.yaml"),
        ("ADMIN_HOST", "::1"),
        ("MAX_KEYS", "5_000"),
        ("WHEN_FULL", "allow"),
        ("RESPONSE_HEADERS", "draft"),
        ("RESET_HEADER", ""),
        ("LIMIT_HEADER", "X-Limit"),
        ("NEAR_LIMIT_RATIO", "0.5"),
        ("SHADOW_MODE", "true"),
        ("DRAIN_DELAY", "250ms"),
        ("DRAIN_TIMEOUT", "2m"),
    ];
    let variables: Vec<_> = given.map(|(name, text)| (format!("SLUICEGATE_{name}"), text)).into();
    let variables: Vec<_> = variables.iter().map(|(name, text)| (name.as_str(), *text)).collect();
    assert_eq!(load_valid(&environment(&variables)).settings, wanted);
    let mut flags: Vec<_> = given[1..]
        .iter()
        .map(|(name, text)| (name.to_lowercase().replace('_', "-"), vec![(*text).to_owned()]))
        .collect();
    flags.push(("limits".to_owned(), vec!["a".to_owned(), "b/c.yaml".to_owned()]));
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
                settings_or_messages(&file(&format!("{name}:{empty}\n"))),
                variable,
                "{name}:{empty}"
            );
        }
    }
    let none = "admin_token:\nxds_server:\ngrpc_tls_cert_file:\nsyslog_port:\n";
    assert_eq!(load_valid(&file(none)).settings, Settings::default());
    // An explicit `null` or `~` could be meant as text, so it is refused.
    for text in ["null", "~"] {
        assert_eq!(read_errors(&file(&format!("admin_token: {text}\n"))).len(), 1, "{text}");
    }
    for (name, accepts) in [("log_level", "error | warn"), ("http_port", "a whole number")] {
        let messages = read_errors(&file(&format!("{name}:\n")));
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
                settings_or_messages(&file(&format!("{name}: {text}\n"))),
                flag,
                "{name}: {text}"
            );
        }
    }
    let text = "peer_port: 0\nbackend: redis://host\nadmin_token: 0042871193\nkey_prefix: 1.10\nlimits: [no, 0x10]\n\
                limits_prefix: &it on\nnode_id: *it\npeer_secret: 00000000000000000000000000000042\n";
    let Settings { admin_token, key_prefix, limits, limits_prefix, node_id, peer_secret, .. } =
        load_valid(&file(text)).settings;
    assert_eq!(admin_token.unwrap().reveal(), "0042871193");
    assert_eq!(peer_secret.unwrap().reveal(), SPELT[7]);
    assert_eq!([&*key_prefix, &limits_prefix, &node_id], ["1.10", "on", "on"]);
    assert_eq!(limits, [PathBuf::from("no"), PathBuf::from("0x10")]);
}

#[test]
fn file_numbers_and_booleans_follow_yaml() {
    let text = "grpc_port: 0x10\nmax_keys: 1e3\nshadow_mode: yes\nnear_limit_ratio: 5e-1\n\
                http_port: !!int 80\nsyslog_port: 0x10\nreplicas_min: 0o10\n";
    let Settings { grpc_port, http_port, max_keys, shadow_mode, near_limit_ratio, .. } =
        load_valid(&file(text)).settings;
    assert_eq!((grpc_port, http_port, max_keys, shadow_mode), (16, 80, 1_000, true));
    assert_eq!(near_limit_ratio, UnitFraction::new(0.5).unwrap());
}

#[test]
fn errors_of_flags_variables_and_file_name_their_source() {
    let mut doors = file("http_port: 70000\nlog_level: [info]\ngrpc_prot: 1\nshadow_mode: {}\n");
    doors.environment = pairs(&[("SLUICEGATE_WHEN_FULL", "alow"), ("SLUICEGATE_THREADS", "")]);
    doors.flags = vec![
        ("max-keys".to_owned(), vec!["-1".to_owned()]),
        ("threads".to_owned(), vec!["1".to_owned(), "2".to_owned()]),
        ("admin-prot".to_owned(), vec![]),
    ];
    assert_eq!(
        read_errors(&doors),
        [
            "error: server.yaml:1:12: `http_port` takes a whole number from 0 to 65535, got `70000`",
            "error: server.yaml:2:12: `log_level` takes error | warn | info | debug | trace",
            "error: server.yaml:3:1: there is no such setting; did you mean `grpc_port`?",
            "error: server.yaml:4:14: `shadow_mode` takes true or false",
            "error: SLUICEGATE_WHEN_FULL: `when_full` takes deny | allow, got `alow`; did you mean `allow`?",
            "error: SLUICEGATE_THREADS: `threads` takes a whole number from 0 to 4294967295, got ``",
            "error: --max-keys: `max_keys` takes a whole number from 0, got `-1`",
            "error: --threads: `threads` is given 2 times; once is enough",
            "error: --admin-prot: there is no such setting; did you mean --admin-port?",
        ]
    );
}

#[test]
fn overridden_invalid_value_is_still_an_error() {
    let mut doors = file("grpc_port: nine\n");
    doors.flags = vec![("grpc-port".to_owned(), vec!["9".to_owned()])];
    assert_eq!(read_errors(&doors).len(), 1);
}

#[test]
fn unknown_variable_warns_with_a_suggestion() {
    let loaded = load_valid(&environment(&[("SLUICEGATE_GRPC_PROT", "1"), ("GRPC_PROT", "1")]));
    assert_eq!(
        messages(&loaded.warnings),
        [
            "warning: SLUICEGATE_GRPC_PROT: there is no such setting; did you mean SLUICEGATE_GRPC_PORT?"
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
    let messages = read_errors(&environment(&[("SLUICEGATE_GRPC_PORT", "tcp://10.0.0.1:8081")]));
    assert!(messages[0].contains("enableServiceLinks: false"), "{messages:?}");
}

fn address(host: &str, port: u16) -> HostPort {
    HostPort { host: host.to_owned(), port }
}

#[test]
fn printed_config_reloads_and_shows_origins() {
    let mut doors = file("# mine\nlog_level: debug\n");
    doors.environment = pairs(&[("SLUICEGATE_LIMITS", "a:b")]);
    doors.flags = vec![("retry-after".to_owned(), vec!["true".to_owned()])];
    let loaded = load_valid(&doors);
    let printed = print_config(&loaded);
    let line = |name: &str| {
        let line = printed.lines().find(|line| line.starts_with(&format!("{name}:")));
        line.expect(name).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("log_level"), "log_level: debug # server.yaml:2:12");
    assert_eq!(line("limits"), "limits: [\"a\", \"b\"] # SLUICEGATE_LIMITS");
    assert_eq!(line("retry_after"), "retry_after: true # --retry-after");
    assert_eq!(line("grpc_port"), "grpc_port: 8081 # default");
    assert_eq!(printed.lines().count(), table().len());
    assert_eq!(load_valid(&file(&printed)).settings, loaded.settings);
}

#[test]
fn invalid_settings_file_is_refused_with_line_and_column() {
    for (text, place) in [("- a\n", ":1:1:"), ("grpc_port: 1\nhttp_port: [\n", ":2:")] {
        let messages = read_errors(&file(text));
        assert!(messages.len() == 1 && messages[0].contains(place), "{messages:?}");
    }
    assert_eq!(load_valid(&file("")).settings, Settings::default());
    assert_eq!(load_valid(&file("# nothing\n")).settings, Settings::default());
}

#[test]
fn repeated_setting_is_refused() {
    assert_eq!(
        read_errors(&file("grpc_port: 1\ngrpc_port: 2\n")),
        ["error: server.yaml:2:1: `grpc_port` is given twice; once is enough"]
    );
}

#[test]
fn second_yaml_document_in_a_settings_file_is_refused() {
    let message = "a second document begins here; a file of settings is one document";
    let messages = read_errors(&file("grpc_port: 1\n---\nhttp_port: 2\n"));
    assert_eq!(messages, [format!("error: server.yaml:3:1: {message}")]);
}
