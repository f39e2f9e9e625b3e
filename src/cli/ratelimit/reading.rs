//! Variables on their way to settings.
//!
//! Guarantees: every problem is collected; a variable that is not set has its default; of settings that what wins over the
//! variables names, none is said.
//! Leaves out: what variables mean.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs as _};

use super::parse::{Parsed, parse};
use super::table::{Means, TABLE};
use crate::config::settings::Named;

/// A line about a variable that is not taken as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Which.
    pub variable: String,
    /// What becomes of it, and why.
    pub line: String,
}

/// What was read so far.
pub(super) struct Reading<'e> {
    environment: &'e HashMap<String, String>,
    ours: &'e BTreeSet<&'static str>,
    parsed: HashMap<&'static str, Parsed>,
    pub(super) named: Vec<Named>,
    pub(super) notes: Vec<Note>,
    pub(super) refused: Vec<String>,
}

impl<'e> Reading<'e> {
    /// Every variable of the table, read by its kind.
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
                // Where that is none of its business: as where it is not set.
                parsed = parse(row.kind, row.default);
            }
            reading.parsed.extend(parsed.map(|parsed| (row.name, parsed)));
        }
        reading
    }

    /// Whether what wins over the variables names `setting`.
    pub(super) fn is_ours(&self, setting: &str) -> bool {
        self.ours.contains(setting)
    }

    /// Whether it names every setting that `variable` could be.
    pub(super) fn is_overridden(&self, variable: &str) -> bool {
        let row = TABLE.iter().find(|row| row.name == variable);
        row.is_some_and(|row| match row.means {
            Means::Settings(names) => names.split(", ").all(|name| self.is_ours(name)),
            Means::Nothing(_) => false,
        })
    }

    /// Whether the variable is there, even if empty.
    pub(super) fn is_set(&self, variable: &str) -> bool {
        self.environment.contains_key(variable)
    }

    /// The text of a variable that need not be in the table.
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

    /// Nanoseconds; none for a duration below zero.
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

    /// Says that `setting` is `text` because of `variable`.
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

    /// Says that `setting` is on where `variable` holds something.
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

    /// The address that a host's name or address stands for; all of this machine's where it is empty.
    pub(super) fn put_host(&mut self, variable: &'static str, setting: &'static str, host: &str) {
        match resolve(host) {
            Some(address) => self.put(variable, setting, address.to_string()),
            None => self.refuse(variable, "names no address of this machine to listen on"),
        }
    }

    /// Pairs as our settings write them.
    pub(super) fn put_pairs(
        &mut self,
        variable: &'static str,
        setting: &'static str,
        pairs: &[(String, String)],
    ) {
        let pairs: Vec<_> = pairs.iter().map(|(name, text)| format!("{name}={text}")).collect();
        self.put(variable, setting, pairs.join(","));
    }

    /// Says that `variable` is not taken as it stands.
    pub(super) fn note(&mut self, variable: &str, line: &str) {
        if self.is_overridden(variable) {
            return;
        }
        self.notes.push(Note { variable: variable.to_owned(), line: line.to_owned() });
    }

    /// Says of those that hold something why nothing heeds them.
    pub(super) fn unused(&mut self, variables: &[&str], why: &str) {
        for variable in variables {
            if !self.raw(variable).is_empty() {
                self.note(variable, why);
            }
        }
    }

    /// Says that the process cannot start. Where `variable` is overridden it can: what follows is still to be read.
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
