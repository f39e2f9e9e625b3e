//! URLs of PostgreSQL.

use sluicegate::config::settings::{PostgresUrl, StoreUrl};

use crate::config::settings::{flags, load_valid, read_errors};

fn parsed(url: &str) -> PostgresUrl {
    match load_valid(&flags(&[("store-url", url)])).settings.store.url {
        StoreUrl::Postgres(url) => url,
        other => panic!("{url}: {other:?}"),
    }
}

#[test]
fn postgres_urls_with_a_password_show_only_scheme_and_hosts() {
    for (url, shown, tls) in [
        ("postgres://me:p%40ss@pg/shop", "postgres://pg:5432", false),
        (
            "postgresql://me@a:1,b:2/shop?sslmode=require",
            "postgres://me@a:1,b:2/shop?sslmode=require",
            true,
        ),
        (
            "postgres://me@[::1]/shop?sslmode=verify-full",
            "postgres://me@[::1]:5432/shop?sslmode=require",
            true,
        ),
        ("postgres://me@%2Frun%2Fpg/shop?sslmode=disable", "postgres://me@%2Frun%2Fpg/shop", false),
        ("postgres://me@pg", "postgres://me@pg:5432", false),
        ("postgres://pg/shop?user=me&password=secret", "postgres://pg:5432", false),
    ] {
        let url = parsed(url);
        assert_eq!((url.to_string().as_str(), url.tls), (shown, tls));
    }
    assert_eq!(parsed("postgres://me:p%3Fss@pg").server.get_password(), Some(&b"p?ss"[..]));
}

#[test]
fn unclear_postgres_urls_are_rejected_without_the_password() {
    for url in [
        "postgres://pg/shop",
        "postgres://me@pg/shop?sslmode=prefer",
        "postgres://me@pg/shop?sslmode",
        "postgres://me@pg/shop?sslmode=require&sslmode=disable",
        "postgres://me@pg/shop?ssl%6Dode=require",
        "postgres://me:se?cret@pg/shop?sslmode=require",
        "postgres://me:secret@pg/shop?unknown=1",
    ] {
        let messages = read_errors(&flags(&[("store-url", url)]));
        assert!(messages.len() == 1 && messages[0].contains("store"), "{url}: {messages:?}");
        assert!(!messages[0].contains("cret"), "{messages:?}");
    }
}

/// Other programs accept these URLs.
#[test]
fn urls_of_other_programs_are_understood_or_get_their_cause() {
    let me = "postgres://me:secret@pg/shop";
    for understood in
        [format!("{me}?pgbouncer=true"), format!("{me}?pgbouncer=true&sslmode=require")]
    {
        assert_eq!(parsed(&understood).to_string(), "postgres://pg:5432");
    }
    let redis = "redis://:secret@cache";
    for (url, cause) in [
        (format!("{me}?sslmode=prefer"), "hides whether TLS is on; write `sslmode=require`"),
        (format!("{me}?sslmode=allow"), "hides whether TLS is on; write `sslmode=require`"),
        (format!("{me}?sslmode=on"), "has an unknown `sslmode`; write `require` or `disable`"),
        (
            format!("{me}?sslrootcert=/ca.pem"),
            "the parameter `sslrootcert`; set `store.tls.ca_file`",
        ),
        (
            format!("{me}?schema=public"),
            "the parameter `schema`; write `options=-csearch_path%3Dname`",
        ),
        (format!("{me}?connection_limit=5"), "set `store.postgres.connections`"),
        ("postgresql+asyncpg://me:secret@pg/shop".to_owned(), "names a driver in the scheme"),
        ("jdbc:postgresql://pg/shop?password=secret".to_owned(), "is a URL for Java"),
        ("Postgres://me:secret@pg/shop".to_owned(), "scheme with capital letters"),
        ("mysql://me:secret@db/shop".to_owned(), "is no store"),
        (format!("{redis}?db=1"), "the parameter `db`; write the number of the database after"),
        (format!("{redis}?ssl=true"), "the parameter `ssl`; write `rediss://` for TLS"),
        (
            format!("{redis}?sslmode=prefer"),
            "write `rediss://` for TLS; `sslmode` is for PostgreSQL",
        ),
        (format!("{redis}?pgbouncer=true"), "remove it: it is for PostgreSQL"),
        (format!("{redis}?client_name=a"), "has parameters, which Redis URLs do not have"),
        ("redis-sentinel://:secret@a,b/main".to_owned(), "write `redis+sentinel://`"),
        ("redis+tls://:secret@cache".to_owned(), "write `rediss://`"),
        ("unix:///run/redis.sock".to_owned(), "write `redis+unix://`"),
        ("keydb://cache".to_owned(), "write `redis://`"),
        ("http://cache:6379".to_owned(), "is no store"),
        ("cache:6379".to_owned(), "has no scheme; write `redis://cache:6379`"),
    ] {
        let messages = read_errors(&flags(&[("store-url", &url)]));
        assert!(messages.len() == 1 && messages[0].contains(cause), "{url}: {messages:?}");
        assert!(!messages[0].contains("secret"), "{messages:?}");
    }
}

#[test]
fn valkey_urls_are_redis_urls() {
    for (valkey, redis) in [
        ("valkey://cache:1/2", "redis://cache:1/2"),
        ("valkeys://cache", "rediss://cache:6379"),
        ("valkey+sentinel://a,b/main", "redis+sentinel://a:26379,b:26379/main"),
        ("valkeys+cluster://a", "rediss+cluster://a:6379"),
        ("valkey+unix:///run/valkey.sock", "redis+unix:///run/valkey.sock"),
    ] {
        let url = load_valid(&flags(&[("store-url", valkey)])).settings.store.url;
        assert_eq!(url.to_string(), redis);
    }
}
