//! Tests of settings: accepted values, precedence of their sources, and error messages.

use std::path::PathBuf;

use sluicegate::config::settings::{
    HeaderName, HostPort, ListenSettings, LogLevel, RatelimitValue, RedisEndpoint, ResponseHeaders,
    SettingOrigin, Settings, SettingsInput, Shape, StoreUrl, UnitFraction, WhenFull, print_config,
    read, renamed_settings, setting_blocks, table,
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
    wanted.telemetry.metrics.near_limit_ratio = UnitFraction::new(0.5).unwrap();
    wanted.answers.shadow_mode = true;
    wanted.listen.drain_delay = Nanos(250_000_000);
    wanted.listen.drain_timeout = Nanos(120_000_000_000);
    let written = dotted(
        "limits.paths: [a, b/c.yaml]\nlisten.admin_host: \"::1\"\nstore.max_keys: 5_000\n\
         store.when_full: allow\nanswers.headers: draft\ncompat.answers.reset_header: \"\"\n\
         compat.answers.limit_header: X-Limit\ntelemetry.metrics.near_limit_ratio: 0.5\n\
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
        ("TELEMETRY_METRICS_NEAR_LIMIT_RATIO", "0.5"),
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
        "listen.admin_token:\nlimits.xds.server:\nlisten.tls.cert_file:\nlisten.syslog_port:\n";
    assert_eq!(load_valid(&dotted(none)).settings, Settings::default());
    // An explicit `null` or `~` could be meant as text, so it is refused.
    for text in ["null", "~"] {
        assert_eq!(
            read_errors(&dotted(&format!("listen.admin_token: {text}\n"))).len(),
            1,
            "{text}"
        );
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
    let text = "listen.peer_port: 0\nstore.url: redis://host\nlisten.admin_token: 0042871193\n\
                store.key_prefix: 1.10\nlimits.paths: [no, 0x10]\n\
                compat.limits.file_prefix: &it on\nfleet.replica_name: *it\n\
                fleet.peers.secret: 00000000000000000000000000000042\n";
    let Settings { listen, limits, store, fleet, compat, .. } = load_valid(&dotted(text)).settings;
    assert_eq!(listen.admin_token.unwrap().reveal(), "0042871193");
    assert_eq!(fleet.peers.secret.unwrap().reveal(), SPELT[7]);
    let texts = [&*store.key_prefix, &compat.limits.file_prefix, &fleet.replica_name];
    assert_eq!(texts, ["1.10", "on", "on"]);
    assert_eq!(limits.paths, [PathBuf::from("no"), PathBuf::from("0x10")]);
}

#[test]
fn file_numbers_and_booleans_follow_yaml() {
    let text = "listen.grpc_port: 0x10\nstore.max_keys: 1e3\nanswers.shadow_mode: yes\n\
                telemetry.metrics.near_limit_ratio: 5e-1\nlisten.http_port: !!int 80\nlisten.syslog_port: 0x10\nfleet.min_replicas: 0o10\n";
    let Settings { listen, store, answers, telemetry, .. } = load_valid(&dotted(text)).settings;
    assert_eq!((listen.grpc_port, listen.http_port, store.max_keys), (16, 80, 1_000));
    assert!(answers.shadow_mode);
    assert_eq!(telemetry.metrics.near_limit_ratio, UnitFraction::new(0.5).unwrap());
}

#[test]
fn errors_of_flags_variables_and_file_name_their_source() {
    let mut doors = file(
        "listen: {http_port: 70000, grpc_prot: 1}\ntelemetry:\n  log: {level: [info]}\n\
         answers:\n  shadow_mode: {}\n",
    );
    doors.environment =
        pairs(&[("SLUICEGATE_STORE_WHEN_FULL", "alow"), ("SLUICEGATE_COMPAT_STATS_MAX_RULES", "")]);
    doors.flags = vec![
        ("store-max-keys".to_owned(), vec!["-1".to_owned()]),
        ("compat-stats-max-rules".to_owned(), vec!["1".to_owned(), "2".to_owned()]),
        ("admin-prot".to_owned(), vec![]),
    ];
    assert_eq!(
        read_errors(&doors),
        [
            "error: server.yaml:1:21: `listen.http_port` takes a whole number from 0 to 65535, got `70000`",
            "error: server.yaml:1:28: there is no setting `listen.grpc_prot`; did you mean `listen.grpc_port`?",
            "error: server.yaml:3:16: `telemetry.log.level` takes error | warn | info | debug | trace",
            "error: server.yaml:5:16: `answers.shadow_mode` takes true or false",
            "error: SLUICEGATE_STORE_WHEN_FULL: `store.when_full` takes deny | allow, got `alow`; did you mean `allow`?",
            "error: SLUICEGATE_COMPAT_STATS_MAX_RULES: `compat.stats.max_rules` takes a whole number from 0 to 4294967295, got ``",
            "error: --store-max-keys: `store.max_keys` takes a whole number from 0, got `-1`",
            "error: --compat-stats-max-rules: `compat.stats.max_rules` is given 2 times; once is enough",
            "error: --admin-prot: there is no such setting; did you mean --listen-admin-port?",
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
            "warning: SLUICEGATE_GRPC_PROT: there is no such setting; did you mean SLUICEGATE_LISTEN_GRPC_PORT?"
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

#[test]
fn redis_urls_parse_and_hide_the_password() {
    let of = |url: &str| match load_valid(&flags(&[("store-url", url)])).settings.store.url {
        StoreUrl::Redis(url) => url,
        StoreUrl::Memory => panic!("{url}"),
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
        let loaded = load_valid(&flags(&[("store-url", url)]));
        assert!(print_config(&loaded).contains(&format!("  url: \"{shown}\"")), "{url}");
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
        assert_eq!(read_errors(&flags(&[("store-url", url)])).len(), 1, "{url}");
    }
    let messages =
        read_errors(&environment(&[("SLUICEGATE_STORE_URL", "redis://me:secret@host:x")]));
    assert!(!messages[0].contains("secret") && messages[0].ends_with("…@host`"), "{messages:?}");
}

#[test]
fn refused_url_shows_only_scheme_and_host() {
    for variable in ["SLUICEGATE_STORE_URL", "SLUICEGATE_COMPAT_STORE_PER_SECOND_URL"] {
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
            let messages = read_errors(&environment(&[(variable, url)]));
            assert!(messages[0].ends_with(&format!("got `{shown}`")), "{url}: {messages:?}");
            assert!(!messages.concat().contains("s3"), "{url}: {messages:?}");
        }
    }
    let messages = read_errors(&environment(&[("SLUICEGATE_STORE_URL", "memry")]));
    assert!(messages[0].ends_with("got `memry`; did you mean `memory`?"), "{messages:?}");
    let link = read_errors(&environment(&[("SLUICEGATE_STORE_URL", "tcp://10.0.0.1:6379")]));
    assert!(link[0].contains("got `tcp://…`; Kubernetes sets this"), "{link:?}");
}

fn address(host: &str, port: u16) -> HostPort {
    HostPort { host: host.to_owned(), port }
}

#[test]
fn redis_settings_without_effect_are_refused() {
    let (memory, plain) = ("store.url: memory", "store.url: redis://host");
    let (tls, sentinel) = ("store.url: rediss://host", "store.url: redis+sentinel://host/shop");
    for (backend, rest, about) in [
        (memory, "store.password_file: f", "store.password_file"),
        ("store.url: redis://u:p@host", "store.password_file: f", "store.password_file"),
        ("store.url: redis://u@host", "", "store.url"),
        (memory, "store.tls.ca_file: f", "store.tls.ca_file"),
        (plain, "store.tls.ca_file: f", "store.tls.ca_file"),
        (plain, "store.tls.server_name: f", "store.tls.server_name"),
        (tls, "store.tls.cert_file: f", "store.tls.cert_file"),
        (tls, "store.tls.key_file: f", "store.tls.key_file"),
        (tls, "store.sentinel.user: f", "store.sentinel.user"),
        (plain, "compat.store.sentinel_password: f", "compat.store.sentinel_password"),
        (memory, "store.sentinel.password_file: f", "store.sentinel.password_file"),
        (sentinel, "store.sentinel.user: f", "store.sentinel.user"),
        (
            sentinel,
            "compat.store.sentinel_password: s\nstore.sentinel.password_file: f",
            "store.sentinel.password_file",
        ),
    ] {
        let messages = read_errors(&dotted(&format!("{backend}\n{rest}\n")));
        assert!(messages.len() == 1 && messages[0].contains(&format!("`{about}`")), "{messages:?}");
    }
    let loaded = load_valid(&dotted(
        "store.url: rediss+sentinel://u@host/shop\nstore.password_file: a\n\
         store.sentinel.user: s\ncompat.store.sentinel_password: s3cret\nstore.tls.ca_file: b\n\
         store.tls.cert_file: c\nstore.tls.key_file: d\nstore.tls.server_name: e.f\n",
    ));
    assert!(!print_config(&loaded).contains("s3cret"));
    for name in ["store.tls.server_name: 'a b'", "store.tls.server_name: 'a/b'"] {
        assert_eq!(read_errors(&dotted(&format!("{tls}\n{name}\n"))).len(), 1, "{name}");
    }
}

#[test]
fn per_second_redis_accepts_urls_and_shares_files() {
    let second = |first: &str, url: &str, rest: &str| {
        dotted(&format!("store.url: {first}\ncompat.store.per_second_url: {url}\n{rest}\n"))
    };
    for url in ["rediss://h", "redis+cluster://h,i", "redis+unix:///s", "redis+sentinel://h/shop"] {
        let loaded = load_valid(&second("redis://h", url, ""));
        let it = loaded.settings.compat.store.per_second_url.unwrap().to_string();
        assert_eq!(it.split("://").next(), url.split("://").next());
    }
    for (first, url, rest) in [
        ("redis://u:p@h", "redis://u@i", "store.password_file: f"),
        ("redis://h", "rediss://i", "store.tls.ca_file: f"),
        ("rediss://h", "redis://i", "store.tls.ca_file: f"),
        ("redis://h", "redis+sentinel://i/shop", "store.sentinel.password_file: f"),
    ] {
        load_valid(&second(first, url, rest));
    }
    for (first, url, rest, about) in [
        ("memory", "redis://h", "", "compat.store.per_second_url"),
        ("redis://h", "redis://u@i", "", "compat.store.per_second_url"),
        ("redis://:p@h", "redis://:q@i", "store.password_file: f", "store.password_file"),
        ("redis://h", "redis://i", "store.tls.ca_file: f", "store.tls.ca_file"),
        ("redis://h", "redis://i", "store.sentinel.user: f", "store.sentinel.user"),
    ] {
        let messages = read_errors(&second(first, url, rest));
        assert!(messages.len() == 1 && messages[0].contains(&format!("`{about}`")), "{messages:?}");
    }
    let messages = read_errors(&second("redis://h", "redis://me:secret@i:x", ""));
    assert!(!messages[0].contains("secret"), "{messages:?}");
    let shown = print_config(&load_valid(&second("redis://h", "redis://me:secret@i", "")));
    assert!(shown.contains("    per_second_url: \"redis://me:***@i:6379\""), "{shown}");
}

#[test]
fn envoyproxy_key_settings_require_redis_and_envoyproxy_keys() {
    let given = [
        "compat.store.key_prefix: p",
        "compat.store.expiry_jitter: 1s",
        "compat.store.deny_cache: 1",
        "compat.store.stop_when_over: true",
    ];
    for text in given {
        let about = format!("`{}`", text.split(':').next().unwrap());
        for others in ["store.url: redis://h", "compat.store.key_format: compat"] {
            let messages = read_errors(&dotted(&format!("{others}\n{text}\n")));
            assert!(messages.len() == 1 && messages[0].contains(&about), "{messages:?}");
        }
        load_valid(&dotted(&format!(
            "store.url: redis://h\ncompat.store.key_format: compat\n{text}\n"
        )));
    }
    let messages = read_errors(&dotted(
        "store.url: redis://h\ncompat.store.key_format: compat\ncompat.store.expiry_jitter: 1500ms\n",
    ));
    assert!(messages[0].contains("not a whole number"), "{messages:?}");
}

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
        ("", "compat.stats.protocol: udp", STATSD),
        (
            "compat.stats.sink: log",
            "compat.stats.protocol: udp",
            "compat.stats.sink: dogstatsd\ncompat.stats.address: a:1",
        ),
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
          `listen.admin_token` is not set; set listen.admin_token, or listen on 127.0.0.1"
        ]
    );
    assert!(
        load_valid(&dotted("listen.admin_host: 0.0.0.0\nlisten.admin_token: s3cret\n"))
            .warnings
            .is_empty()
    );
    load_valid(&dotted("listen.admin_host: 127.0.0.2\n"));
}

#[test]
fn admin_token_matches_exactly_and_stays_hidden() {
    let loaded = load_valid(&dotted("listen.admin_token: s3cret\n"));
    let token = loaded.settings.listen.admin_token.clone().expect("it was given");
    assert!(token.matches(b"s3cret"));
    for wrong in [&b""[..], b"s3cre", b"s3crets", b"S3cret"] {
        assert!(!token.matches(wrong));
    }
    assert!(!print_config(&loaded).contains("s3cret"));
    assert!(!format!("{loaded:?}").contains("s3cret"));
    let messages = read_errors(&environment(&[("SLUICEGATE_LISTEN_ADMIN_TOKEN", "s3cret s3cret")]));
    assert!(!messages[0].contains("s3cret"), "{messages:?}");
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
        ["error: server.yaml:3:3: `grpc_port` is given twice; once is enough"]
    );
}

#[test]
fn second_yaml_document_in_a_settings_file_is_refused() {
    let message = "a second document begins here; a file of settings is one document";
    let messages = read_errors(&file("listen: {grpc_port: 1}\n---\nlimits: {}\n"));
    assert_eq!(messages, [format!("error: server.yaml:3:1: {message}")]);
}

#[test]
fn values_outside_their_range_are_refused() {
    let cases = [
        ("listen.grpc_port", "0", true),
        ("listen.grpc_port", "65535", true),
        ("listen.grpc_port", "65536", false),
        ("listen.grpc_port", "+1", false),
        ("telemetry.metrics.near_limit_ratio", "0", true),
        ("telemetry.metrics.near_limit_ratio", "1", true),
        ("telemetry.metrics.near_limit_ratio", "1.01", false),
        ("telemetry.metrics.near_limit_ratio", "NaN", false),
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
        ("listen.admin_token", "two words", false),
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
fn former_names_are_errors_that_contain_the_new_name() {
    let mut doors =
        file("limits: [a]\nbackend_deadline: 5ms\nthreads: 2\nstore.url: memory\nstore: 1\n");
    doors.environment = pairs(&[("SLUICEGATE_BACKEND", "memory")]);
    doors.flags = vec![("log-level".to_owned(), vec![])];
    assert_eq!(
        read_errors(&doors),
        [
            "error: server.yaml:1:1: `limits` was renamed to `limits.paths`; write `limits: {paths: …}`",
            "error: server.yaml:2:1: `backend_deadline` was renamed to `store.deadline`; write `store: {deadline: …}`",
            "error: server.yaml:3:1: `threads` was removed; there is one worker thread for each CPU that the container may use; set the variable TOKIO_WORKER_THREADS for another number",
            "error: server.yaml:4:1: `store.url` is a setting in a block; write `store: {url: …}`",
            "error: server.yaml:5:1: `store` is a block of settings; write for example `store: {url: …}`",
            "error: SLUICEGATE_BACKEND: renamed to SLUICEGATE_STORE_URL",
            "error: --log-level: renamed to --telemetry-log-level",
        ]
    );
    for (former, name) in renamed_settings() {
        assert!(table().iter().any(|row| row.name == *name), "{former}: {name}");
        assert!(!table().iter().any(|row| row.name == *former), "{former}");
    }
}
