//! The Redis of a replayed scenario: its initial counters, final counters and commands.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde_json::Value as Json;

use super::expected::unit_seconds;
use super::vectors::Scenario;
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::resp::{Client, Value};
use crate::support::service::Service;
use crate::support::waiting::{unix_seconds, until};

/// Default of `EXPIRATION_JITTER_MAX_SECONDS` in envoyproxy/ratelimit, in seconds.
const JITTER: i64 = 300;

/// Longest time in seconds between a charge and the read of the counter's TTL.
const READ_DELAY: i64 = 60;

/// Redis key of the fleet membership.
const MEMBERSHIP: &str = "sluicegatesg:{fleet}:members";

/// The Redis of one worker, so that concurrent scenarios share no counters.
pub struct RecordedStore {
    socket: PathBuf,
    database: usize,
}

impl RecordedStore {
    pub fn of(redis: &Redis, database: usize) -> Self {
        Self { socket: redis.socket(), database }
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}?db={}", self.socket.display(), self.database)
    }

    pub fn reset(&self, scenario: &Scenario, now: u64) {
        let mut client = self.connect();
        client.call(&["FLUSHDB"]);
        for (name, value) in scenario.store_before.iter().flatten() {
            client.call(&["SET", &name_at(name, now), value]);
        }
    }

    pub fn wait_until_ready(service: &Service) -> Result<(), String> {
        until("the store answers", || {
            let said = http1::get(service.http, "/readyz", &[]).map_err(|e| e.to_string())?.text();
            // The status is ignored: without limits the service is not ready, but the body still
            // reports the store.
            if said.contains("is unavailable") { Err(said) } else { Ok(()) }
        })
    }

    pub fn compare_counters(&self, scenario: &Scenario, began: u64) -> Result<(), String> {
        let Some(recorded) = &scenario.store else { return Ok(()) };
        let mut client = self.connect();
        let ended = unix_seconds();
        let counters = counters(&mut client);
        let differs = |now| {
            let at = |(name, value): (&String, &String)| (name_at(name, now), value.clone());
            let recorded: BTreeMap<String, String> = recorded.iter().map(at).collect();
            (recorded != counters)
                .then(|| format!("the store holds {counters:?} instead of {recorded:?}"))
        };
        // Counter names contain the window start. A window may have started during the scenario, so
        // names at its begin and end are tried.
        differs(began).map_or(Ok(()), |why| differs(ended).map_or(Ok(()), |_| Err(why)))?;
        let before = scenario.store_before.as_ref();
        let is_new = |name: &&String| before.is_none_or(|before| !before.contains_key(*name));
        let mut names = recorded.keys().filter(is_new);
        names.try_for_each(|name| self.compare_expiry(scenario, name, &mut client, [began, ended]))
    }

    fn compare_expiry(
        &self,
        scenario: &Scenario,
        name: &str,
        client: &mut Client,
        times: [u64; 2],
    ) -> Result<(), String> {
        let range = expiry(scenario, name);
        let left = times.map(|now| client.call(&["TTL", &name_at(name, now)]).int());
        if left.iter().any(|left| range.contains(left)) {
            return Ok(());
        }
        Err(format!("{name} of database {} lives {left:?} s, not {range:?}", self.database))
    }

    fn connect(&self) -> Client {
        let mut client = Client::connect(&self.socket).unwrap();
        client.call(&["SELECT", &self.database.to_string()]);
        client
    }
}

/// Records the commands of all clients with `MONITOR`.
pub struct CommandMonitor {
    monitor: Client,
    marker: Client,
    database: usize,
    marks: u32,
}

impl CommandMonitor {
    pub fn new(store: &RecordedStore) -> Self {
        let mut monitor = Client::connect(&store.socket).unwrap();
        monitor.call(&["MONITOR"]);
        Self { monitor, marker: store.connect(), database: store.database, marks: 0 }
    }

    /// Returns the commands on counters since the previous call of this function.
    pub fn take_commands(&mut self) -> Vec<Vec<String>> {
        self.marks += 1;
        let mark = format!("mark {}", self.marks);
        self.marker.call(&["ECHO", &mark]);
        let mut taken = Vec::new();
        loop {
            let line = self.monitor.receive().text();
            let Some((from, command)) = parts(&line) else { continue };
            match &command[..] {
                _ if !from.starts_with(&format!("{} ", self.database)) => {}
                [echo, text] if echo == "ECHO" && *text == mark => return taken,
                // Skips the service's one-time inspection of its store, which happens at any time.
                words if words.iter().any(|word| word.contains("}:doctor")) => {}
                words if words == DOCTOR_EVAL => {}
                // Skips the heartbeat for the fleet membership.
                words if words.iter().any(|word| word == MEMBERSHIP) => {}
                [name, ..] if COUNTER_COMMANDS.contains(&&**name) => taken.push(command),
                _ => {}
            }
        }
    }
}

/// The command with which the inspection finds out whether the service may run scripts.
const DOCTOR_EVAL: [&str; 3] = ["EVAL", "return 1", "0"];

/// Redis commands on counters. The service's other commands manage connections.
const COUNTER_COMMANDS: [&str; 5] = ["INCRBY", "EXPIRE", "GET", "EVAL", "EVALSHA"];

/// Splits a `MONITOR` line such as `1700000000.1 [0 unix:x] "GET" "k"` into `0 unix:x` and the
/// command's words.
fn parts(line: &str) -> Option<(&str, Vec<String>)> {
    let (from, command) = line.split_once('[')?.1.split_once("] ")?;
    let words = command.trim_matches('"').split("\" \"");
    Some((from, words.map(str::to_owned).collect()))
}

pub fn commands_differ(
    recorded: &Json,
    commands: &[Vec<String>],
    when: [u64; 2],
) -> Option<String> {
    let recorded: Vec<&Vec<Json>> =
        recorded.as_array()?.iter().filter_map(Json::as_array).collect();
    let same = |one: &Vec<Json>, other: &Vec<String>| {
        let mut words = one.iter().zip(other);
        one.len() == other.len() && words.all(|(one, other)| matches_word(one, other, when))
    };
    let agrees = recorded.len() == commands.len()
        && recorded.iter().zip(commands).all(|(one, other)| same(one, other));
    (!agrees).then(|| format!("the commands {commands:?} instead of {recorded:?}"))
}

fn matches_word(recorded: &Json, word: &str, when: [u64; 2]) -> bool {
    match recorded {
        Json::String(text) => when.iter().any(|now| name_at(text, *now) == word),
        other => {
            let [least, most] = [0, 1].map(|at| other["between"][at].as_i64().unwrap());
            word.parse().is_ok_and(|number| (least..=most).contains(&number))
        }
    }
}

/// Range of TTLs, in seconds, that the counter `name` may have.
fn expiry(scenario: &Scenario, name: &str) -> RangeInclusive<i64> {
    if let Some([least, most]) = scenario.store_ttl_between.as_ref().and_then(|it| it.get(name)) {
        return *least..=*most;
    }
    let jitter = scenario.env.get("EXPIRATION_JITTER_MAX_SECONDS");
    let jitter = jitter.map_or(JITTER, |text| text.parse().unwrap());
    let unit = placeholder(name).map_or("", |(_, unit, _)| unit);
    let length = i64::try_from(unit_seconds(unit)).unwrap();
    // The counter of a short window may have expired already; `TTL` then returns -2.
    if length < READ_DELAY {
        -2..=length + jitter
    } else {
        length - READ_DELAY..=length + jitter - 1
    }
}

fn counters(client: &mut Client) -> BTreeMap<String, String> {
    let keys = client.call(&["KEYS", "*"]);
    let one = |key: String| {
        let value = client.call(&["GET", &key]).text();
        (key, value)
    };
    // The membership key is not a counter.
    let keys = keys.array().iter().map(Value::text).filter(|key| key != MEMBERSHIP);
    keys.map(one).collect()
}

/// Replaces the placeholder `window_start` in a recorded counter name.
fn name_at(name: &str, now: u64) -> String {
    let Some((before, unit, after)) = placeholder(name) else { return name.to_owned() };
    format!("{before}{}{after}", now - now % unit_seconds(unit))
}

fn placeholder(name: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = name.split_once("{window_start:")?;
    let (unit, after) = rest.split_once('}')?;
    Some((before, unit, after))
}

#[test]
fn counter_names_contain_the_window_start() {
    assert_eq!(name_at("d_k_v_{window_start:MINUTE}", 1_234), "d_k_v_1200");
    assert_eq!(name_at("text", 1_234), "text");
}

#[test]
fn commands_must_match_the_recording_exactly() {
    let line = "1.2 [3 unix:/s] \"INCRBY\" \"d_k_{window_start:MINUTE}\" \"1\"";
    let line = line.replace("{window_start:MINUTE}", "1200");
    let (from, command) = parts(&line).unwrap();
    assert_eq!(from, "3 unix:/s");
    let incr = serde_json::json!(["INCRBY", "d_k_{window_start:MINUTE}", {"between": [1, 2]}]);
    let differ = |recorded: Json, sent: &[Vec<String>]| {
        commands_differ(&recorded, sent, [1_234, 1_234]).is_some()
    };
    assert!(!differ(serde_json::json!([incr.clone()]), std::slice::from_ref(&command)));
    assert!(differ(serde_json::json!([]), std::slice::from_ref(&command)));
    assert!(differ(serde_json::json!([incr.clone(), incr]), &[command]));
}
