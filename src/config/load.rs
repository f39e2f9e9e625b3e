//! Loads limits files into a configuration, for all commands and sources.
//!
//! Guarantees:
//! - Every problem of every file is reported or counted, even if another file has syntax errors.
//! - Findings are sorted by file, then by position.

use std::collections::HashMap;

use super::Config;
use super::diagnostic::{Diagnostic, Diagnostics};
use super::{raw, resolve};
use crate::kernel::units::Revision;

/// Parses `texts` (name and content of each file) to a configuration and its warnings.
///
/// # Errors
/// Returns the findings of all files, even if some file cannot be parsed.
pub fn load<'t>(
    texts: impl IntoIterator<Item = (&'t str, &'t [u8])>,
    revision: Revision,
    merge_domains: bool,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let (mut parsed, mut findings, mut file_order) =
        (Vec::new(), Diagnostics::default(), HashMap::new());
    for (name, bytes) in texts {
        file_order.insert(name, file_order.len());
        match raw::read(name, bytes) {
            Ok((file, source, warnings)) => {
                parsed.push((file, source));
                findings.append(warnings);
            }
            Err(errors) => findings.append(errors),
        }
    }
    let has_unreadable = 0 < findings.counts().errors;
    let resolved = if has_unreadable {
        resolve::resolve_readable(&parsed, revision, merge_domains)
    } else {
        resolve::resolve(&parsed, revision, merge_domains)
    };
    let (config, resolve_findings) = match resolved {
        Ok((config, warnings)) => (Some(config).filter(|_| !has_unreadable), warnings),
        Err(errors) => (None, errors),
    };
    findings.append(resolve_findings);
    findings.sort_by_key(|Diagnostic { location, .. }| {
        (file_order.get(&*location.file).copied(), location.line, location.column)
    });
    match config {
        Some(config) => Ok((config, findings)),
        None => Err(findings),
    }
}
