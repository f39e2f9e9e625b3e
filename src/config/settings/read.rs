//! Reads the [`Settings`] from flags, environment variables and `server.yaml`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::together::{Clash, Theirs, clashes};
use super::value::Shape;
use super::{LATER, PREFIX, Setting, Settings, file, nearest, table};
use crate::config::diagnostic::Severity;

/// The raw input of all settings.
///
/// It is not `Debug`, because a text may contain a token.
#[derive(Clone, Default)]
pub struct Doors {
    /// The flags: names as in [`Setting::flag`], without dashes, and the texts of each.
    pub flags: Vec<(String, Vec<String>)>,
    /// The environment variables. Those without [`PREFIX`] are ignored.
    pub environment: Vec<(String, String)>,
    /// The name and the text of `server.yaml`.
    pub file: Option<(String, String)>,
    /// The values from the process's name, such as `ratelimit`. All other input overrides them.
    pub named: Vec<Named>,
}

impl Doors {
    /// Returns the settings that flags, variables and the file name, even with invalid values.
    #[must_use]
    pub fn named_settings(&self) -> BTreeSet<&'static str> {
        // A file that is not a mapping names no settings. Loading the settings reports it.
        let file = self.file.as_ref().and_then(|(_, text)| file::read(text, is_text).ok());
        let is_named = |row: &Setting| {
            self.flags.iter().any(|(flag, _)| *flag == row.flag)
                || self.environment.iter().any(|(variable, _)| *variable == row.variable)
                || file.iter().flatten().any(|entry| entry.name == row.name)
        };
        table().iter().filter(|row| is_named(row)).map(|row| row.name).collect()
    }
}

fn is_text(name: &str) -> bool {
    table().iter().any(|row| row.name == name && row.is_text())
}

/// A value that comes from the name of the process, such as `ratelimit`.
#[derive(Clone)]
pub struct Named {
    /// The name of the setting.
    pub setting: &'static str,
    /// The texts of the value.
    pub texts: Vec<String>,
    /// The envoyproxy/ratelimit variable that determines the value.
    pub variable: &'static str,
    /// `true` if the variable is set, `false` if the value is its default.
    pub is_set: bool,
}

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The default in the table of settings.
    Default,
    /// `server.yaml`: its path as the user wrote it, line and column from 1.
    File(Arc<str>, u64, u64),
    /// The environment variable of this name.
    Environment(String),
    /// The flag of this name, without its two dashes.
    Flag(String),
    /// The default of this envoyproxy/ratelimit variable, which is not set.
    Reference(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(name, line, column) => write!(f, "{name}:{line}:{column}"),
            Self::Environment(variable) => f.write_str(variable),
            Self::Flag(flag) => write!(f, "--{flag}"),
            Self::Reference(variable) => write!(f, "ratelimit's default of {variable}"),
        }
    }
}

/// An error or a warning about a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The severity: an error prevents the start of the process, a warning does not.
    pub severity: Severity,
    /// The origin of the value.
    pub origin: Origin,
    /// The expected and the actual value.
    pub message: String,
    /// The suggested fix.
    pub help: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, origin, message, help } = self;
        let severity = if *severity == Severity::Error { "error" } else { "warning" };
        write!(f, "{severity}: {origin}: {message}")?;
        help.iter().try_for_each(|help| write!(f, "; {help}"))
    }
}

/// The settings, their origins and the warnings about them.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The values of the settings.
    pub settings: Settings,
    /// The origin of each value, by the setting's name. Defaults are absent.
    pub origins: BTreeMap<&'static str, Origin>,
    /// The warnings about probable mistakes.
    pub warnings: Vec<Problem>,
}

/// Reads all settings, the weakest input first.
///
/// # Errors
///
/// Returns every error and warning of all inputs if at least one is an error.
pub fn read(doors: &Doors) -> Result<Loaded, Vec<Problem>> {
    let mut reader = Reader::default();
    reader.named(&doors.named);
    if let Some((name, text)) = &doors.file {
        reader.file(&Arc::from(name.as_str()), text);
    }
    reader.environment(&doors.environment);
    reader.flags(&doors.flags);
    reader.together();
    let Reader { settings, origins, problems } = reader;
    if problems.iter().any(|problem| problem.severity == Severity::Error) {
        return Err(problems);
    }
    Ok(Loaded { settings, origins, warnings: problems })
}

#[derive(Default)]
struct Reader {
    settings: Settings,
    origins: BTreeMap<&'static str, Origin>,
    problems: Vec<Problem>,
}

impl Reader {
    fn file(&mut self, name: &Arc<str>, text: &str) {
        let at = |(line, column)| Origin::File(Arc::clone(name), line, column);
        let entries = match file::read(text, is_text) {
            Ok(entries) => entries,
            Err(broken) => return self.error(at(broken.at), broken.message, None),
        };
        for entry in entries {
            match table().iter().find(|setting| setting.name == entry.name) {
                Some(setting) => {
                    let texts = entry.node.texts(setting.shape);
                    let texts: Option<Vec<&str>> =
                        texts.as_ref().map(|texts| texts.iter().map(AsRef::as_ref).collect());
                    self.assign(setting, at(entry.value_at), texts.as_deref());
                }
                None => self.unknown(at(entry.name_at), &entry.name, ""),
            }
        }
    }

    fn named(&mut self, values: &[Named]) {
        for Named { setting, texts, variable, is_set } in values {
            let origin = match is_set {
                true => Origin::Environment((*variable).to_owned()),
                false => Origin::Reference(variable),
            };
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            if let Some(setting) = table().iter().find(|row| row.name == *setting) {
                self.assign(setting, origin, Some(&texts));
            }
        }
    }

    fn environment(&mut self, variables: &[(String, String)]) {
        for (variable, text) in variables {
            let Some(word) = variable.strip_prefix(PREFIX) else { continue };
            let origin = Origin::Environment(variable.clone());
            match table().iter().find(|setting| setting.variable == *variable) {
                Some(setting) => self.assign(setting, origin, Some(&split(setting.shape, text))),
                None => self.unknown(origin, &word.to_lowercase(), text),
            }
        }
    }

    fn flags(&mut self, flags: &[(String, Vec<String>)]) {
        for (flag, texts) in flags {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let origin = Origin::Flag(flag.clone());
            match table().iter().find(|setting| setting.flag == *flag) {
                Some(setting) => self.assign(setting, origin, Some(&texts)),
                None => self.unknown(origin, &flag.replace('-', "_"), ""),
            }
        }
    }

    fn assign(&mut self, setting: &Setting, origin: Origin, texts: Option<&[&str]>) {
        if texts.is_some_and(|texts| (setting.set)(&mut self.settings, texts).is_some()) {
            self.origins.insert(setting.name, origin);
            return;
        }
        let (message, help) = refusal(setting, texts.unwrap_or_default());
        self.error(origin, message, help);
    }

    fn unknown(&mut self, origin: Origin, name: &str, text: &str) {
        if LATER.contains(&name) {
            let help = Some("leave it out: nothing would heed it".to_owned());
            return self.error(origin, format!("`{name}` is not in this version yet"), help);
        }
        let in_environment = matches!(origin, Origin::Environment(_));
        if in_environment && is_service_link(name, text) {
            return;
        }
        let severity = if in_environment { Severity::Warning } else { Severity::Error };
        let message = "there is no such setting".to_owned();
        let help = nearest(name, table().iter().map(|setting| setting.name))
            .map(|name| format!("did you mean {}?", spelt_for(&origin, name)));
        self.problems.push(Problem { severity, origin, message, help });
    }

    fn error(&mut self, origin: Origin, message: String, help: Option<String>) {
        self.problems.push(Problem { severity: Severity::Error, origin, message, help });
    }

    fn origin(&self, name: &str) -> Origin {
        self.origins.get(name).cloned().unwrap_or(Origin::Default)
    }

    fn together(&mut self) {
        loop {
            let found = clashes(&self.settings).into_iter();
            let (dropped, left): (Vec<_>, Vec<_>) = found.partition(|clash| self.is_dropped(clash));
            if dropped.is_empty() {
                return left.into_iter().for_each(|clash| self.refuse(clash));
            }
            // Without these values, other settings may lose their effect or their conflict.
            for clash in dropped {
                self.drop_theirs(clash);
            }
        }
    }

    fn is_dropped(&self, clash: &Clash) -> bool {
        let is_theirs = |setting: &str| is_of_the_reference(&self.origin(setting));
        let is_ours = |setting: &str| self.origins.contains_key(setting) && !is_theirs(setting);
        match clash.of_theirs {
            Theirs::Refused | Theirs::Taken => false,
            Theirs::Dropped => is_theirs(clash.setting),
            Theirs::DroppedBeside(other) => is_theirs(clash.setting) && is_ours(other),
        }
    }

    fn refuse(&mut self, Clash { setting, message, help, of_theirs }: Clash) {
        let origin = self.origin(setting);
        if !(of_theirs == Theirs::Taken && is_of_the_reference(&origin)) {
            self.error(origin, message, Some(help.to_owned()));
        }
    }

    /// Drops a value of an envoyproxy/ratelimit variable. Warns once if the user set the variable.
    fn drop_theirs(&mut self, Clash { setting, message, help, .. }: Clash) {
        let Some(origin) = self.origins.remove(setting) else { return };
        if let Some(row) = table().iter().find(|row| row.name == setting) {
            (row.reset)(&mut self.settings);
        }
        let is_told = self.problems.iter().any(|problem| problem.origin == origin);
        if matches!(origin, Origin::Environment(_)) && !is_told {
            let (severity, help) = (Severity::Warning, Some(help.to_owned()));
            self.problems.push(Problem { severity, origin, message, help });
        }
    }
}

/// Returns `true` if an envoyproxy/ratelimit variable determines the value, even by its default.
fn is_of_the_reference(origin: &Origin) -> bool {
    match origin {
        Origin::Reference(_) => true,
        Origin::Environment(variable) => !variable.starts_with(PREFIX),
        Origin::Default | Origin::File(..) | Origin::Flag(_) => false,
    }
}

/// Splits the text of a variable. Lists use `:`, as in `PATH`.
fn split(shape: Shape, text: &str) -> Vec<&str> {
    match shape {
        Shape::Many => text.split(':').filter(|part| !part.is_empty()).collect(),
        Shape::One | Shape::Switch | Shape::Block => vec![text],
    }
}

fn refusal(setting: &Setting, texts: &[&str]) -> (String, Option<String>) {
    let Setting { name, accepts, .. } = setting;
    match texts {
        [_, _, ..] => (format!("`{name}` is given {} times", texts.len()), Some("once is enough".into())),
        [text] if let Some(why) = (setting.why)(text) => (format!("`{name}` {why}"), None),
        [_] if setting.hidden => (format!("`{name}` takes {accepts}"), None),
        [text] if is_address_of_a_service(text) => (
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

/// Returns the setting's name in the notation of `origin`: a flag, a variable or a key.
fn spelt_for(origin: &Origin, name: &str) -> String {
    match origin {
        Origin::Environment(_) => format!("{PREFIX}{}", name.to_uppercase()),
        Origin::Flag(_) => format!("--{}", name.replace('_', "-")),
        Origin::File(..) | Origin::Default | Origin::Reference(_) => format!("`{name}`"),
    }
}

/// Returns `true` for an address that Kubernetes sets for a Service.
/// An address with a user or a password comes from a person.
fn is_address_of_a_service(text: &str) -> bool {
    let is_of = |scheme: &&str| text.starts_with(*scheme);
    ["tcp://", "udp://", "sctp://"].iter().any(is_of) && !text.contains('@')
}

/// Returns `true` if Kubernetes set this variable for a Service with a name such as `sluicegate`.
/// Every pod has a dozen of them, and a warning for each would hide the relevant one.
fn is_service_link(name: &str, text: &str) -> bool {
    let parts = ["service_host", "service_port"];
    let ends = ["_tcp_port", "_tcp_addr", "_tcp_proto", "_udp_port", "_udp_addr", "_udp_proto"];
    is_address_of_a_service(text)
        || parts.iter().any(|part| name.contains(part))
        || ends.iter().any(|end| name.ends_with(end))
}
