//! Reads the environment variables of envoyproxy/ratelimit, and collects the resulting settings.
//!
//! Guarantees:
//! - Reports all invalid variables together.
//! - An unset variable has the default of envoyproxy/ratelimit.
//! - Skips settings that a flag, a `SLUICEGATE_*` variable or `server.yaml` sets.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs as _};

use super::parse::{VariableValue, parse_variable};
use super::table::{TABLE, VariableEffect};
use crate::config::settings::{PREFIX, RatelimitValue};

/// Explains that an environment variable has another effect in Sluicegate, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableNote {
    /// The name of the environment variable.
    pub variable: String,
    /// The effect of the variable in Sluicegate, and the reason for the difference.
    pub line: String,
}

pub(super) struct EnvReader<'e> {
    environment: &'e HashMap<String, String>,
    overridden_settings: &'e BTreeSet<&'static str>,
    parsed: HashMap<&'static str, VariableValue>,
    pub(super) settings: Vec<RatelimitValue>,
    pub(super) notes: Vec<VariableNote>,
    pub(super) errors: Vec<String>,
}

impl<'e> EnvReader<'e> {
    /// Parses every environment variable of [`TABLE`].
    pub(super) fn parse_all(
        environment: &'e HashMap<String, String>,
        overridden_settings: &'e BTreeSet<&'static str>,
    ) -> Self {
        let mut reader = Self {
            environment,
            overridden_settings,
            parsed: HashMap::new(),
            settings: Vec::new(),
            notes: Vec::new(),
            errors: Vec::new(),
        };
        for row in TABLE {
            let text = environment.get(row.name).map_or(row.default, String::as_str);
            let mut parsed = parse_variable(row.kind, text);
            if parsed.is_none() {
                reader.add_error(row.name, &format!("must be {}", row.kind.accepts()));
                // Continues with the default, because Sluicegate's own settings may override the
                // variable.
                parsed = parse_variable(row.kind, row.default);
            }
            reader.parsed.extend(parsed.map(|parsed| (row.name, parsed)));
        }
        reader
    }

    /// Returns the variables that are neither in [`TABLE`] nor Sluicegate's own, in order.
    pub(super) fn unknown_variables(&self) -> BTreeSet<String> {
        let is_known = |name: &str| TABLE.iter().any(|row| row.name == name);
        let unknown =
            self.environment.keys().filter(|name| !is_known(name) && !name.starts_with(PREFIX));
        unknown.cloned().collect()
    }

    /// Returns `true` if a flag, a `SLUICEGATE_*` variable or `server.yaml` sets `setting`.
    pub(super) fn is_setting_overridden(&self, setting: &str) -> bool {
        self.overridden_settings.contains(setting)
    }

    /// Returns `true` if flags, `SLUICEGATE_*` or `server.yaml` set all settings of `variable`.
    pub(super) fn is_variable_overridden(&self, variable: &str) -> bool {
        let row = TABLE.iter().find(|row| row.name == variable);
        row.is_some_and(|row| match row.effect {
            VariableEffect::Settings(names) => {
                names.split(", ").all(|name| self.is_setting_overridden(name))
            }
            VariableEffect::NoEffect(_) => false,
        })
    }

    /// Returns `true` if the environment variable exists, even if it is empty.
    pub(super) fn is_set(&self, variable: &str) -> bool {
        self.environment.contains_key(variable)
    }

    /// Returns the text of an environment variable, even if it is not in [`TABLE`]. Empty if unset.
    pub(super) fn raw(&self, variable: &str) -> &str {
        self.environment.get(variable).map_or("", String::as_str)
    }

    pub(super) fn text(&self, variable: &str) -> &str {
        match self.parsed.get(variable) {
            Some(VariableValue::Text(text)) => text,
            _ => "",
        }
    }

    pub(super) fn flag(&self, variable: &str) -> bool {
        matches!(self.parsed.get(variable), Some(VariableValue::Bool(true)))
    }

    pub(super) fn int(&self, variable: &str) -> i64 {
        match self.parsed.get(variable) {
            Some(VariableValue::Int(number)) => *number,
            _ => 0,
        }
    }

    pub(super) fn float(&self, variable: &str) -> f32 {
        match self.parsed.get(variable) {
            Some(VariableValue::Float(number)) => *number,
            _ => 0.0,
        }
    }

    /// Returns the duration of `variable` in nanoseconds. A negative duration becomes 0.
    pub(super) fn nanos(&self, variable: &str) -> u64 {
        match self.parsed.get(variable) {
            Some(VariableValue::Duration(nanos)) => u64::try_from(*nanos).unwrap_or(0),
            _ => 0,
        }
    }

    pub(super) fn list(&self, variable: &str) -> Vec<String> {
        match self.parsed.get(variable) {
            Some(VariableValue::List(list)) => list.clone(),
            _ => Vec::new(),
        }
    }

    pub(super) fn map(&self, variable: &str) -> Vec<(String, String)> {
        match self.parsed.get(variable) {
            Some(VariableValue::Map(map)) => map.clone(),
            _ => Vec::new(),
        }
    }

    /// Sets `setting` to `text`, with `variable` as its origin, unless it is overridden.
    pub(super) fn put(&mut self, variable: &'static str, setting: &'static str, text: String) {
        if self.is_setting_overridden(setting) {
            return;
        }
        let is_set = self.is_set(variable);
        self.settings.push(RatelimitValue { setting, texts: vec![text], variable, is_set });
    }

    pub(super) fn put_flag(&mut self, variable: &'static str, setting: &'static str) {
        self.put(variable, setting, self.flag(variable).to_string());
    }

    pub(super) fn put_text(&mut self, variable: &'static str, setting: &'static str) {
        self.put(variable, setting, self.text(variable).to_owned());
    }

    /// Sets `setting` to `true` if `variable` is not empty.
    pub(super) fn put_presence(&mut self, variable: &'static str, setting: &'static str) {
        if !self.text(variable).is_empty() {
            self.put(variable, setting, "true".to_owned());
        }
    }

    pub(super) fn put_nanos(&mut self, variable: &'static str, setting: &'static str) {
        self.put(variable, setting, format!("{}ns", self.nanos(variable)));
    }

    /// As [`Self::put_nanos`]; zero means never.
    pub(super) fn put_age(&mut self, variable: &'static str, setting: &'static str) {
        match self.nanos(variable) {
            0 => self.put(variable, setting, "never".to_owned()),
            _ => self.put_nanos(variable, setting),
        }
    }

    pub(super) fn put_port(&mut self, variable: &'static str, setting: &'static str) {
        match u16::try_from(self.int(variable)) {
            Ok(port) => self.put(variable, setting, port.to_string()),
            Err(_) => self.add_error(variable, "must be a port from 0 to 65535"),
        }
    }

    /// Sets `setting` to the IP address of `host`; an empty host means all IPv4 addresses.
    pub(super) fn put_host(&mut self, variable: &'static str, setting: &'static str, host: &str) {
        match resolve_host(host) {
            Some(address) => self.put(variable, setting, address.to_string()),
            None => self.add_error(variable, "must be an IP address or host name to listen on"),
        }
    }

    /// Sets `setting` to `pairs`, written as `name=text,name=text`.
    pub(super) fn put_pairs(
        &mut self,
        variable: &'static str,
        setting: &'static str,
        pairs: &[(String, String)],
    ) {
        let pairs: Vec<_> = pairs.iter().map(|(name, text)| format!("{name}={text}")).collect();
        self.put(variable, setting, pairs.join(","));
    }

    /// Records that `variable` has another effect in Sluicegate, or none, unless it is overridden.
    pub(super) fn add_note(&mut self, variable: &str, line: &str) {
        if self.is_variable_overridden(variable) {
            return;
        }
        self.notes.push(VariableNote { variable: variable.to_owned(), line: line.to_owned() });
    }

    /// Records `why` for each of `variables` that is not empty: it has no effect.
    pub(super) fn note_unused(&mut self, variables: &[&str], why: &str) {
        for variable in variables {
            if !self.raw(variable).is_empty() {
                self.add_note(variable, why);
            }
        }
    }

    /// Records an error that prevents the start, unless `variable` is overridden. The caller must
    /// continue.
    pub(super) fn add_error(&mut self, variable: &str, why: &str) {
        if self.is_variable_overridden(variable) {
            return;
        }
        let text = self.raw(variable);
        let mut sentence = format!("{variable} {why}");
        let is_secret = ["AUTH", "URL", "HEADERS"].iter().any(|word| variable.contains(word));
        if self.is_set(variable) && !is_secret {
            sentence.extend([", got `", text, "`"]);
        }
        if text.starts_with("tcp://") {
            sentence.push_str(
                "; Kubernetes sets this variable for a Service with this name: set \
                 `enableServiceLinks: false` in the pod",
            );
        }
        self.errors.push(sentence);
    }
}

fn resolve_host(host: &str) -> Option<IpAddr> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host {
        "" => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        host => host.parse().ok().or_else(|| {
            let mut addresses = (host, 0).to_socket_addrs().ok()?;
            addresses.next().map(|address| address.ip())
        }),
    }
}
