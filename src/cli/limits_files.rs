//! Files of limits, from paths on a command line.
//!
//! Guarantees: a directory is read with everything below it, whatever the files' endings, as the
//! service reads it; dot files and dot directories are left out, so that a mounted `ConfigMap` is
//! read once; files come by name.
//! Leaves out: watching, which is for [`crate::source`].

use std::path::{Path, PathBuf};

/// The files, by the name a person knows them by, and their bytes; or a sentence why not.
pub(super) fn read(paths: &[PathBuf]) -> Result<Vec<(String, Vec<u8>)>, String> {
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() { below(path, &mut found)? } else { found.push(path.clone()) }
    }
    found.sort();
    found.dedup();
    found.iter().map(|path| Ok((path.display().to_string(), one(path)?))).collect()
}

fn one(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn below(directory: &Path, found: &mut Vec<PathBuf>) -> Result<(), String> {
    let sentence = |error| format!("{}: {error}", directory.display());
    for entry in std::fs::read_dir(directory).map_err(sentence)? {
        let entry = entry.map_err(sentence)?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let (path, kind) = (entry.path(), entry.file_type().map_err(sentence)?);
        if kind.is_dir() {
            below(&path, found)?;
        } else if kind.is_file() || path.is_file() {
            // A link to a file counts; one to a directory does not, or trees could be endless.
            found.push(path);
        }
    }
    Ok(())
}
