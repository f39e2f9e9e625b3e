//! Tests of settings: accepted values, precedence of their sources, and error messages.

use std::path::PathBuf;

use sluicegate::config::settings::{
    HeaderName, HostPort, LogLevel, RatelimitValue, RedisEndpoint, ResponseHeaders, SettingOrigin,
    Settings, SettingsInput, Shape, StoreSetting, UnitFraction, WhenFull, print_config, read,
    table,
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

#[test]
fn redis_urls_parse_and_hide_the_password() {
    let of = |url: &str| match load_valid(&flags(&[("backend", url)])).settings.backend {
        StoreSetting::Redis(url) => url,
        StoreSetting::Memory => panic!("{url}"),
    };
    let tcp = of("redis://me:p%40ss:w@redis.shop:6380/3");
    assert_eq!(tcp.endpoint, RedisEndpoint::Tcp(address("redis.shop", 6380)));
    assert_eq!((tcp.user.as_deref(), tcp.password.as_deref()), (Some("me"), Some("p@ss:w")));
    assert_eq!(tcp.database, 3);
    assert_eq!(of("redis://[::1]").endpoint, RedisEndpoint::Tcp(address("::1", 6379)));
    let unix = of("redis+unix://:pass@/run/redis.sock?db=2");
    assert_eq!(unix.endpoint, RedisEndpoint::Unix("/run/redis.sock".into()));
    assert_eq!((unix.user, unix.password.as_deref(), unix.database), (None, Some("pass"), 2));
    let sentinel = of("rediss+sentinel://me:pass@one,two:1/shop/4");
    let (one, two) = (address("one", 26379), address("two", 1));
    assert_eq!(sentinel.endpoint, RedisEndpoint::Sentinel(vec![one, two], "shop".to_owned()));
    assert_eq!((sentinel.tls, sentinel.database), (true, 4));
    let cluster = of("redis+cluster://one,[::1]:7");
    assert_eq!(
        cluster.endpoint,
        RedisEndpoint::Cluster(vec![address("one", 6379), address("::1", 7)])
    );
    assert!(!cluster.tls && of("rediss://one").tls && of("rediss+cluster://one").tls);
    for (url, shown) in [
        (
            "rediss+sentinel://me:pass@one,[::1]/shop/4",
            "rediss+sentinel://me:***@one:26379,[::1]:26379/shop/4",
        ),
        ("redis+cluster://:pass@one,two/0", "redis+cluster://:***@one:6379,two:6379"),
        ("redis://me:p%40ss:w@redis.shop:6380/3", "redis://me:***@redis.shop:6380/3"),
        ("redis://[::1]", "redis://[::1]:6379"),
        ("redis+unix://:pass@/run/redis.sock?db=2", "redis+unix://:***@/run/redis.sock?db=2"),
    ] {
        let loaded = load_valid(&flags(&[("backend", url)]));
        assert!(print_config(&loaded).contains(&format!("backend: \"{shown}\"")), "{url}");
        assert!(!format!("{:?}", loaded.settings).contains("p@ss"));
        assert_eq!(of(shown).to_string(), shown, "what is shown is read again");
    }
}

#[test]
fn invalid_redis_urls_are_refused_without_the_password() {
    for url in [
        "redis://",
        "redis://:6379",
        "redis://host:",
        "redis://host:0",
        "redis://host:65536",
        "redis://host:+1",
        "redis://host/x",
        "redis://host/256",
        "redis://host/1/2",
        "redis://host?db=1",
        "redis://user@host",
        "redis://user:@host",
        "redis://u:%zz@host",
        "redis://[::1",
        "redis://[nonsense]",
        "redis://ho st",
        "redis+unix://run/redis.sock",
        "redis+unix://",
        "redis+sentinel://one",
        "redis+sentinel://one/",
        "redis+sentinel:///shop",
        "redis+sentinel://one,/shop",
        "redis+sentinel://one/sh op",
        "redis+sentinel://one/shop/x",
        "redis+cluster://",
        "redis+cluster://one,,two",
        "redis+cluster://one/1",
        "rediss+unix:///run/redis.sock",
        "redis-cluster://one",
        "redissentinel://one",
        "http://host",
        "Redis://host",
    ] {
        assert_eq!(read_errors(&flags(&[("backend", url)])).len(), 1, "{url}");
    }
    let messages = read_errors(&environment(&[("SLUICEGATE_BACKEND", "redis://me:secret@host:x")]));
    assert!(!messages[0].contains("secret") && messages[0].ends_with("…@host`"), "{messages:?}");
}

#[test]
fn refused_url_shows_only_scheme_and_host() {
    for setting in ["backend", "backend_per_second"] {
        let variable = format!("SLUICEGATE_{}", setting.to_uppercase());
        for (url, shown) in [
            ("tcp://:s3cret@redis:6379", "tcp://…@redis:6379"),
            ("redis://redis:6379/0?password=s3cret", "redis://…"),
            ("redis://me:s3cret", "redis://…"),
            ("redis://redis:6379/0?password=s3@s3cret", "redis://…"),
            ("redis://me:s3@s3?s3cret@host:x/s3cret", "redis://…"),
            ("redis://me:s3@s3cret@host:x/s3cret", "redis://…@host"),
            ("redis://default@redis.internal:s3cret", "redis://…@redis.internal"),
            ("redis://ops@corp.com:s3cret:1", "redis://…@corp.com"),
            ("redis://me:s3cret@[::1]:s3cret", "redis://…@[::1]"),
            ("tcp://me:s3cret@[::1]:6379", "tcp://…@[::1]:6379"),
            ("redis:/me:s3cret", "…"),
            (":s3cret@redis:6379", "…@redis:6379"),
            ("s3cret:s3cret://s3cret", "…"),
        ] {
            let messages = read_errors(&environment(&[(&variable, url)]));
            assert!(messages[0].ends_with(&format!("got `{shown}`")), "{url}: {messages:?}");
            assert!(!messages.concat().contains("s3"), "{url}: {messages:?}");
        }
    }
    let messages = read_errors(&environment(&[("SLUICEGATE_BACKEND", "memry")]));
    assert!(messages[0].ends_with("got `memry`; did you mean `memory`?"), "{messages:?}");
    let link = read_errors(&environment(&[("SLUICEGATE_BACKEND", "tcp://10.0.0.1:6379")]));
    assert!(link[0].contains("got `tcp://…`; Kubernetes sets this"), "{link:?}");
}

fn address(host: &str, port: u16) -> HostPort {
    HostPort { host: host.to_owned(), port }
}

#[test]
fn redis_settings_without_effect_are_refused() {
    let (memory, plain) = ("backend: memory", "backend: redis://host");
    let (tls, sentinel) = ("backend: rediss://host", "backend: redis+sentinel://host/shop");
    for (backend, rest, about) in [
        (memory, "backend_password_file: f", "backend_password_file"),
        ("backend: redis://u:p@host", "backend_password_file: f", "backend_password_file"),
        ("backend: redis://u@host", "", "backend"),
        (memory, "backend_tls_ca_file: f", "backend_tls_ca_file"),
        (plain, "backend_tls_ca_file: f", "backend_tls_ca_file"),
        (plain, "backend_tls_server_name: f", "backend_tls_server_name"),
        (tls, "backend_tls_cert_file: f", "backend_tls_cert_file"),
        (tls, "backend_tls_key_file: f", "backend_tls_key_file"),
        (tls, "backend_sentinel_user: f", "backend_sentinel_user"),
        (plain, "backend_sentinel_password: f", "backend_sentinel_password"),
        (memory, "backend_sentinel_password_file: f", "backend_sentinel_password_file"),
        (sentinel, "backend_sentinel_user: f", "backend_sentinel_user"),
        (
            sentinel,
            "backend_sentinel_password: s\nbackend_sentinel_password_file: f",
            "backend_sentinel_password_file",
        ),
    ] {
        let messages = read_errors(&file(&format!("{backend}\n{rest}\n")));
        assert!(messages.len() == 1 && messages[0].contains(&format!("`{about}`")), "{messages:?}");
    }
    let loaded = load_valid(&file(
        "backend: rediss+sentinel://u@host/shop\nbackend_password_file: a\n\
         backend_sentinel_user: s\nbackend_sentinel_password: s3cret\nbackend_tls_ca_file: b\n\
         backend_tls_cert_file: c\nbackend_tls_key_file: d\nbackend_tls_server_name: e.f\n",
    ));
    assert!(!print_config(&loaded).contains("s3cret"));
    for name in ["backend_tls_server_name: 'a b'", "backend_tls_server_name: 'a/b'"] {
        assert_eq!(read_errors(&file(&format!("{tls}\n{name}\n"))).len(), 1, "{name}");
    }
}

#[test]
fn per_second_redis_accepts_urls_and_shares_files() {
    let second = |first: &str, url: &str, rest: &str| {
        file(&format!("backend: {first}\nbackend_per_second: {url}\n{rest}\n"))
    };
    for url in ["rediss://h", "redis+cluster://h,i", "redis+unix:///s", "redis+sentinel://h/shop"] {
        let loaded = load_valid(&second("redis://h", url, ""));
        let it = loaded.settings.backend_per_second.unwrap().to_string();
        assert_eq!(it.split("://").next(), url.split("://").next());
    }
    for (first, url, rest) in [
        ("redis://u:p@h", "redis://u@i", "backend_password_file: f"),
        ("redis://h", "rediss://i", "backend_tls_ca_file: f"),
        ("rediss://h", "redis://i", "backend_tls_ca_file: f"),
        ("redis://h", "redis+sentinel://i/shop", "backend_sentinel_password_file: f"),
    ] {
        load_valid(&second(first, url, rest));
    }
    for (first, url, rest, about) in [
        ("memory", "redis://h", "", "backend_per_second"),
        ("redis://h", "redis://u@i", "", "backend_per_second"),
        ("redis://:p@h", "redis://:q@i", "backend_password_file: f", "backend_password_file"),
        ("redis://h", "redis://i", "backend_tls_ca_file: f", "backend_tls_ca_file"),
        ("redis://h", "redis://i", "backend_sentinel_user: f", "backend_sentinel_user"),
    ] {
        let messages = read_errors(&second(first, url, rest));
        assert!(messages.len() == 1 && messages[0].contains(&format!("`{about}`")), "{messages:?}");
    }
    let messages = read_errors(&second("redis://h", "redis://me:secret@i:x", ""));
    assert!(!messages[0].contains("secret"), "{messages:?}");
    let shown = print_config(&load_valid(&second("redis://h", "redis://me:secret@i", "")));
    assert!(shown.contains("backend_per_second: \"redis://me:***@i:6379\""), "{shown}");
}

#[test]
fn envoyproxy_key_settings_require_redis_and_envoyproxy_keys() {
    let given = [
        "reference_key_prefix: p",
        "expiry_jitter: 1s",
        "local_deny_cache: 1",
        "stop_when_over: true",
    ];
    for text in given {
        let about = format!("`{}`", text.split(':').next().unwrap());
        for others in ["backend: redis://h", "counter_keys: envoyproxy"] {
            let messages = read_errors(&file(&format!("{others}\n{text}\n")));
            assert!(messages.len() == 1 && messages[0].contains(&about), "{messages:?}");
        }
        load_valid(&file(&format!("backend: redis://h\ncounter_keys: envoyproxy\n{text}\n")));
    }
    let messages =
        read_errors(&file("backend: redis://h\ncounter_keys: envoyproxy\nexpiry_jitter: 1500ms\n"));
    assert!(messages[0].contains("not a whole number"), "{messages:?}");
}

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
