//! Texts to a configuration: reading and resolving, for every command and every source alike.
//!
//! Guarantees: everything that is wrong with any file is said or, of very much, counted, also of the others when one cannot
//! be read; findings come in the order of the files, then by place.
//! Leaves out: where texts come from.

use std::collections::HashMap;

use super::Config;
use super::diagnostic::{Diagnostic, Diagnostics};
use super::{raw, resolve};
use crate::kernel::units::Revision;

/// What `texts`, name and bytes, mean together, and the warnings.
///
/// # Errors
/// Everything that is wrong with any of them. Where one cannot be read, the others are still
/// resolved, so that a person sees all there is to mend at once; what merged ones may only lack because of it is not said.
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
            Err(wrong) => findings.append(wrong),
        }
    }
    let unread = 0 < findings.counts().errors;
    let resolved = if unread {
        resolve::resolve_rest(&files, revision, merge_domains)
    } else {
        resolve::resolve(&files, revision, merge_domains)
    };
    let (config, more) = match resolved {
        Ok((config, warnings)) => (Some(config).filter(|_| !unread), warnings),
        Err(wrong) => (None, wrong),
    };
    findings.append(more);
    findings.sort_by_key(|Diagnostic { place, .. }| {
        (order.get(&*place.file).copied(), place.line, place.column)
    });
    match config {
        Some(config) => Ok((config, findings)),
        None => Err(findings),
    }
}
