//! Computes the [`Settings`] from flags, environment variables, `server.yaml` and defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::block::Block as _;
use super::conflicts::{RatelimitValueAction, SettingConflict, find_conflicts};
use super::peer_conflicts::find_peer_conflicts;
use super::unknown::explain_unknown;
use super::unused::find_unused;
use super::value::Shape;
use super::{PREFIX, Setting, SettingOrigin, Settings, file, find_setting, nearest, table};
use crate::diagnostic::Severity;

/// The unparsed values of all settings, by origin.
///
/// This type does not implement `Debug`, because a value may be a secret.
#[derive(Clone, Default)]
pub struct SettingsInput {
    /// The flags: for each, its name as in [`Setting::flag`] (without dashes) and its values.
    pub flags: Vec<(String, Vec<String>)>,
    /// The environment variables: names and values. Names without [`PREFIX`] are ignored.
    pub environment: Vec<(String, String)>,
    /// The path and the content of `server.yaml`, if there is one.
    pub file: Option<(String, String)>,
    /// The values for compatibility mode, taken from the environment variables of
    /// envoyproxy/ratelimit. Flags, Sluicegate's variables and the file override them.
    pub ratelimit_values: Vec<RatelimitValue>,
}

impl SettingsInput {
    /// Returns the names of the settings that a flag, a variable or the file sets, even to an
    /// invalid value.
    #[must_use]
    pub fn explicit_setting_names(&self) -> BTreeSet<&'static str> {
        // A file that is not a mapping sets nothing here. [`read`] reports it as an error.
        let file = self.file.as_ref().and_then(|(_, text)| file::read_entries(text).ok());
        let is_set = |row: &Setting| {
            self.flags.iter().any(|(flag, _)| *flag == row.flag)
                || self.environment.iter().any(|(variable, _)| *variable == row.variable)
                || file.iter().flatten().any(|entry| entry.name == row.name)
        };
        table().iter().filter(|row| is_set(row)).map(|row| row.name).collect()
    }
}

/// A value of a setting that an environment variable of envoyproxy/ratelimit determines, in
/// compatibility mode.
#[derive(Clone)]
pub struct RatelimitValue {
    /// The name of the setting.
    pub setting: &'static str,
    /// The value, as one or more texts.
    pub texts: Vec<String>,
    /// The name of the envoyproxy/ratelimit environment variable.
    pub variable: &'static str,
    /// `true` if this variable is set, `false` if the value is the default of this variable.
    pub is_set: bool,
}

/// An error or a warning about a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingProblem {
    /// The severity. An error prevents the start of the process, a warning does not.
    pub severity: Severity,
    /// The origin of the value.
    pub origin: SettingOrigin,
    /// The message, which names the expected and the actual value.
    pub message: String,
    /// The suggested fix, if there is one.
    pub help: Option<String>,
}

impl fmt::Display for SettingProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, origin, message, help } = self;
        let severity = if *severity == Severity::Error { "error" } else { "warning" };
        write!(f, "{severity}: {origin}: {message}")?;
        help.iter().try_for_each(|help| write!(f, "; {help}"))
    }
}

/// The values of all settings, their origins, and the warnings.
#[derive(Clone, Debug)]
pub struct LoadedSettings {
    /// The values of the settings.
    pub settings: Settings,
    /// The origin of each value, by setting name. A setting that is not here has its default.
    pub origins: BTreeMap<&'static str, SettingOrigin>,
    /// The warnings about probable mistakes.
    pub warnings: Vec<SettingProblem>,
}

/// Computes all settings. The order of precedence is: flag, environment variable, `server.yaml`,
/// envoyproxy/ratelimit variable, default.
///
/// # Errors
///
/// Returns all errors and warnings, if there is at least one error.
pub fn read(input: &SettingsInput) -> Result<LoadedSettings, Vec<SettingProblem>> {
    let mut reader = SettingsReader::default();
    reader.read_ratelimit_values(&input.ratelimit_values);
    if let Some((name, text)) = &input.file {
        reader.read_file(&Arc::from(name.as_str()), text);
    }
    reader.read_environment(&input.environment);
    reader.read_flags(&input.flags);
    reader.resolve_conflicts();
    let SettingsReader { settings, origins, problems } = reader;
    if problems.iter().any(|problem| problem.severity == Severity::Error) {
        return Err(problems);
    }
    Ok(LoadedSettings { settings, origins, warnings: problems })
}

#[derive(Default)]
struct SettingsReader {
    settings: Settings,
    origins: BTreeMap<&'static str, SettingOrigin>,
    problems: Vec<SettingProblem>,
}

impl SettingsReader {
    fn read_file(&mut self, name: &Arc<str>, text: &str) {
        let at = |(line, column)| SettingOrigin::File(Arc::clone(name), line, column);
        let entries = match file::read_entries(text) {
            Ok(entries) => entries,
            Err(broken) => return self.report_error(at(broken.at), broken.message, None),
        };
        for entry in entries {
            match find_setting(&entry.name) {
                Some(setting) if !entry.has_dotted_key => {
                    let texts = entry.node.texts(setting.shape);
                    let texts: Option<Vec<&str>> =
                        texts.as_ref().map(|texts| texts.iter().map(AsRef::as_ref).collect());
                    self.assign(setting, at(entry.value_at), texts.as_deref());
                }
                _ => self.report_unknown(at(entry.name_at), &entry.name, ""),
            }
        }
    }

    fn read_ratelimit_values(&mut self, values: &[RatelimitValue]) {
        for RatelimitValue { setting, texts, variable, is_set } in values {
            let origin = match is_set {
                true => SettingOrigin::Environment((*variable).to_owned()),
                false => SettingOrigin::RatelimitDefault(variable),
            };
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            if let Some(setting) = find_setting(setting) {
                self.assign(setting, origin, Some(&texts));
            }
        }
    }

    fn read_environment(&mut self, variables: &[(String, String)]) {
        for (variable, text) in variables {
            let Some(name) = variable.strip_prefix(PREFIX) else { continue };
            let origin = SettingOrigin::Environment(variable.clone());
            match table().iter().find(|setting| setting.variable == *variable) {
                Some(setting) => {
                    self.assign(setting, origin, Some(&split_variable(setting.shape, text)));
                }
                None => self.report_unknown(origin, &name.to_lowercase(), text),
            }
        }
    }

    fn read_flags(&mut self, flags: &[(String, Vec<String>)]) {
        for (flag, texts) in flags {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let origin = SettingOrigin::Flag(flag.clone());
            match table().iter().find(|setting| setting.flag == *flag) {
                Some(setting) => self.assign(setting, origin, Some(&texts)),
                None => self.report_unknown(origin, &flag.replace('-', "_"), ""),
            }
        }
    }

    fn assign(&mut self, setting: &Setting, origin: SettingOrigin, texts: Option<&[&str]>) {
        if texts.is_some_and(|texts| setting.assign(&mut self.settings, texts).is_some()) {
            self.origins.insert(setting.name, origin);
            return;
        }
        let (message, help) = invalid_value_message(setting, texts.unwrap_or_default());
        self.report_error(origin, message, help);
    }

    /// Reports the name of a setting that does not exist. `name` has underscores instead of the
    /// dots, if it is from a flag or a variable.
    fn report_unknown(&mut self, origin: SettingOrigin, name: &str, text: &str) {
        let is_from_environment = matches!(origin, SettingOrigin::Environment(_));
        if is_from_environment && is_service_link(name, text) {
            return;
        }
        let explained = explain_unknown(name, &origin);
        let severity = if is_from_environment { Severity::Warning } else { Severity::Error };
        let (message, help) = (explained.message, explained.help);
        self.problems.push(SettingProblem { severity, origin, message, help });
    }

    fn report_error(&mut self, origin: SettingOrigin, message: String, help: Option<String>) {
        self.problems.push(SettingProblem { severity: Severity::Error, origin, message, help });
    }

    fn origin_of(&self, name: &str) -> SettingOrigin {
        self.origins.get(name).cloned().unwrap_or(SettingOrigin::Default)
    }

    fn resolve_conflicts(&mut self) {
        loop {
            let conflicts = find_conflicts(&self.settings).into_iter();
            let conflicts = conflicts.chain(find_unused(&self.settings));
            let conflicts = conflicts.chain(find_peer_conflicts(&self.settings));
            let (dropped, kept): (Vec<_>, Vec<_>) =
                conflicts.partition(|conflict| self.is_dropped(conflict));
            if dropped.is_empty() {
                return kept.into_iter().for_each(|conflict| self.report_conflict(conflict));
            }
            // After values are dropped, other settings may have no effect or no conflict anymore,
            // so the loop searches for conflicts again.
            for conflict in dropped {
                self.drop_ratelimit_value(conflict);
            }
        }
    }

    fn is_dropped(&self, conflict: &SettingConflict) -> bool {
        let is_ratelimit_setting = |setting: &str| is_from_ratelimit(&self.origin_of(setting));
        let is_own_setting =
            |setting: &str| self.origins.contains_key(setting) && !is_ratelimit_setting(setting);
        match conflict.ratelimit_action {
            RatelimitValueAction::Report | RatelimitValueAction::Accept => false,
            RatelimitValueAction::Drop => is_ratelimit_setting(conflict.setting),
            RatelimitValueAction::DropBesideOwn(other) => {
                is_ratelimit_setting(conflict.setting) && is_own_setting(other)
            }
        }
    }

    fn report_conflict(
        &mut self,
        SettingConflict { setting, message, help, ratelimit_action: action }: SettingConflict,
    ) {
        let origin = self.origin_of(setting);
        if !(action == RatelimitValueAction::Accept && is_from_ratelimit(&origin)) {
            self.report_error(origin, message, Some(help.to_owned()));
        }
    }

    /// Resets a setting whose value came from an envoyproxy/ratelimit variable. Adds one warning if
    /// the user had set the variable.
    fn drop_ratelimit_value(
        &mut self,
        SettingConflict { setting, message, help, .. }: SettingConflict,
    ) {
        let Some(origin) = self.origins.remove(setting) else { return };
        self.settings.reset(setting);
        let is_reported = self.problems.iter().any(|problem| problem.origin == origin);
        if matches!(origin, SettingOrigin::Environment(_)) && !is_reported {
            let (severity, help) = (Severity::Warning, Some(help.to_owned()));
            self.problems.push(SettingProblem { severity, origin, message, help });
        }
    }
}

/// Returns `true` if the value comes from an envoyproxy/ratelimit variable, or from the default of
/// one.
fn is_from_ratelimit(origin: &SettingOrigin) -> bool {
    match origin {
        SettingOrigin::RatelimitDefault(_) => true,
        SettingOrigin::Environment(variable) => !variable.starts_with(PREFIX),
        SettingOrigin::Default | SettingOrigin::File(..) | SettingOrigin::Flag(_) => false,
    }
}

/// Splits the text of an environment variable into values. A list is separated by `:`, as in
/// `PATH`.
fn split_variable(shape: Shape, text: &str) -> Vec<&str> {
    match shape {
        Shape::Many => text.split(':').filter(|part| !part.is_empty()).collect(),
        Shape::One | Shape::Switch | Shape::Block => vec![text],
    }
}

fn invalid_value_message(setting: &Setting, texts: &[&str]) -> (String, Option<String>) {
    let Setting { name, accepts, .. } = setting;
    match texts {
        [_, _, ..] => (format!("`{name}` is set {} times", texts.len()), Some("set it once".into())),
        [text] if let Some(why) = (setting.why)(text) => (format!("`{name}` {why}"), None),
        [_] if setting.hidden => (format!("`{name}` takes {accepts}"), None),
        [text] if is_service_address(text) => (
            format!("`{name}` takes {accepts}, got `{}`", (setting.masked)(text)),
            Some("Kubernetes sets this variable for a Service of that name: set `enableServiceLinks: false`".into()),
        ),
        [text] => {
            let help = nearest(text, setting.choices.iter().copied());
            let text = (setting.masked)(text);
            (format!("`{name}` takes {accepts}, got `{text}`"), help.map(|word| format!("did you mean `{word}`?")))
        }
        [] => (format!("`{name}` takes {accepts}"), None),
    }
}

/// Returns `true` if `text` is an address that Kubernetes puts into environment variables for a
/// Service. Kubernetes writes no user or password, so an address with `@` is from a person.
fn is_service_address(text: &str) -> bool {
    let is_of = |scheme: &&str| text.starts_with(*scheme);
    ["tcp://", "udp://", "sctp://"].iter().any(is_of) && !text.contains('@')
}

/// Returns `true` if Kubernetes set this `SLUICEGATE_…` variable for a Service named `sluicegate`.
/// A pod can have a dozen of them, and warnings about all would hide those about real mistakes.
fn is_service_link(name: &str, text: &str) -> bool {
    let parts = ["service_host", "service_port"];
    let suffixes = ["_tcp_port", "_tcp_addr", "_tcp_proto", "_udp_port", "_udp_addr", "_udp_proto"];
    is_service_address(text)
        || parts.iter().any(|part| name.contains(part))
        || suffixes.iter().any(|end| name.ends_with(end))
}
