//! Settings of Redis: addresses, and settings without effect.

use sluicegate::config::settings::{RedisEndpoint, StoreUrl, print_config};

use super::address;
use crate::config::settings::{dotted, environment, flags, load_valid, read_errors};

#[test]
fn redis_urls_with_a_password_show_only_scheme_and_hosts() {
    let of = |url: &str| match load_valid(&flags(&[("store-url", url)])).settings.store.url {
        StoreUrl::Redis(url) => url,
        other => panic!("{url}: {other:?}"),
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
        ("rediss+sentinel://me:pass@one,[::1]/shop/4", "rediss+sentinel://one:26379,[::1]:26379"),
        ("redis+cluster://:pass@one,two/0", "redis+cluster://one:6379,two:6379"),
        ("redis://me:p%40ss:w@redis.shop:6380/3", "redis://redis.shop:6380"),
        ("redis://[::1]/3", "redis://[::1]:6379/3"),
        ("redis+sentinel://one/shop/4", "redis+sentinel://one:26379/shop/4"),
        ("redis+unix://:pass@/run/redis.sock?db=2", "redis+unix:///run/redis.sock"),
    ] {
        let loaded = load_valid(&flags(&[("store-url", url)]));
        assert!(print_config(&loaded).contains(&format!("  url: \"{shown}\"")), "{url}");
        assert!(!format!("{:?}", loaded.settings).contains("p@ss"));
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
            let has_cause = messages[0].contains("has the parameter `password`; write");
            let is_masked = messages[0].ends_with(&format!("got `{shown}`"));
            assert!(is_masked || has_cause, "{url}: {messages:?}");
            assert!(!messages.concat().contains("s3"), "{url}: {messages:?}");
        }
    }
    let messages = read_errors(&environment(&[("SLUICEGATE_STORE_URL", "memry")]));
    assert!(messages[0].ends_with("got `memry`; did you mean `memory`?"), "{messages:?}");
    let link = read_errors(&environment(&[("SLUICEGATE_STORE_URL", "tcp://10.0.0.1:6379")]));
    assert!(link[0].contains("got `tcp://…`; Kubernetes sets this"), "{link:?}");
}

#[test]
fn address_without_a_scheme_suggests_the_url() {
    for variable in ["SLUICEGATE_STORE_URL", "SLUICEGATE_COMPAT_STORE_PER_SECOND_URL"] {
        for address in ["localhost:6379", "redis.internal:6380", "[::1]:6379"] {
            let messages = read_errors(&environment(&[(variable, address)]));
            let hint = format!("has no scheme; write `redis://{address}`");
            assert!(messages[0].ends_with(&hint), "{address}: {messages:?}");
        }
        for other in ["me:s3cret", "s3cret@localhost:6379", "localhost:0"] {
            let messages = read_errors(&environment(&[(variable, other)]));
            assert!(!messages.concat().contains("s3cret@") && !messages.concat().contains("me:"));
            assert!(!messages[0].contains("has no scheme"), "{other}: {messages:?}");
        }
    }
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
    assert!(shown.contains("    per_second_url: \"redis://i:6379\""), "{shown}");
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
    assert!(messages[0].contains("must be whole seconds"), "{messages:?}");
}
