//! The Redis that a scenario is replayed over: what it holds at the start, and what was left in it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde_json::Value as Json;

use super::expected::unit_seconds;
use super::vectors::Scenario;
use crate::http1;
use crate::service::Service;
use crate::support::redis::Redis;
use crate::support::resp::{Client, Value};
use crate::waiting::{unix_seconds, until};

/// The reference's default of `EXPIRATION_JITTER_MAX_SECONDS`.
const JITTER: i64 = 300;

/// Seconds that may pass between a hit and the look at its counter.
const PATIENCE: i64 = 60;

/// Where the service tells others that it lives.
const FLEET: &str = "sluicegatesg:{fleet}:members";

/// A database of its own.
pub struct Store {
    socket: PathBuf,
    database: usize,
}

impl Store {
    pub fn of(redis: &Redis, database: usize) -> Self {
        Self { socket: redis.socket(), database }
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}?db={}", self.socket.display(), self.database)
    }

    /// Empties it and puts in what the scenario begins with.
    pub fn begin(&self, scenario: &Scenario, now: u64) {
        let mut client = self.connect();
        client.call(&["FLUSHDB"]);
        for (name, value) in scenario.store_before.iter().flatten() {
            client.call(&["SET", &name_at(name, now), value]);
        }
    }

    /// Waits until the service has its store.
    pub fn answers(service: &Service) -> Result<(), String> {
        until("the store answers", || {
            let said = http1::get(service.http, "/readyz", &[]).map_err(|e| e.to_string())?.text();
            // Without limits it is not ready, and says what of the store it knows all the same.
            if said.contains("does not answer") { Err(said) } else { Ok(()) }
        })
    }

    /// Holds what is in it against what was recorded.
    pub fn holds(&self, scenario: &Scenario, began: u64) -> Result<(), String> {
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
        // A window may have begun meanwhile; scenarios in which it matters are not run then.
        differs(began).map_or(Ok(()), |why| differs(ended).map_or(Ok(()), |_| Err(why)))?;
        let before = scenario.store_before.as_ref();
        let is_new = |name: &&String| before.is_none_or(|before| !before.contains_key(*name));
        let mut names = recorded.keys().filter(is_new);
        names.try_for_each(|name| self.holds_expiry(scenario, name, &mut client, [began, ended]))
    }

    fn holds_expiry(
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

/// Everything that clients tell a Redis, in order.
pub struct Ear {
    monitor: Client,
    voice: Client,
    database: usize,
    said: u32,
}

impl Ear {
    pub fn at(store: &Store) -> Self {
        let mut monitor = Client::connect(&store.socket).unwrap();
        monitor.call(&["MONITOR"]);
        Self { monitor, voice: store.connect(), database: store.database, said: 0 }
    }

    /// The commands on counters since the last call.
    pub fn heard(&mut self) -> Vec<Vec<String>> {
        self.said += 1;
        let mark = format!("mark {}", self.said);
        self.voice.call(&["ECHO", &mark]);
        let mut heard = Vec::new();
        loop {
            let line = self.monitor.receive().text();
            let Some((from, command)) = parts(&line) else { continue };
            match &command[..] {
                _ if !from.starts_with(&format!("{} ", self.database)) => {}
                [echo, text] if echo == "ECHO" && *text == mark => return heard,
                // The look that a service takes at its store once, whenever that comes.
                words if words.iter().any(|word| word.contains("}:doctor")) => {}
                // That it lives.
                words if words.iter().any(|word| word == FLEET) => {}
                [name, ..] if COUNTING.contains(&&**name) => heard.push(command),
                _ => {}
            }
        }
    }
}

/// What is said of counters; the rest keeps connections.
const COUNTING: [&str; 5] = ["INCRBY", "EXPIRE", "GET", "EVAL", "EVALSHA"];

/// Database and address, and the command: `1700000000.1 [0 unix:x] "GET" "k"`.
fn parts(line: &str) -> Option<(&str, Vec<String>)> {
    let (from, command) = line.split_once('[')?.1.split_once("] ")?;
    let words = command.trim_matches('"').split("\" \"");
    Some((from, words.map(str::to_owned).collect()))
}

/// The first difference between what was said and what was recorded.
pub fn commands_differ(recorded: &Json, said: &[Vec<String>], when: [u64; 2]) -> Option<String> {
    let recorded: Vec<&Vec<Json>> =
        recorded.as_array()?.iter().filter_map(Json::as_array).collect();
    let same = |one: &Vec<Json>, other: &Vec<String>| {
        let mut words = one.iter().zip(other);
        one.len() == other.len() && words.all(|(one, other)| is_word(one, other, when))
    };
    let agrees = recorded.len() == said.len()
        && recorded.iter().zip(said).all(|(one, other)| same(one, other));
    (!agrees).then(|| format!("the commands {said:?} instead of {recorded:?}"))
}

fn is_word(recorded: &Json, said: &str, when: [u64; 2]) -> bool {
    match recorded {
        Json::String(text) => when.iter().any(|now| name_at(text, *now) == said),
        other => {
            let [least, most] = [0, 1].map(|at| other["between"][at].as_i64().unwrap());
            said.parse().is_ok_and(|number| (least..=most).contains(&number))
        }
    }
}

/// What one may find of a counter's expiry.
fn expiry(scenario: &Scenario, name: &str) -> RangeInclusive<i64> {
    if let Some([least, most]) = scenario.store_ttl_between.as_ref().and_then(|it| it.get(name)) {
        return *least..=*most;
    }
    let jitter = scenario.env.get("EXPIRATION_JITTER_MAX_SECONDS");
    let jitter = jitter.map_or(JITTER, |text| text.parse().unwrap());
    let unit = placeholder(name).map_or("", |(_, unit, _)| unit);
    let length = i64::try_from(unit_seconds(unit)).unwrap();
    // Of a second's counter there may be nothing left to look at: -2.
    if length < PATIENCE { -2..=length + jitter } else { length - PATIENCE..=length + jitter - 1 }
}

fn counters(client: &mut Client) -> BTreeMap<String, String> {
    let keys = client.call(&["KEYS", "*"]);
    let one = |key: String| {
        let value = client.call(&["GET", &key]).text();
        (key, value)
    };
    // No counter: the replica's own record.
    let keys = keys.array().iter().map(Value::text).filter(|key| key != FLEET);
    keys.map(one).collect()
}

/// A counter's name with the start of its window.
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
fn a_counter_is_named_by_the_start_of_its_window() {
    assert_eq!(name_at("d_k_v_{window_start:MINUTE}", 1_234), "d_k_v_1200");
    assert_eq!(name_at("text", 1_234), "text");
}

#[test]
fn commands_are_those_that_were_recorded_in_their_order_and_no_others() {
    let line = "1.2 [3 unix:/s] \"INCRBY\" \"d_k_{window_start:MINUTE}\" \"1\"";
    let line = line.replace("{window_start:MINUTE}", "1200");
    let (from, said) = parts(&line).unwrap();
    assert_eq!(from, "3 unix:/s");
    let incr = serde_json::json!(["INCRBY", "d_k_{window_start:MINUTE}", {"between": [1, 2]}]);
    let differ = |recorded: Json, said: &[Vec<String>]| {
        commands_differ(&recorded, said, [1_234, 1_234]).is_some()
    };
    assert!(!differ(serde_json::json!([incr.clone()]), std::slice::from_ref(&said)));
    assert!(differ(serde_json::json!([]), std::slice::from_ref(&said)));
    assert!(differ(serde_json::json!([incr.clone(), incr]), &[said]));
}
