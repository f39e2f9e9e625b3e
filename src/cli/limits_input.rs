//! Reads the limits files for the commands that examine or compare limits.
//!
//! Guarantees:
//! - The path `-` is standard input.
//! - In place of a Kubernetes manifest, the limits files in its `ConfigMap` objects are returned.
//! - At least one limits file is returned.
//!
//! Not covered:
//! - Parsing of limits files (see [`crate::config::load`]).

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::config::manifest::{EmbeddedFile, embedded_files};
use crate::config::{self, Config};
use crate::kernel::units::Revision;
use crate::source::TextFile;
use crate::source::file::{MAX_FILE_BYTES, read_tree};

const STDIN_PATH: &str = "-";
const STDIN_NAME: &str = "<stdin>";

/// Reads the limits files below `paths`.
///
/// # Errors
/// A message if a path cannot be read, or if there are no limits files.
pub(super) fn read_limits_files(paths: &[PathBuf]) -> Result<Vec<TextFile>, String> {
    let (stdin, paths): (Vec<_>, Vec<_>) =
        paths.iter().cloned().partition(|path| path == Path::new(STDIN_PATH));
    let mut files = read_tree(&paths).map_err(|error| format!("error: {}", error.with_cause()))?;
    if !stdin.is_empty() {
        files.push(read_stdin()?);
    }
    let files: Vec<_> = files.into_iter().flat_map(unpack_manifest).collect();
    if files.is_empty() {
        return Err("error: there are no limits files in these paths; in a Kubernetes manifest, \
                    they are texts under `data` of a ConfigMap"
            .to_owned());
    }
    Ok(files)
}

/// Loads the limits files below `paths`.
///
/// # Errors
/// A message if a path cannot be read, if there are no limits files, or if they have errors.
pub(super) fn load_limits(paths: &[PathBuf], merge_domains: bool) -> Result<Config, String> {
    let files = read_limits_files(paths)?;
    let named_files = files.iter().map(|file| (&*file.name, &*file.bytes));
    let loaded = config::load(named_files, Revision::default(), merge_domains);
    loaded.map(|(config, _warnings)| config).map_err(|findings| findings.to_string())
}

fn read_stdin() -> Result<TextFile, String> {
    let mut bytes = Vec::new();
    let read = io::stdin().lock().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    match read {
        Err(error) => Err(format!("error: {STDIN_NAME}: cannot be read: {error}")),
        Ok(_) if MAX_FILE_BYTES < bytes.len() as u64 => {
            Err(format!("error: {STDIN_NAME}: larger than the maximum of {MAX_FILE_BYTES} bytes"))
        }
        Ok(_) => Ok(TextFile { name: STDIN_NAME.into(), bytes }),
    }
}

fn unpack_manifest(file: TextFile) -> Vec<TextFile> {
    let Some(embedded) = embedded_files(&file.name, &file.bytes) else { return vec![file] };
    let to_file =
        |EmbeddedFile { name, text }| TextFile { name: name.into(), bytes: text.into_bytes() };
    embedded.into_iter().map(to_file).collect()
}
