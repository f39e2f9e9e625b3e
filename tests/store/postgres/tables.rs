//! A table that limits read from a real PostgreSQL, also behind a pooler and across a crash.

use serde_json::{Value, json};

use crate::docs::blocks;
use crate::support::postgres::{PgBouncer, Postgres};
use crate::support::shop::Shop;

const SCHEMA: &str = "CREATE TABLE customers (id text PRIMARY KEY, plan text, api bigint, \
    until timestamptz, deleted boolean NOT NULL DEFAULT false, \
    changed_at timestamptz NOT NULL DEFAULT now())";

const ROWS: &str = "SELECT id, plan, api, until FROM customers WHERE NOT deleted";

const CHANGES: &str = "SELECT id, plan, api, until, deleted FROM customers WHERE changed_at > $1";

fn start(url: &str, refresh: &str, more: &Value) -> Shop {
    let mut table = json!({"source": url, "rows": ROWS, "refresh": refresh});
    table.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Shop::start(&table)
}

fn database() -> Postgres {
    let server = Postgres::start_empty();
    server.sql(SCHEMA);
    server.sql(
        "INSERT INTO customers (id, plan, api) SELECT 'c' || n, 'gold', NULL FROM generate_series(1, 50) n",
    );
    server.sql("INSERT INTO customers (id, plan, api) VALUES ('acme', 'gold', 9)");
    server
}

fn set(server: &Postgres, customer: &str, api: &str) {
    server.sql(&format!(
        "UPDATE customers SET api = {api}, changed_at = now() WHERE id = '{customer}'"
    ));
}

#[test]
fn changed_and_deleted_rows_arrive_by_polling() {
    let server = database();
    let shop = start(&server.url(), "100ms", &json!({"changes": CHANGES}));
    assert_eq!(shop.state()["rows"], 51);
    set(&server, "c7", "3");
    shop.wait_for_amount("c7", &json!(3));
    server.sql("UPDATE customers SET deleted = true, changed_at = now() WHERE id = 'c8'");
    shop.wait_for("a deleted row", |state| state["rows"] == 50);
    set(&server, "c9", "-1");
    let state = shop.wait_for("a bad row", |state| state["bad_rows"] == 1);
    assert!(state["first_bad_rows"][0]["row"] == "c9", "{state}");
}

/// The pause between two polls is so long that only notifications bring changes.
#[test]
fn a_notification_brings_a_change_at_once() {
    let server = database();
    let more = json!({"changes": CHANGES, "notify": "customers_changed"});
    let shop = start(&server.url(), "1h", &more);
    let change = |api: &str| {
        set(&server, "acme", api);
        server.sql("NOTIFY customers_changed");
        shop.wait_for_amount("acme", &api.parse().unwrap());
    };
    change("7");
    // All connections are lost, that of the notifications, too.
    server.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()",
    );
    change("8");
    change("9");
}

#[test]
fn a_lost_or_emptied_database_changes_nothing() {
    let mut server = database();
    let shop = start(&server.url(), "100ms", &json!({}));
    let before = shop.state()["digest"].clone();
    server.sql("DELETE FROM customers");
    let state = shop.wait_for("a refusal", |state| state["error"] != Value::Null);
    assert!(state["error"].as_str().unwrap().contains("51 of 51 ids"), "{state}");
    server.sql("DROP TABLE customers");
    let is_missing = |state: &Value| state["error"].to_string().contains("does not exist");
    shop.wait_for("a missing table", is_missing);
    server.kill();
    shop.wait_for("a lost server", |state| {
        let error = state["error"].to_string();
        error.contains("connect") || error.contains("closed")
    });
    assert_eq!(shop.state()["digest"], before);
    assert!(shop.copy().exists());
    server.launch();
    server.sql(SCHEMA);
    server.sql(
        "INSERT INTO customers (id, plan) SELECT 'c' || n, 'free' FROM generate_series(1, 50) n",
    );
    shop.wait_for("the new rows", |state| state["rows"] == 50 && state["error"] == Value::Null);
}

#[test]
fn a_table_is_read_behind_a_pooler() {
    let server = database();
    let pooler = PgBouncer::start(&server);
    let shop = start(&pooler.url(), "100ms", &json!({"changes": CHANGES}));
    set(&server, "c1", "4");
    shop.wait_for_amount("c1", &json!(4));
}

#[test]
fn a_promoted_standby_serves_the_table() {
    let mut primary = database();
    let standby = primary.start_standby();
    let url = format!("postgres://postgres@{},{}/postgres", primary.host(), standby.host());
    let shop = start(&url, "100ms", &json!({"changes": CHANGES}));
    set(&primary, "c1", "4");
    shop.wait_for_amount("c1", &json!(4));
    primary.kill();
    standby.promote();
    set(&standby, "c1", "5");
    shop.wait_for_amount("c1", &json!(5));
}

#[test]
fn the_example_of_the_guide_works() {
    let block = |language: &str, part: &str| {
        let guide = "docs/guides/limit-each-customer.md";
        let blocks = blocks(language).into_iter();
        let mut own = blocks.filter(|b| b.place.starts_with(guide) && b.text.contains(part));
        own.next().unwrap().text
    };
    let sql = block("sql", "CREATE TABLE customers");
    let (schema, changes) = sql.split_at(sql.find("UPDATE").unwrap());
    let server = Postgres::start_empty();
    server.sql(schema);
    server.sql("INSERT INTO customers (id, plan) VALUES ('acme', 'gold'), ('beta', 'free')");
    let dir = tempfile::tempdir().unwrap();
    let settings = dir.path().join("server.yaml");
    let url = format!("postgres://reader@{}/postgres", server.host());
    let text = block("yaml", "notify: customers_changed")
        .replace("postgres://reader@db.example/app?sslmode=require", &url)
        .replace("    password_file: /etc/sluicegate/db-password\n", "")
        .replace("/var/lib/sluicegate", &dir.path().display().to_string());
    std::fs::write(&settings, text).unwrap();
    let limits = block("yaml", "# limits/shop.yaml");
    let shop = Shop::start_in(dir, &limits, &["--settings", &settings.display().to_string()]);
    assert_eq!(shop.state()["rows"], 2);
    changes.split_inclusive(';').for_each(|change| drop(server.sql(change)));
    shop.wait_for_amount("acme", &json!(9000));
    shop.wait_for("a deleted row", |state| state["rows"] == 1);
}
