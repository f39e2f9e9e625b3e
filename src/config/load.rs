//! Texts to a configuration: reading and resolving, for every command and every source alike.

use super::Config;
use super::diagnostic::{Diagnostic, Severity};
use super::{raw, resolve};
use crate::kernel::units::Revision;

/// What `texts`, name and bytes, mean together, and the warnings.
///
/// # Errors
/// Everything that is wrong with any of them. Where one cannot be read, the others are still
/// resolved, so that a person sees all there is to mend at once.
pub fn load<'t>(
    texts: impl IntoIterator<Item = (&'t str, &'t [u8])>,
    revision: Revision,
    merge_domains: bool,
) -> Result<(Config, Vec<Diagnostic>), Vec<Diagnostic>> {
    let (mut files, mut findings) = (Vec::new(), Vec::new());
    for (name, bytes) in texts {
        match raw::read(name, bytes) {
            Ok((file, source, warnings)) => {
                files.push((file, source));
                findings.extend(warnings);
            }
            Err(wrong) => findings.extend(wrong),
        }
    }
    let resolved = resolve::resolve(&files, revision, merge_domains);
    let unread = findings.iter().any(|finding| finding.code.severity() == Severity::Error);
    match resolved {
        Ok((config, warnings)) => {
            findings.extend(warnings);
            if unread { Err(findings) } else { Ok((config, findings)) }
        }
        Err(wrong) => {
            findings.extend(wrong);
            Err(findings)
        }
    }
}
