//! Files to a configuration, in one call.
//!
//! Guarantees: everything that is wrong with any file is said, also of the others when one cannot
//! be read; findings come by file, then by place.
//! Leaves out: opening files.

use super::Config;
use super::diagnostic::Diagnostic;
use super::raw;
use super::resolve::resolve;
use crate::kernel::units::Revision;

/// The configuration that these files make (a name for people, and the bytes), and its warnings.
///
/// # Errors
/// Every error, with the warnings, in the order of the files.
pub fn load<'n>(
    files: impl IntoIterator<Item = (&'n str, &'n [u8])>,
    revision: Revision,
    merge_domains: bool,
) -> Result<(Config, Vec<Diagnostic>), Vec<Diagnostic>> {
    let (mut sound, mut order, mut said, mut refused) = (Vec::new(), Vec::new(), Vec::new(), false);
    for (name, bytes) in files {
        order.push(name);
        match raw::read(name, bytes) {
            Ok((file, source, warnings)) => {
                sound.push((file, source));
                said.extend(warnings);
            }
            Err(reasons) => {
                refused = true;
                said.extend(reasons);
            }
        }
    }
    let (config, more) = match resolve(&sound, revision, merge_domains) {
        Ok((config, warnings)) => (Some(config), warnings),
        Err(reasons) => (None, reasons),
    };
    said.extend(more);
    sort(&mut said, &order);
    config.filter(|_| !refused).map(|config| (config, said.clone())).ok_or(said)
}

fn sort(said: &mut [Diagnostic], order: &[&str]) {
    let rank: std::collections::HashMap<&str, usize> =
        order.iter().enumerate().map(|(rank, name)| (*name, rank)).collect();
    said.sort_by_key(|one| (rank.get(&*one.place.file).copied(), one.place.line, one.place.column));
}
