//! Collects settings from the command line, the environment variables `SLUICEGATE_*` and
//! `server.yaml`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use super::args::ServeArgs;
use crate::config::settings::{PREFIX, SettingsInput};

/// The maximum size of `server.yaml`, in bytes. Bounds the memory use if the path is a device.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Collects the settings from flags, environment variables and `server.yaml`.
///
/// # Errors
/// `server.yaml` cannot be read.
pub fn collect(
    serve: &ServeArgs,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<SettingsInput, String> {
    Ok(SettingsInput {
        flags: serve.flags.given.clone(),
        environment: environment.into_iter().filter_map(own_variable).collect(),
        file: serve.settings.as_deref().map(read_file).transpose()?,
        ratelimit_values: Vec::new(),
    })
}

/// Returns an environment variable if its name starts with `SLUICEGATE_`. Bytes that are not UTF-8
/// become U+FFFD, which only settings with a path accept.
fn own_variable((name, text): (OsString, OsString)) -> Option<(String, String)> {
    let name = name.to_str()?.to_owned();
    name.starts_with(PREFIX).then(|| (name, text.to_string_lossy().into_owned()))
}

/// Returns the name and the text of a file of settings.
///
/// # Errors
/// The file cannot be read, or is too large.
pub(super) fn read_file(path: &Path) -> Result<(String, String), String> {
    let name = path.display().to_string();
    let mut text = String::new();
    let read =
        File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
    match read {
        Err(error) => Err(format!("{name}: cannot read the settings file: {error}")),
        Ok(_) if text.len() as u64 > MAX_FILE_BYTES => {
            Err(format!("{name}: larger than {MAX_FILE_BYTES} bytes; is it the right file?"))
        }
        Ok(_) => Ok((name, text)),
    }
}
