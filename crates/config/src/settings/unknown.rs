//! Explains names in flags, variables and `server.yaml` that are not settings.
//!
//! Guarantees:
//! - Messages suggest the setting whose name is similar, if there is one.

use super::table::{find_setting, is_block};
use super::{SettingOrigin, nearest, setting_blocks, table};

/// The explanation of a name that is not a setting.
pub(super) struct UnknownName {
    pub(super) message: String,
    /// The suggested fix, if there is one.
    pub(super) help: Option<String>,
}

/// Explains the name of a setting that does not exist. A name from a flag or a variable has
/// underscores instead of dots and dashes.
pub(super) fn explain_unknown(name: &str, origin: &SettingOrigin) -> UnknownName {
    let (message, help) = match origin {
        SettingOrigin::File(..) => unknown_key_message(name),
        _ => ("unknown setting".to_owned(), nearest_setting(name, origin)),
    };
    UnknownName { message, help }
}

/// Returns a setting as nested YAML: `store: {url: …}` for `store.url`.
fn nested(name: &str) -> String {
    let mut keys = name.rsplit('.');
    let last = format!("{}: …", keys.next().unwrap_or(name));
    keys.fold(last, |inner, block| format!("{block}: {{{inner}}}"))
}

/// Returns the error message for a key of `server.yaml` that is not the name of a setting.
fn unknown_key_message(name: &str) -> (String, Option<String>) {
    if is_block(name) {
        let prefix = format!("{name}.");
        let first = table().iter().find(|row| row.name.starts_with(&prefix));
        let help = first.map(|row| format!("write for example `{}`", nested(row.name)));
        return (format!("`{name}` is a block, and needs settings inside it"), help);
    }
    if find_setting(name).is_some() {
        let help = format!("write `{}`", nested(name));
        return (format!("`{name}` must be nested, not written with dots"), Some(help));
    }
    let names = table().iter().map(|row| row.name);
    let names = names.chain(setting_blocks().iter().map(|block| block.name));
    let known = names.map(|name| (name.to_owned(), name)).chain(short_names());
    let help = nearest_of(name, known.collect()).map(|name| format!("did you mean `{name}`?"));
    (format!("unknown setting `{name}`"), help)
}

/// Suggests the setting whose flag or variable resembles `name`, which has underscores.
fn nearest_setting(name: &str, origin: &SettingOrigin) -> Option<String> {
    let flat_names = table().iter().map(|row| (row.name.replace('.', "_"), row.name));
    let found = nearest_of(name, flat_names.chain(short_names()).collect())?;
    let row = find_setting(found)?;
    Some(format!("did you mean {}?", row.spelled_for(origin)))
}

/// Returns each setting with its name without the first block, such as `grpc_port`. Omits names that
/// two settings have.
fn short_names() -> impl Iterator<Item = (String, &'static str)> {
    let all = || {
        let ends = table().iter().filter_map(|row| Some((row.name.split_once('.')?.1, row.name)));
        ends.map(|(end, name)| (end.replace('.', "_"), name))
    };
    all().filter(move |(end, _)| all().filter(|(other, _)| other == end).count() == 1)
}

/// Returns the setting or block whose known name resembles `name`.
fn nearest_of(name: &str, known: Vec<(String, &'static str)>) -> Option<&'static str> {
    let found = nearest(name, known.iter().map(|(known, _)| known.as_str()))?.to_owned();
    known.into_iter().find(|(known, _)| *known == found).map(|(_, name)| name)
}
