//! Converts parsed limits files to a [`Config`], or reports all their problems.
//!
//! Guarantees:
//! - Applies all rules of envoyproxy/ratelimit for valid files, within and across files.
//! - Reports all problems of all files; never returns a partial configuration.
//! - The cost is linear in the size of the files. No recursion, so deeply nested files are safe.
//!
//! Not covered:
//! - The syntax and the keys of a file (see [`super::raw`]).

mod adaptive_block;
mod amount_fix;
mod budget_block;
mod calendar_block;
mod colocation;
mod concurrency_block;
mod descriptor;
mod domain;
mod domain_budgets;
mod domain_defaults;
mod domain_files;
pub mod duration;
pub(crate) mod findings;
mod from_table;
mod keyword_reader;
pub(crate) mod keywords;
mod network_field;
pub(crate) mod overload_answers;
pub(crate) mod overshoot;
mod pace_block;
mod rate_limit_block;
mod rate_limit_list;
mod requester_blocks;
mod status;
mod time_zone_name;
mod usage_block;
mod window;

use super::diagnostic::{Diagnostics, SourceText};
use super::raw::File;
use super::{Config, RuleNumber};
use crate::kernel::units::Revision;
use crate::table_limits::TableLimits;
use crate::tree::ColumnCounts;
use domain::DomainReader;
use domain_files::{DomainFiles, group_by_domain};
use findings::FileFindings;
use std::sync::Arc;

/// Converts `files` to a configuration and its warnings.
///
/// With `merge_domains`, several files may contain one domain. Their first levels of rules are
/// combined, with patterns in the order of `files`. Each of `charge`, `colocate` and `defaults` may
/// be in any of the files; if several have it, the values must be equal.
///
/// # Errors
///
/// Returns all findings of all files, errors and warnings, by file and position.
pub fn resolve(
    files: &[(File, SourceText)],
    revision: Revision,
    merge_domains: bool,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let mut findings = FileFindings::new(files.iter().map(|(_, source)| source));
    let groups = group_by_domain(files, merge_domains, &mut findings);
    read_domains(files, revision, &groups, findings)
}

/// Validates what could be read, if some files or fields could not. Skips validations that need a
/// whole domain for each domain that may lack a part. With `merge_domains`, every domain may lack
/// one, because an unreadable file may contain any domain.
pub(super) fn resolve_readable(
    files: &[(File, SourceText)],
    revision: Revision,
    merge_domains: bool,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let mut findings = FileFindings::new(files.iter().map(|(_, source)| source));
    let mut groups = group_by_domain(files, merge_domains, &mut findings);
    for group in &mut groups {
        let has_all_fields = group.files.iter().all(|&file| !files[file].0.is_incomplete);
        group.is_complete = !merge_domains && has_all_fields;
    }
    read_domains(files, revision, &groups, findings)
}

fn read_domains<'a>(
    files: &'a [(File, SourceText)],
    revision: Revision,
    groups: &[DomainFiles<'a>],
    mut findings: FileFindings<'a>,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let domains = groups.iter().map(|group| DomainReader::new(files, group, &mut findings).read());
    let (mut next, mut columns) = (RuleNumber::default(), ColumnCounts::default());
    let numbered = domains.map(|mut domain| {
        domain.tree.number_rules(&mut next);
        domain.tree.number_columns(&mut columns);
        (domain.name.clone(), domain)
    });
    let domains = Arc::new(numbered.collect());
    let warnings = findings.finish()?;
    Ok((Config { revision, domains, tables: TableLimits::default() }, warnings))
}
