//! Describes why the configured paths contain no limits.

use std::path::{Path, PathBuf};

use super::FileFilter;

/// Describes where limits were looked for, and whether the paths exist.
pub(super) fn describe_paths(paths: &[PathBuf], filter: &FileFilter) -> String {
    let files = if filter.prefix.is_empty() {
        "files".to_owned()
    } else {
        format!("files whose names begin with `{}.`", filter.prefix)
    };
    let paths: Vec<_> = paths.iter().map(|path| describe_path(path)).collect();
    format!("looked for {files} in {}", paths.join(", "))
}

fn describe_path(path: &Path) -> String {
    let shown = path.display();
    match path.try_exists() {
        Ok(false) => format!("{shown}, which does not exist"),
        Ok(true) | Err(_) => shown.to_string(),
    }
}
