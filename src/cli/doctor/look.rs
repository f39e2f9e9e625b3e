//! Collects the facts about a Redis with plain commands.
//!
//! Guarantees:
//! - A refused command leaves its fact unknown; a refused script is itself a fact.
//! - Four keys are written and deleted in one script.
//! - Every command has a timeout.
//!
//! Not covered:
//! - The meaning of the facts: see [`super::judge`].

use std::collections::BTreeMap;

use super::judge::{Cluster, Facts};
use crate::backend::redis::inspect::{self, Node, Refused, Said};
use crate::backend::redis::{Options, Place};
use crate::clock::Clock;
use crate::kernel::units::Nanos;

/// The number of timed round trips. Their median is reported.
const ROUND_TRIPS: usize = 21;

/// The number of keys to try at a node of a Cluster. A node with 2 % of the
/// slots owns one of them with a probability of 99 %: `1 - 0.98^256 = 0.994`.
const MOST_KEYS: usize = 256;

/// The script that runs every command of our scripts, and deletes its keys.
const PROBE: &str = include_str!("probe.lua");

/// Returns the facts about every process that stores counters.
/// `reference` selects the commands for envoyproxy/ratelimit's keys.
pub(super) async fn look(
    options: &Options,
    reference: bool,
    clock: &Clock,
) -> Result<Vec<Facts>, Refused> {
    let mut facts = Vec::new();
    for node in &inspect::open(options).await? {
        facts.push(one(node, options, reference, clock).await);
    }
    Ok(facts)
}

async fn one(node: &Node, options: &Options, reference: bool, clock: &Clock) -> Facts {
    let info = Info::of(node).await;
    let yes = |name: &str| info.text(name).map(|text| text == "1");
    let cluster = match yes("cluster_enabled") {
        Some(true) => cluster(node).await,
        _ => None,
    };
    let script = script(node, &options.key_prefix, reference).await;
    let (skew, round_trip) = times(node, clock).await;
    Facts {
        at: node.at.clone(),
        version: info.text("redis_version").and_then(version),
        role: info.text("role").map(str::to_owned),
        loading: yes("loading").unwrap_or_default(),
        names_its_run: Some(info.text("run_id").is_some()),
        policy: info.text("maxmemory_policy").map(str::to_owned),
        maxmemory: info.number("maxmemory"),
        used: info.number("used_memory"),
        evicted: info.number("evicted_keys"),
        appends: yes("aof_enabled"),
        saves: saves(node).await,
        last_save_failed: info.text("rdb_last_bgsave_status") == Some("err"),
        cluster,
        writes_alone: writes_alone(&info, &options.place),
        skew,
        round_trip,
        script,
    }
}

/// Returns `true` if the primary of a Sentinel setup accepts writes without a replica.
fn writes_alone(info: &Info, place: &Place) -> Option<bool> {
    let is_chosen = matches!(place, Place::Sentinel(_));
    // `INFO` has this field only if `min-replicas-to-write` and `min-replicas-max-lag` are set.
    info.text("role").filter(|_| is_chosen).map(|_| info.text("min_slaves_good_slaves").is_none())
}

/// Runs the probe script. Returns `None` if the node owns none of the keys that were tried.
async fn script(node: &Node, prefix: &str, reference: bool) -> Option<Result<(), String>> {
    let digest = match (node.ask(&["EVAL", "return 1", "0"]).await, loaded(node).await) {
        (Ok(_), Ok(digest)) => digest,
        (Err(Refused(words)), _) | (_, Err(Refused(words))) => return Some(Err(words)),
    };
    let flag = if reference { "1" } else { "0" };
    for number in 0..MOST_KEYS {
        let [text, list, hash, sorted] = ["text", "list", "hash", "sorted"]
            .map(|kind| format!("{prefix}sg:{{{number}}}:doctor:{kind}"));
        let call = ["EVALSHA", &digest, "4", &text, &list, &hash, &sorted, flag];
        match node.ask(&call).await {
            Ok(said) => return Some(refused(said)),
            Err(Refused(words)) if words.contains("MOVED") => {}
            Err(Refused(words)) => return Some(Err(words)),
        }
    }
    None
}

async fn loaded(node: &Node) -> Result<String, Refused> {
    match node.ask(&["SCRIPT", "LOAD", PROBE]).await? {
        Said::Text(digest) => Ok(digest),
        _ => Err(Refused("SCRIPT LOAD names no script".to_owned())),
    }
}

/// Reads the reply of [`PROBE`]: the names of the refused commands, and the first reason.
fn refused(said: Said) -> Result<(), String> {
    let Said::List(lines) = said else { return Err("a script is answered by nonsense".to_owned()) };
    let mut why = None;
    let names: Vec<_> = lines
        .iter()
        .filter_map(|line| if let Said::Text(line) = line { line.split_once(": ") } else { None })
        .map(|(name, words)| {
            why.get_or_insert(words);
            name
        })
        .collect();
    why.map_or(Ok(()), |why| Err(format!("{}: {why}", names.join(", "))))
}

struct Info(BTreeMap<String, String>);

impl Info {
    async fn of(node: &Node) -> Self {
        Self::parse(&text(node, &["INFO"]).await.unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
        Self(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }
}

async fn text(node: &Node, command: &[&str]) -> Option<String> {
    match node.ask(command).await {
        Ok(Said::Text(text)) => Some(text),
        _ => None,
    }
}

/// Parses `7.0.15` as 7 and 0.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

async fn cluster(node: &Node) -> Option<Cluster> {
    let info = Info::parse(&text(node, &["CLUSTER", "INFO"]).await?);
    let is_ok = info.text("cluster_state") == Some("ok");
    Some(Cluster { is_ok, slots: info.number("cluster_slots_assigned")? })
}

async fn saves(node: &Node) -> Option<bool> {
    match node.ask(&["CONFIG", "GET", "save"]).await {
        Ok(Said::List(pair)) => match pair.get(1)? {
            Said::Text(points) => Some(!points.is_empty()),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the least possible clock difference, and the median round trip.
async fn times(node: &Node, clock: &Clock) -> (Option<Nanos>, Option<Nanos>) {
    let (mut skew, mut took) = (None::<Nanos>, Vec::new());
    for _ in 0..ROUND_TRIPS {
        let sent = clock.now();
        let Ok(said) = node.ask(&["TIME"]).await else { continue };
        let answered = clock.now();
        took.push(answered.since(sent));
        if let Some(its) = instant(&said) {
            // Redis read its clock between `sent` and `answered`.
            // Only time outside that interval is a clock difference.
            let apart = its.since(answered).max(sent.since(its));
            skew = Some(skew.map_or(apart, |least| least.min(apart)));
        }
    }
    took.sort_unstable();
    (skew, took.get(took.len() / 2).copied())
}

/// Parses the reply of `TIME`: seconds and microseconds.
fn instant(said: &Said) -> Option<Nanos> {
    let Said::List(parts) = said else { return None };
    let number = |part: Option<&Said>| match part {
        Some(Said::Text(text)) => text.parse::<u64>().ok(),
        Some(Said::Int(number)) => u64::try_from(*number).ok(),
        _ => None,
    };
    let micros = number(parts.get(1))?.checked_mul(Nanos::MICRO.0)?;
    Some(Nanos::from_secs(number(parts.first())?).plus(Nanos(micros)))
}

#[cfg(test)]
mod tests {
    use super::{Info, Nanos, Said, instant, refused, version};

    #[test]
    fn info_and_time_replies_tolerate_malformed_values() {
        let info = Info::parse("# Server\r\nredis_version:7.0.15\r\nmaxmemory:0\r\nodd\r\n");
        assert_eq!(info.text("redis_version").and_then(version), Some((7, 0)));
        assert_eq!((info.number("maxmemory"), info.number("redis_version")), (Some(0), None));
        assert_eq!(version("unstable"), None);
        let time = ["12", "345"].map(|text| Said::Text(text.to_owned()));
        assert_eq!(instant(&Said::List(time.into())), Some(Nanos(12_000_345_000)));
        assert_eq!(instant(&Said::Nil), None);
    }
    #[test]
    fn one_error_lists_all_refused_commands() {
        let text = |text: &str| Said::Text(text.to_owned());
        assert_eq!(refused(Said::List(Vec::new())), Ok(()));
        let both = Said::List(vec![text("set: OOM no: memory"), text("zadd: OOM no: memory")]);
        assert_eq!(refused(both), Err("set, zadd: OOM no: memory".to_owned()));
        assert!(refused(Said::Nil).is_err());
    }
}
