//! What the doors let in, which wins, and what is said about the rest.

use std::path::PathBuf;

use sluicegate::config::settings::{
    Address, Backend, Doors, HeaderName, LATER, LogLevel, Named, Origin, Place, Ratio,
    ResponseHeaders, Settings, Shape, WhenFull, print_config, read, table,
};
use sluicegate::kernel::units::Nanos;

use super::{environment, file, flags, pairs, refused, sound, told};

#[test]
fn without_a_word_every_setting_is_at_its_default() {
    let loaded = sound(&Doors::default());
    assert_eq!(loaded.settings, Settings::default());
    assert!(loaded.origins.is_empty() && loaded.warnings.is_empty());
}

#[test]
fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
    let mut doors = file("grpc_port: 1\nhttp_port: 1\nadmin_port: 1\n");
    doors.environment = pairs(&[("SLUICEGATE_GRPC_PORT", "2"), ("SLUICEGATE_HTTP_PORT", "2")]);
    doors.flags = vec![("grpc-port".to_owned(), vec!["3".to_owned()])];
    let loaded = sound(&doors);
    let Settings { grpc_port, http_port, admin_port, metrics_port, .. } = loaded.settings;
    assert_eq!([grpc_port, http_port, admin_port, metrics_port], [3, 2, 1, 9090]);
    assert_eq!(loaded.origins["grpc_port"], Origin::Flag("grpc-port".to_owned()));
    assert_eq!(loaded.origins["http_port"], Origin::Environment("SLUICEGATE_HTTP_PORT".to_owned()));
    assert_eq!(loaded.origins["admin_port"], Origin::File("server.yaml".into(), 3, 13));
}

#[test]
fn every_kind_of_value_means_the_same_through_every_door() {
    let wanted = Settings {
        limits: vec![PathBuf::from("a"), PathBuf::from("b/c.yaml")],
        admin_host: "::1".parse().unwrap(),
        max_keys: 5_000,
        when_full: WhenFull::Allow,
        response_headers: ResponseHeaders::Draft,
        reset_header: HeaderName::new("").unwrap(),
        limit_header: HeaderName::new("X-Limit").unwrap(),
        near_limit_ratio: Ratio::new(0.5).unwrap(),
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
    assert_eq!(sound(&written).settings, wanted);
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
    assert_eq!(sound(&environment(&variables)).settings, wanted);
    let mut flags: Vec<_> = given[1..]
        .iter()
        .map(|(name, text)| (name.to_lowercase().replace('_', "-"), vec![(*text).to_owned()]))
        .collect();
    flags.push(("limits".to_owned(), vec!["a".to_owned(), "b/c.yaml".to_owned()]));
    assert_eq!(sound(&Doors { flags, ..Doors::default() }).settings, wanted);
}

/// What YAML takes for numbers and switches where nothing else is wanted.
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

/// What doors come to: settings, or what is wrong.
fn said(doors: &Doors) -> Result<Settings, Vec<String>> {
    match read(doors) {
        Ok(loaded) => Ok(loaded.settings),
        Err(problems) => Err(problems.into_iter().map(|it| it.message).collect()),
    }
}

#[test]
fn a_value_that_is_left_empty_means_the_same_through_every_door() {
    for setting in table().iter().filter(|setting| setting.shape == Shape::One) {
        let (name, variable) = (setting.name, said(&environment(&[(&setting.variable, "")])));
        assert_eq!(said(&flags(&[(&setting.flag, "")])), variable, "{name}");
        for empty in ["", " \"\"", " # nothing"] {
            assert_eq!(said(&file(&format!("{name}:{empty}\n"))), variable, "{name}:{empty}");
        }
    }
    let none = "admin_token:\nxds_server:\ngrpc_tls_cert_file:\nsyslog_port:\n";
    assert_eq!(sound(&file(none)).settings, Settings::default());
    // Written out it could be a text, and is not taken for none in silence.
    for text in ["null", "~"] {
        assert_eq!(refused(&file(&format!("admin_token: {text}\n"))).len(), 1, "{text}");
    }
    for (name, accepts) in [("log_level", "error | warn"), ("http_port", "a whole number")] {
        let told = refused(&file(&format!("{name}:\n")));
        assert!(told[0].contains(&format!("`{name}` takes {accepts}")), "{told:?}");
    }
}

#[test]
fn a_text_without_quotes_is_what_is_written_through_every_door() {
    let kinds = ["text", "word", "name", "header name", "path", "paths", "pairs", "place"];
    let also = ["address", "IP address", "networks", "duration"];
    let is_text = |unit: &str| kinds.contains(&unit) || also.contains(&unit);
    for setting in table().iter().filter(|setting| is_text(setting.unit)) {
        for text in SPELT {
            let flag = said(&flags(&[(&setting.flag, text)]));
            let name = setting.name;
            assert_eq!(said(&environment(&[(&setting.variable, text)])), flag, "{name}: {text}");
            assert_eq!(said(&file(&format!("{name}: {text}\n"))), flag, "{name}: {text}");
        }
    }
    let text = "peer_port: 0\nbackend: redis://host\nadmin_token: 0042871193\nkey_prefix: 1.10\nlimits: [no, 0x10]\n\
                limits_prefix: &it on\nnode_id: *it\npeer_secret: 00000000000000000000000000000042\n";
    let Settings { admin_token, key_prefix, limits, limits_prefix, node_id, peer_secret, .. } =
        sound(&file(text)).settings;
    assert_eq!(admin_token.unwrap().reveal(), "0042871193");
    assert_eq!(peer_secret.unwrap().reveal(), SPELT[7]);
    assert_eq!([&*key_prefix, &limits_prefix, &node_id], ["1.10", "on", "on"]);
    assert_eq!(limits, [PathBuf::from("no"), PathBuf::from("0x10")]);
}

#[test]
fn a_number_and_a_switch_of_the_file_are_what_yaml_says() {
    let text = "grpc_port: 0x10\nmax_keys: 1e3\nshadow_mode: yes\nnear_limit_ratio: 5e-1\n\
                http_port: !!int 80\nsyslog_port: 0x10\nreplicas_min: 0o10\n";
    let Settings { grpc_port, http_port, max_keys, shadow_mode, near_limit_ratio, .. } =
        sound(&file(text)).settings;
    assert_eq!((grpc_port, http_port, max_keys, shadow_mode), (16, 80, 1_000, true));
    assert_eq!(near_limit_ratio, Ratio::new(0.5).unwrap());
}

#[test]
fn all_problems_of_all_doors_are_told_at_once_each_with_its_place() {
    let mut doors = file("http_port: 70000\nlog_level: [info]\ngrpc_prot: 1\nshadow_mode: {}\n");
    doors.environment = pairs(&[("SLUICEGATE_WHEN_FULL", "alow"), ("SLUICEGATE_THREADS", "")]);
    doors.flags = vec![
        ("max-keys".to_owned(), vec!["-1".to_owned()]),
        ("threads".to_owned(), vec!["1".to_owned(), "2".to_owned()]),
        ("admin-prot".to_owned(), vec![]),
    ];
    assert_eq!(
        refused(&doors),
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
fn a_weak_door_that_is_wrong_is_told_though_a_strong_one_wins() {
    let mut doors = file("grpc_port: nine\n");
    doors.flags = vec![("grpc-port".to_owned(), vec!["9".to_owned()])];
    assert_eq!(refused(&doors).len(), 1);
}

#[test]
fn an_unknown_variable_is_a_warning_that_names_the_nearest() {
    let loaded = sound(&environment(&[("SLUICEGATE_GRPC_PROT", "1"), ("GRPC_PROT", "1")]));
    assert_eq!(
        told(&loaded.warnings),
        [
            "warning: SLUICEGATE_GRPC_PROT: there is no such setting; did you mean SLUICEGATE_GRPC_PORT?"
        ]
    );
}

#[test]
fn variables_that_kubernetes_makes_for_a_service_are_passed_over_unless_they_name_a_setting() {
    let links = [
        ("SLUICEGATE_SERVICE_HOST", "10.0.0.1"),
        ("SLUICEGATE_SERVICE_PORT_GRPC", "8081"),
        ("SLUICEGATE_PORT", "tcp://10.0.0.1:8081"),
        ("SLUICEGATE_PORT_8081_TCP_ADDR", "10.0.0.1"),
    ];
    assert!(sound(&environment(&links)).warnings.is_empty());
    let told = refused(&environment(&[("SLUICEGATE_GRPC_PORT", "tcp://10.0.0.1:8081")]));
    assert!(told[0].contains("enableServiceLinks: false"), "{told:?}");
}

#[test]
fn there_is_no_word_of_a_later_version_or_it_is_an_error_through_every_door() {
    for word in LATER {
        let variable = format!("SLUICEGATE_{}", word.to_uppercase());
        let doors = [
            file(&format!("{word}: 1\n")),
            environment(&[(&variable, "1")]),
            flags(&[(&word.replace('_', "-"), "1")]),
        ];
        for doors in doors {
            assert!(refused(&doors)[0].contains("is not in this version yet"), "{word}");
        }
    }
}

#[test]
fn a_redis_is_named_by_a_url_and_its_password_is_never_shown() {
    let of = |url: &str| match sound(&flags(&[("backend", url)])).settings.backend {
        Backend::Redis(url) => url,
        Backend::Memory => panic!("{url}"),
    };
    let tcp = of("redis://me:p%40ss:w@redis.shop:6380/3");
    assert_eq!(tcp.place, Place::Tcp(address("redis.shop", 6380)));
    assert_eq!((tcp.user.as_deref(), tcp.password.as_deref()), (Some("me"), Some("p@ss:w")));
    assert_eq!(tcp.database, 3);
    assert_eq!(of("redis://[::1]").place, Place::Tcp(address("::1", 6379)));
    let unix = of("redis+unix://:pass@/run/redis.sock?db=2");
    assert_eq!(unix.place, Place::Unix("/run/redis.sock".into()));
    assert_eq!((unix.user, unix.password.as_deref(), unix.database), (None, Some("pass"), 2));
    let sentinel = of("rediss+sentinel://me:pass@one,two:1/shop/4");
    let (one, two) = (address("one", 26379), address("two", 1));
    assert_eq!(sentinel.place, Place::Sentinel(vec![one, two], "shop".to_owned()));
    assert_eq!((sentinel.tls, sentinel.database), (true, 4));
    let cluster = of("redis+cluster://one,[::1]:7");
    assert_eq!(cluster.place, Place::Cluster(vec![address("one", 6379), address("::1", 7)]));
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
        let loaded = sound(&flags(&[("backend", url)]));
        assert!(print_config(&loaded).contains(&format!("backend: \"{shown}\"")), "{url}");
        assert!(!format!("{:?}", loaded.settings).contains("p@ss"));
        assert_eq!(of(shown).to_string(), shown, "what is shown is read again");
    }
}

#[test]
fn a_url_that_is_not_understood_as_a_whole_is_refused_without_its_password() {
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
        assert_eq!(refused(&flags(&[("backend", url)])).len(), 1, "{url}");
    }
    let told = refused(&environment(&[("SLUICEGATE_BACKEND", "redis://me:secret@host:x")]));
    assert!(!told[0].contains("secret") && told[0].ends_with("…@host`"), "{told:?}");
}

#[test]
fn a_refused_url_shows_its_scheme_and_the_host_behind_an_at_and_nothing_else() {
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
            let told = refused(&environment(&[(&variable, url)]));
            assert!(told[0].ends_with(&format!("got `{shown}`")), "{url}: {told:?}");
            assert!(!told.concat().contains("s3"), "{url}: {told:?}");
        }
    }
    let told = refused(&environment(&[("SLUICEGATE_BACKEND", "memry")]));
    assert!(told[0].ends_with("got `memry`; did you mean `memory`?"), "{told:?}");
    let link = refused(&environment(&[("SLUICEGATE_BACKEND", "tcp://10.0.0.1:6379")]));
    assert!(link[0].contains("got `tcp://…`; Kubernetes sets this"), "{link:?}");
}

fn address(host: &str, port: u16) -> Address {
    Address { host: host.to_owned(), port }
}

#[test]
fn a_setting_of_redis_that_nothing_would_heed_is_refused() {
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
        let told = refused(&file(&format!("{backend}\n{rest}\n")));
        assert!(told.len() == 1 && told[0].contains(&format!("`{about}`")), "{told:?}");
    }
    let loaded = sound(&file(
        "backend: rediss+sentinel://u@host/shop\nbackend_password_file: a\n\
         backend_sentinel_user: s\nbackend_sentinel_password: s3cret\nbackend_tls_ca_file: b\n\
         backend_tls_cert_file: c\nbackend_tls_key_file: d\nbackend_tls_server_name: e.f\n",
    ));
    assert!(!print_config(&loaded).contains("s3cret"));
    for name in ["backend_tls_server_name: 'a b'", "backend_tls_server_name: 'a/b'"] {
        assert_eq!(refused(&file(&format!("{tls}\n{name}\n"))).len(), 1, "{name}");
    }
}

#[test]
fn a_second_redis_takes_the_same_urls_and_shares_the_files_of_the_first() {
    let second = |first: &str, url: &str, rest: &str| {
        file(&format!("backend: {first}\nbackend_per_second: {url}\n{rest}\n"))
    };
    for url in ["rediss://h", "redis+cluster://h,i", "redis+unix:///s", "redis+sentinel://h/shop"] {
        let loaded = sound(&second("redis://h", url, ""));
        let it = loaded.settings.backend_per_second.unwrap().to_string();
        assert_eq!(it.split("://").next(), url.split("://").next());
    }
    for (first, url, rest) in [
        ("redis://u:p@h", "redis://u@i", "backend_password_file: f"),
        ("redis://h", "rediss://i", "backend_tls_ca_file: f"),
        ("rediss://h", "redis://i", "backend_tls_ca_file: f"),
        ("redis://h", "redis+sentinel://i/shop", "backend_sentinel_password_file: f"),
    ] {
        sound(&second(first, url, rest));
    }
    for (first, url, rest, about) in [
        ("memory", "redis://h", "", "backend_per_second"),
        ("redis://h", "redis://u@i", "", "backend_per_second"),
        ("redis://:p@h", "redis://:q@i", "backend_password_file: f", "backend_password_file"),
        ("redis://h", "redis://i", "backend_tls_ca_file: f", "backend_tls_ca_file"),
        ("redis://h", "redis://i", "backend_sentinel_user: f", "backend_sentinel_user"),
    ] {
        let told = refused(&second(first, url, rest));
        assert!(told.len() == 1 && told[0].contains(&format!("`{about}`")), "{told:?}");
    }
    let told = refused(&second("redis://h", "redis://me:secret@i:x", ""));
    assert!(!told[0].contains("secret"), "{told:?}");
    let shown = print_config(&sound(&second("redis://h", "redis://me:secret@i", "")));
    assert!(shown.contains("backend_per_second: \"redis://me:***@i:6379\""), "{shown}");
}

#[test]
fn settings_of_the_references_keys_are_refused_where_there_are_none() {
    let given = [
        "reference_key_prefix: p",
        "expiry_jitter: 1s",
        "local_deny_cache: 1",
        "stop_when_over: true",
    ];
    for text in given {
        let about = format!("`{}`", text.split(':').next().unwrap());
        for others in ["backend: redis://h", "counter_keys: envoyproxy"] {
            let told = refused(&file(&format!("{others}\n{text}\n")));
            assert!(told.len() == 1 && told[0].contains(&about), "{told:?}");
        }
        sound(&file(&format!("backend: redis://h\ncounter_keys: envoyproxy\n{text}\n")));
    }
    let told =
        refused(&file("backend: redis://h\ncounter_keys: envoyproxy\nexpiry_jitter: 1500ms\n"));
    assert!(told[0].contains("not a whole number"), "{told:?}");
}

/// A management server and a service that statistics are sent to.
const XDS: &str = "xds_server: a:1";
const STATSD: &str = "stats_sink: statsd\nstats_address: a:1";

#[test]
fn settings_of_limits_and_statistics_that_nothing_would_heed_are_refused() {
    for (others, text, heeded_by) in [
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
        let told = refused(&file(&format!("{others}\n{text}\n")));
        assert!(told.len() == 1 && told[0].contains(&about), "{others}, {text}: {told:?}");
        sound(&file(&format!("{heeded_by}\n{text}\n")));
    }
}

#[test]
fn a_longest_wait_that_is_shorter_than_the_shortest_is_refused_where_it_stands() {
    for (waits, place) in [
        ("xds_backoff_min: 31s", "server.yaml:2:18"),
        ("xds_backoff_max: 499ms", "server.yaml:2:18"),
        ("xds_backoff_max: 1s\nxds_backoff_min: 2s", "server.yaml:2:18"),
    ] {
        let told = refused(&file(&format!("{XDS}\n{waits}\n")));
        assert!(told.len() == 1 && told[0].contains("is longer than"), "{waits}: {told:?}");
        assert!(told[0].starts_with(&format!("error: {place}: ")), "{waits}: {told:?}");
    }
    sound(&file(&format!("{XDS}\nxds_backoff_min: 2s\nxds_backoff_max: 2s\n")));
}

/// What the reference takes, a process that stands in for it takes; what is said to us is ours to refuse.
#[test]
fn what_the_references_variables_say_together_is_taken() {
    let named = |setting, text: &str, is_set| Named {
        setting,
        texts: vec![text.to_owned()],
        variable: "ANY",
        is_set,
    };
    let by_default = [("limits_dot_files", "true"), ("limits_optional", "true")];
    let by_default = by_default.map(|(setting, text)| named(setting, text, false));
    let waits = [("xds_backoff_min", "2m"), ("xds_backoff_max", "1m")];
    let waits = waits.map(|(setting, text)| named(setting, text, true));
    let doors = Doors { named: [by_default, waits].concat(), ..file(&format!("{XDS}\n")) };
    assert_eq!(sound(&doors).settings.xds_backoff_min, Nanos::from_secs(120));
    let environment = pairs(&[("SLUICEGATE_XDS_BACKOFF_MAX", "1m")]);
    assert_eq!(refused(&Doors { environment, ..doors }).len(), 1);
}

#[test]
fn a_prefix_of_keys_is_printable_and_a_number_of_replicas_not_none() {
    assert_eq!(sound(&file("key_prefix: a:b\n")).settings.key_prefix, "a:b");
    for wrong in ["key_prefix: '{a}'\n", "key_prefix: a b\n", "replicas_min: 0\n"] {
        assert_eq!(refused(&file(wrong)).len(), 1, "{wrong}");
    }
    assert_eq!(sound(&file("replicas_min: 3\n")).settings.replicas_min.get().get(), 3);
}

#[test]
fn admin_beyond_loopback_needs_a_token() {
    let told = refused(&file("admin_host: 0.0.0.0\n"));
    assert_eq!(
        told,
        ["error: server.yaml:1:13: `admin_host` 0.0.0.0 lets other machines read the limits, and \
          `admin_token` is not set; set admin_token, or listen on 127.0.0.1"]
    );
    assert!(sound(&file("admin_host: 0.0.0.0\nadmin_token: s3cret\n")).warnings.is_empty());
    sound(&file("admin_host: 127.0.0.2\n"));
}

#[test]
fn a_token_matches_itself_alone_and_is_never_shown() {
    let loaded = sound(&file("admin_token: s3cret\n"));
    let token = loaded.settings.admin_token.clone().expect("it was given");
    assert!(token.matches(b"s3cret"));
    for wrong in [&b""[..], b"s3cre", b"s3crets", b"S3cret"] {
        assert!(!token.matches(wrong));
    }
    assert!(!print_config(&loaded).contains("s3cret"));
    assert!(!format!("{loaded:?}").contains("s3cret"));
    let told = refused(&environment(&[("SLUICEGATE_ADMIN_TOKEN", "s3cret s3cret")]));
    assert!(!told[0].contains("s3cret"), "{told:?}");
}

#[test]
fn what_is_printed_can_be_read_again_and_says_where_each_value_came_from() {
    let mut doors = file("# mine\nlog_level: debug\n");
    doors.environment = pairs(&[("SLUICEGATE_LIMITS", "a:b")]);
    doors.flags = vec![("retry-after".to_owned(), vec!["true".to_owned()])];
    let loaded = sound(&doors);
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
    assert_eq!(sound(&file(&printed)).settings, loaded.settings);
}

#[test]
fn a_file_that_is_no_mapping_is_told_with_its_place() {
    for (text, place) in [("- a\n", ":1:1:"), ("grpc_port: 1\nhttp_port: [\n", ":2:")] {
        let told = refused(&file(text));
        assert!(told.len() == 1 && told[0].contains(place), "{told:?}");
    }
    assert_eq!(sound(&file("")).settings, Settings::default());
    assert_eq!(sound(&file("# nothing\n")).settings, Settings::default());
}

#[test]
fn a_name_written_twice_is_refused() {
    assert_eq!(
        refused(&file("grpc_port: 1\ngrpc_port: 2\n")),
        ["error: server.yaml:2:1: `grpc_port` is given twice; once is enough"]
    );
}

#[test]
fn a_second_document_is_refused() {
    let said = "a second document begins here; a file of settings is one document";
    let told = refused(&file("grpc_port: 1\n---\nhttp_port: 2\n"));
    assert_eq!(told, [format!("error: server.yaml:3:1: {said}")]);
}

#[test]
fn values_at_the_edge_of_their_range_are_read_and_values_beyond_are_not() {
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
fn a_log_level_is_a_word_of_the_list() {
    assert_eq!(sound(&flags(&[("log-level", "warn")])).settings.log_level, LogLevel::Warn);
    assert_eq!(refused(&flags(&[("log-level", "loud")])).len(), 1);
}
