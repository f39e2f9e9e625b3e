//! Parses limits files and resolves them to a configuration, for all commands and sources.
//!
//! Guarantees:
//! - Every problem of every file is reported or counted, even if another file has syntax errors.
//! - Findings are sorted by file, then by position.
//!
//! Not covered:
//! - Reading the files from disk or xDS (see `source`).

use std::collections::HashMap;

use super::Config;
use super::diagnostic::{Diagnostic, Diagnostics, MAX_SHOWN_PER_FILE};
use super::{raw, resolve};
use crate::kernel::units::Revision;

/// Loads limits files, given as pairs of name and content, and returns the configuration and its
/// warnings.
///
/// # Errors
///
/// Returns all findings of all files. If a file or a field cannot be read, everything else is still
/// resolved, so that a user sees all problems at once. Findings that could be a consequence of the
/// unreadable part are not reported. With `merge_domains`, an unreadable file may contain parts of
/// any domain.
pub fn load<'t>(
    texts: impl IntoIterator<Item = (&'t str, &'t [u8])>,
    revision: Revision,
    merge_domains: bool,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let (mut files, mut findings, mut order) = (Vec::new(), Diagnostics::default(), HashMap::new());
    for (name, bytes) in texts {
        order.insert(name, order.len());
        match raw::read(name, bytes) {
            Ok((file, source, warnings)) => {
                files.push((file, source));
                findings.append(warnings);
            }
            Err(invalid) => {
                files.extend(invalid.readable);
                findings.append(invalid.diagnostics);
            }
        }
    }
    let has_unreadable = 0 < findings.counts().errors;
    let resolved = if has_unreadable {
        resolve::resolve_readable(&files, revision, merge_domains)
    } else {
        resolve::resolve(&files, revision, merge_domains)
    };
    let (config, more) = match resolved {
        Ok((config, warnings)) => (Some(config).filter(|_| !has_unreadable), warnings),
        Err(wrong) => (None, wrong),
    };
    findings.append(more);
    findings.cap_per_file(MAX_SHOWN_PER_FILE);
    findings.sort_by_key(|Diagnostic { location: place, .. }| {
        (order.get(&*place.file).copied(), place.line, place.column)
    });
    match config {
        Some(config) => Ok((config, findings)),
        None => Err(findings),
    }
}
