//! Collects settings from environment variables.
//!
//! Guarantees:
//! - Collects all problems.
//! - An unset variable has its default.
//! - Skips settings that a flag, a `SLUICEGATE_*` variable or `server.yaml` sets.
//!
//! Not covered:
//! - The meaning of the variables.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs as _};

use super::parse::{Parsed, parse};
use super::table::{Means, TABLE};
use crate::config::settings::Named;

/// An explanation of a variable that applies differently, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The name of the variable.
    pub variable: String,
    /// The effect of the variable, and the reason.
    pub line: String,
}

pub(super) struct Reading<'e> {
    environment: &'e HashMap<String, String>,
    ours: &'e BTreeSet<&'static str>,
    parsed: HashMap<&'static str, Parsed>,
    pub(super) named: Vec<Named>,
    pub(super) notes: Vec<Note>,
    pub(super) refused: Vec<String>,
}

impl<'e> Reading<'e> {
    /// Parses every variable of the table.
    pub(super) fn of(
        environment: &'e HashMap<String, String>,
        ours: &'e BTreeSet<&'static str>,
    ) -> Self {
        let mut reading = Self {
            environment,
            ours,
            parsed: HashMap::new(),
            named: Vec::new(),
            notes: Vec::new(),
            refused: Vec::new(),
        };
        for row in TABLE {
            let text = environment.get(row.name).map_or(row.default, String::as_str);
            let mut parsed = parse(row.kind, text);
            if parsed.is_none() {
                reading.refuse(row.name, &format!("takes {}", row.kind.accepts()));
                // An overridden variable may have an invalid text. Use its default.
                parsed = parse(row.kind, row.default);
            }
            reading.parsed.extend(parsed.map(|parsed| (row.name, parsed)));
        }
        reading
    }

    /// Returns `true` if a flag, a `SLUICEGATE_*` variable or `server.yaml` sets `setting`.
    pub(super) fn is_ours(&self, setting: &str) -> bool {
        self.ours.contains(setting)
    }

    /// Returns `true` if flags, `SLUICEGATE_*` or `server.yaml` set all settings of `variable`.
    pub(super) fn is_overridden(&self, variable: &str) -> bool {
        let row = TABLE.iter().find(|row| row.name == variable);
        row.is_some_and(|row| match row.means {
            Means::Settings(names) => names.split(", ").all(|name| self.is_ours(name)),
            Means::Nothing(_) => false,
        })
    }

    /// Returns `true` if the variable exists, even if it is empty.
    pub(super) fn is_set(&self, variable: &str) -> bool {
        self.environment.contains_key(variable)
    }

    /// Returns the text of a variable, which may be missing from the table.
    pub(super) fn raw(&self, variable: &str) -> &str {
        self.environment.get(variable).map_or("", String::as_str)
    }

    pub(super) fn text(&self, variable: &str) -> &str {
        match self.parsed.get(variable) {
            Some(Parsed::Text(text)) => text,
            _ => "",
        }
    }

    pub(super) fn flag(&self, variable: &str) -> bool {
        matches!(self.parsed.get(variable), Some(Parsed::Bool(true)))
    }

    pub(super) fn int(&self, variable: &str) -> i64 {
        match self.parsed.get(variable) {
            Some(Parsed::Int(number)) => *number,
            _ => 0,
        }
    }

    pub(super) fn float(&self, variable: &str) -> f32 {
        match self.parsed.get(variable) {
            Some(Parsed::Float(number)) => *number,
            _ => 0.0,
        }
    }

    /// Returns nanoseconds. A negative duration becomes 0.
    pub(super) fn nanos(&self, variable: &str) -> u64 {
        match self.parsed.get(variable) {
            Some(Parsed::Duration(nanos)) => u64::try_from(*nanos).unwrap_or(0),
            _ => 0,
        }
    }

    pub(super) fn list(&self, variable: &str) -> Vec<String> {
        match self.parsed.get(variable) {
            Some(Parsed::List(list)) => list.clone(),
            _ => Vec::new(),
        }
    }

    pub(super) fn map(&self, variable: &str) -> Vec<(String, String)> {
        match self.parsed.get(variable) {
            Some(Parsed::Map(map)) => map.clone(),
            _ => Vec::new(),
        }
    }

    /// Sets `setting` to `text`, with `variable` as its origin.
    pub(super) fn put(&mut self, variable: &'static str, setting: &'static str, text: String) {
        if self.is_ours(setting) {
            return;
        }
        let is_set = self.is_set(variable);
        self.named.push(Named { setting, texts: vec![text], variable, is_set });
    }

    pub(super) fn put_flag(&mut self, variable: &'static str, setting: &'static str) {
        self.put(variable, setting, self.flag(variable).to_string());
    }

    pub(super) fn put_text(&mut self, variable: &'static str, setting: &'static str) {
        self.put(variable, setting, self.text(variable).to_owned());
    }

    /// Sets `setting` to true if `variable` is not empty.
    pub(super) fn put_presence(&mut self, variable: &'static str, setting: &'static str) {
        self.put(variable, setting, (!self.text(variable).is_empty()).to_string());
    }

    pub(super) fn put_nanos(&mut self, variable: &'static str, setting: &'static str) {
        self.put(variable, setting, format!("{}ns", self.nanos(variable)));
    }

    pub(super) fn put_port(&mut self, variable: &'static str, setting: &'static str) {
        match u16::try_from(self.int(variable)) {
            Ok(port) => self.put(variable, setting, port.to_string()),
            Err(_) => self.refuse(variable, "takes a port from 0 to 65535"),
        }
    }

    /// Sets `setting` to the IP address of `host`. An empty host means all IPv4 addresses.
    pub(super) fn put_host(&mut self, variable: &'static str, setting: &'static str, host: &str) {
        match resolve(host) {
            Some(address) => self.put(variable, setting, address.to_string()),
            None => self.refuse(variable, "names no address of this machine to listen on"),
        }
    }

    /// Sets `setting` to `pairs` in the format `name=text,name=text`.
    pub(super) fn put_pairs(
        &mut self,
        variable: &'static str,
        setting: &'static str,
        pairs: &[(String, String)],
    ) {
        let pairs: Vec<_> = pairs.iter().map(|(name, text)| format!("{name}={text}")).collect();
        self.put(variable, setting, pairs.join(","));
    }

    /// Records a note about `variable`, unless it is overridden.
    pub(super) fn note(&mut self, variable: &str, line: &str) {
        if self.is_overridden(variable) {
            return;
        }
        self.notes.push(Note { variable: variable.to_owned(), line: line.to_owned() });
    }

    /// Records `why` as a note for each of `variables` that is not empty.
    pub(super) fn unused(&mut self, variables: &[&str], why: &str) {
        for variable in variables {
            if !self.raw(variable).is_empty() {
                self.note(variable, why);
            }
        }
    }

    /// Records an error that prevents the start. Ignored if `variable`
    /// is overridden, so the caller must continue to read the rest.
    pub(super) fn refuse(&mut self, variable: &str, why: &str) {
        if self.is_overridden(variable) {
            return;
        }
        let got = self.raw(variable);
        let mut sentence = format!("{variable} {why}");
        let secret = ["AUTH", "URL", "HEADERS"].iter().any(|part| variable.contains(part));
        if self.is_set(variable) && !secret {
            sentence.extend([", got `", got, "`"]);
        }
        if got.starts_with("tcp://") {
            sentence.push_str(
                "; Kubernetes sets this variable for a Service of that name: set \
                 `enableServiceLinks: false`",
            );
        }
        self.refused.push(sentence);
    }
}

fn resolve(host: &str) -> Option<IpAddr> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host {
        "" => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        host => host.parse().ok().or_else(|| {
            let mut found = (host, 0).to_socket_addrs().ok()?;
            found.next().map(|address| address.ip())
        }),
    }
}
