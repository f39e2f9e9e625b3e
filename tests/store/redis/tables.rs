//! A table that limits read from a hash of a real Redis.

use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::support::cluster::Cluster;
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::shop::Shop;
use crate::support::waiting::until;

fn fill(redis: &Redis) {
    for id in 0..50 {
        redis.command(&["HSET", "customers", &format!("c{id}"), "gold"]);
    }
    redis.command(&["HSET", "customers", "acme", r#"{"plan": "gold", "api": 9}"#]);
}

fn table(url: &str) -> Json {
    json!({"source": url, "rows": "customers", "refresh": "100ms"})
}

#[test]
fn changed_rows_arrive_and_a_lost_hash_changes_nothing() {
    let mut redis = Redis::start();
    fill(&redis);
    let shop = Shop::start(&table(&redis.url()));
    assert_eq!(shop.state()["rows"], 51);
    shop.wait_for_amount("acme", &json!(9));
    redis.command(&["HSET", "customers", "c7", r#"{"api": 3}"#]);
    shop.wait_for_amount("c7", &json!(3));
    redis.command(&["HSET", "customers", "c8", "{\"api\": 3"]);
    let state = shop.wait_for("a bad row", |state| state["bad_rows"] == 1);
    assert_eq!(state["first_bad_rows"][0]["row"], "c8", "{state}");
    let before = state["digest"].clone();
    redis.command(&["FLUSHALL"]);
    let state = shop.wait_for("a lost hash", |state| state["error"] != Json::Null);
    assert!(state["error"].as_str().unwrap().contains("`customers` does not exist"), "{state}");
    redis.kill();
    shop.wait_for("a lost server", |state| state["error"].to_string().contains("refused"));
    assert_eq!(shop.state()["digest"], before);
    redis.launch(&[]);
    fill(&redis);
    shop.wait_for("the new rows", |state| {
        state["error"] == Json::Null && state["digest"] != before
    });
    shop.wait_for_amount("c7", &Json::Null);
}

/// With a version, the hash is read only when it differs.
#[test]
fn a_hash_is_read_only_when_its_version_changes() {
    let redis = Redis::start();
    fill(&redis);
    redis.command(&["SET", "customers:version", "1"]);
    let mut table = table(&redis.url());
    table["changes"] = json!("customers:version");
    let shop = Shop::start(&table);
    let first = calls(&redis, "hscan");
    let looked = calls(&redis, "get") + 2;
    until("looks at the version", || {
        let looks = calls(&redis, "get");
        if looked <= looks { Ok(()) } else { Err(looks.to_string()) }
    })
    .unwrap();
    assert_eq!(calls(&redis, "hscan"), first);
    redis.command(&["HSET", "customers", "c7", r#"{"api": 3}"#]);
    redis.command(&["INCR", "customers:version"]);
    shop.wait_for_amount("c7", &json!(3));
}

/// The number of calls of a command.
fn calls(redis: &Redis, command: &str) -> u64 {
    let stats = redis.command(&["INFO", "commandstats"]).text();
    let mut lines = stats.lines();
    let calls = lines.find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    calls.unwrap().split(',').next().unwrap().parse().unwrap()
}

#[test]
fn a_hash_in_a_cluster_is_read_from_its_node() {
    let cluster = Cluster::start();
    let set = ["HSET", "customers", "acme", "free"];
    let owners = cluster.nodes().filter(|node| matches!(node.call(&set), Value::Int(1)));
    assert_eq!(owners.count(), 1);
    let shop = Shop::start(&table(&cluster.url()));
    let state = shop.wait_for("a row", |state| state["rows"] == 1);
    assert_eq!(state["error"], Json::Null);
}

/// The hash is deleted and built again at random moments, also in the middle of a read.
#[test]
fn a_hash_that_is_built_anew_loses_no_row() {
    const ROWS: u64 = 20_000;
    const BUILD: &str = "for id = 1, tonumber(ARGV[1]) do \
        redis.call('HSET', KEYS[1], 'c' .. id, 'gold') end return 1";
    let redis = Redis::start();
    let rows = ROWS.to_string();
    let build = || drop(redis.command(&["EVAL", BUILD, "1", "customers", &rows]));
    build();
    let mut table = table(&redis.url());
    table["max_shrink"] = json!("100%");
    let shop = Shop::start(&table);
    let mut dice = Dice::new(seed());
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(dice.up_to(150)));
        redis.command(&["DEL", "customers"]);
        std::thread::sleep(Duration::from_millis(dice.up_to(5)));
        build();
        assert_eq!(shop.state()["rows"], ROWS);
    }
    shop.wait_for("the whole hash", |state| state["error"] == Json::Null);
    assert_eq!(shop.state()["rows"], ROWS);
}
