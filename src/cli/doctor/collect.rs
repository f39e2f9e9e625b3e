//! Collects facts about a Redis for `sluicegate doctor`, with commands such as `INFO` and `TIME`.
//!
//! Guarantees:
//! - If Redis refuses a command, the fact from its reply is unknown. A refused script is a fact.
//! - Writes only four keys, and deletes them in the same script.
//! - Every command has a timeout.

use super::evaluate::{ClusterFacts, RedisFacts};
use super::info::RedisInfo;
use super::product::{ScriptFailure, StoreProduct};
use crate::clock::Clock;
use crate::kernel::units::Nanos;
use crate::store::redis::inspect::{self, InspectError, InspectedNode, NO_DIGEST, RedisValue};
use crate::store::redis::{RedisOptions, RedisTopology};

/// The number of round trips of which the median is the reported latency.
const TIMED_ROUND_TRIPS: usize = 21;

/// The number of keys to try until a Redis Cluster node owns the slot of one. Enough for a node
/// with 2 % of the slots, with a probability of 99 %.
const MAX_PROBE_KEYS: usize = 256;

/// A script that runs every Redis command of Sluicegate's scripts, and deletes its keys.
const PROBE: &str = include_str!("probe.lua");

/// Returns the facts about every Redis process that stores counters. With `has_compat_keys`, also
/// tries the commands for counters named as in envoyproxy/ratelimit.
pub(super) async fn collect_facts(
    options: &RedisOptions,
    has_compat_keys: bool,
    clock: &Clock,
) -> Result<Vec<RedisFacts>, InspectError> {
    let mut facts = Vec::new();
    for node in &inspect::connect_all(options).await? {
        facts.push(match node.proxy(options).await? {
            Some(kind) => RedisFacts {
                proxy: Some(kind),
                ..collect_proxy_facts(&node.behind_proxy(options).await?, options, has_compat_keys)
                    .await
            },
            None => collect_node_facts(node, options, has_compat_keys, clock).await,
        });
    }
    Ok(facts)
}

/// Returns the facts that a proxy does not hide.
async fn collect_proxy_facts(
    node: &InspectedNode,
    options: &RedisOptions,
    has_compat_keys: bool,
) -> RedisFacts {
    let keys = probe_keys(&options.key_prefix, 0);
    let flag = if has_compat_keys { "1" } else { "0" };
    let [text, list, hash, sorted] = &keys;
    let call = ["EVAL", PROBE, "4", text, list, hash, sorted, flag];
    let script_result = match node.run_command(&call).await {
        Ok(reply) => probe_result(&reply),
        Err(InspectError(words)) => Err(ScriptFailure::of_command("eval", words)),
    };
    RedisFacts {
        address: node.address.clone(),
        script_result: Some(script_result),
        ..RedisFacts::default()
    }
}

fn probe_keys(prefix: &str, number: usize) -> [String; 4] {
    ["text", "list", "hash", "sorted"].map(|kind| format!("{prefix}sg:{{{number}}}:doctor:{kind}"))
}

async fn collect_node_facts(
    node: &InspectedNode,
    options: &RedisOptions,
    has_compat_keys: bool,
    clock: &Clock,
) -> RedisFacts {
    let info = fetch_info(node).await;
    let flag = |name: &str| info.text(name).map(|text| text == "1");
    let cluster = match flag("cluster_enabled") {
        Some(true) => cluster_facts(node).await,
        _ => None,
    };
    let script = probe_scripts(node, &options.key_prefix, has_compat_keys).await;
    let (skew, round_trip) = measure_times(node, clock).await;
    RedisFacts {
        address: node.address.clone(),
        proxy: None,
        product: StoreProduct::identify(&info),
        version: info.text("redis_version").and_then(parse_version),
        role: info.text("role").map(str::to_owned),
        is_loading: flag("loading").unwrap_or_default(),
        has_run_id: Some(info.text("run_id").is_some()),
        eviction_policy: info.text("maxmemory_policy").map(str::to_owned),
        maxmemory: info.number("maxmemory"),
        used_memory: info.number("used_memory"),
        evicted_keys: info.number("evicted_keys"),
        has_append_only_file: flag("aof_enabled"),
        has_snapshots: has_snapshots(node).await,
        last_save_failed: info.text("rdb_last_bgsave_status") == Some("err"),
        cluster,
        writes_without_replica: writes_without_replica(&info, &options.topology),
        clock_skew: skew,
        round_trip,
        script_result: script,
    }
}

/// Returns `true` if a primary with Sentinel accepts writes without a connected Redis replica;
/// `None` without Sentinel.
fn writes_without_replica(info: &RedisInfo, topology: &RedisTopology) -> Option<bool> {
    let has_sentinel = matches!(topology, RedisTopology::Sentinel(_));
    // `INFO` has this field only if `min-replicas-to-write` and `min-replicas-max-lag` are set.
    info.text("role")
        .filter(|_| has_sentinel)
        .map(|_| info.text("min_slaves_good_slaves").is_none())
}

/// Runs the script [`PROBE`] on `node`. Returns `None` if the node owns none of the tried keys.
async fn probe_scripts(
    node: &InspectedNode,
    prefix: &str,
    has_compat_keys: bool,
) -> Option<Result<(), ScriptFailure>> {
    if let Err(InspectError(words)) = node.run_command(&["EVAL", "return 1", "0"]).await {
        return Some(Err(ScriptFailure::of_command("eval", words)));
    }
    let [key, ..] = probe_keys(prefix, 0);
    match node.run_command(&["EVALSHA", NO_DIGEST, "1", &key]).await {
        // A node of a Cluster may not own the slot of the key.
        Err(InspectError(words)) if !words.contains("NOSCRIPT") && !words.contains("MOVED") => {
            return Some(Err(ScriptFailure::of_command("evalsha", words)));
        }
        _ => {}
    }
    let flag = if has_compat_keys { "1" } else { "0" };
    for number in 0..MAX_PROBE_KEYS {
        let [text, list, hash, sorted] = probe_keys(prefix, number);
        let call = ["EVAL", PROBE, "4", &text, &list, &hash, &sorted, flag];
        match node.run_command(&call).await {
            Ok(reply) => return Some(probe_result(&reply)),
            Err(InspectError(words)) if words.contains("MOVED") => {}
            Err(InspectError(words)) => {
                return Some(Err(ScriptFailure::of_command("eval", words)));
            }
        }
    }
    None
}

/// Converts the reply of [`PROBE`], the text `name: reason` for each refused command.
fn probe_result(reply: &RedisValue) -> Result<(), ScriptFailure> {
    let RedisValue::List(lines) = reply else {
        return Err(ScriptFailure::Refused("a script returned an invalid reply".to_owned()));
    };
    let lines: Vec<_> = lines.iter().filter_map(probe_line).collect();
    ScriptFailure::of_lines(&lines).map_or(Ok(()), Err)
}

fn probe_line(line: &RedisValue) -> Option<(&str, &str)> {
    if let RedisValue::Text(line) = line { line.split_once(": ") } else { None }
}

/// Sends `INFO`. The reply is empty if Redis refuses it.
async fn fetch_info(node: &InspectedNode) -> RedisInfo {
    RedisInfo::parse(&text_reply(node, &["INFO"]).await.unwrap_or_default())
}

async fn text_reply(node: &InspectedNode, command: &[&str]) -> Option<String> {
    match node.run_command(command).await {
        Ok(RedisValue::Text(text)) => Some(text),
        _ => None,
    }
}

/// Parses `7.0.15` as 7 and 0.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

async fn cluster_facts(node: &InspectedNode) -> Option<ClusterFacts> {
    let info = RedisInfo::parse(&text_reply(node, &["CLUSTER", "INFO"]).await?);
    let is_ok = info.text("cluster_state") == Some("ok");
    Some(ClusterFacts { is_ok, slots: info.number("cluster_slots_assigned")? })
}

async fn has_snapshots(node: &InspectedNode) -> Option<bool> {
    match node.run_command(&["CONFIG", "GET", "save"]).await {
        Ok(RedisValue::List(pair)) => match pair.get(1)? {
            RedisValue::Text(points) => Some(!points.is_empty()),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the smallest possible difference between the clocks of Redis and this machine, and the
/// median round trip.
async fn measure_times(node: &InspectedNode, clock: &Clock) -> (Option<Nanos>, Option<Nanos>) {
    let (mut skew, mut round_trips) = (None::<Nanos>, Vec::new());
    for _ in 0..TIMED_ROUND_TRIPS {
        let sent_at = clock.now();
        let Ok(reply) = node.run_command(&["TIME"]).await else { continue };
        let replied_at = clock.now();
        round_trips.push(replied_at.since(sent_at));
        if let Some(redis_time) = parse_time(&reply) {
            // Redis read its clock between these two instants, so only a time outside of them
            // proves a difference.
            let min_skew = redis_time.since(replied_at).max(sent_at.since(redis_time));
            skew = Some(skew.map_or(min_skew, |smallest| smallest.min(min_skew)));
        }
    }
    round_trips.sort_unstable();
    (skew, round_trips.get(round_trips.len() / 2).copied())
}

/// Parses the reply of `TIME`: seconds and microseconds.
fn parse_time(reply: &RedisValue) -> Option<Nanos> {
    let RedisValue::List(parts) = reply else { return None };
    let number = |part: Option<&RedisValue>| match part {
        Some(RedisValue::Text(text)) => text.parse::<u64>().ok(),
        Some(RedisValue::Int(number)) => u64::try_from(*number).ok(),
        _ => None,
    };
    let micros = number(parts.get(1))?.checked_mul(Nanos::MICRO.0)?;
    Some(Nanos::from_secs(number(parts.first())?).plus(Nanos(micros)))
}

#[cfg(test)]
mod tests {
    use super::{Nanos, RedisInfo, RedisValue, parse_time, parse_version, probe_result};

    #[test]
    fn info_and_time_replies_tolerate_malformed_values() {
        let info = RedisInfo::parse("# Server\r\nredis_version:7.0.15\r\nmaxmemory:0\r\nodd\r\n");
        assert_eq!(info.text("redis_version").and_then(parse_version), Some((7, 0)));
        assert_eq!((info.number("maxmemory"), info.number("redis_version")), (Some(0), None));
        assert_eq!(parse_version("unstable"), None);
        let time = ["12", "345"].map(|text| RedisValue::Text(text.to_owned()));
        assert_eq!(parse_time(&RedisValue::List(time.into())), Some(Nanos(12_000_345_000)));
        assert_eq!(parse_time(&RedisValue::Nil), None);
    }

    #[test]
    fn a_probe_reply_without_lines_is_a_success() {
        assert_eq!(probe_result(&RedisValue::List(Vec::new())), Ok(()));
        assert!(probe_result(&RedisValue::Nil).is_err());
    }
}
