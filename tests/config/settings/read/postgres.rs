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
