//! Groups the limits files by domain.
//!
//! Guarantees:
//! - Every file is in one group, also a file without a domain.

use std::collections::HashMap;

use super::findings::{FileFindings, FileSpan};
use crate::diagnostic::{Code, SourceText};
use crate::raw::File;

/// The files that contain one domain, as indexes into the list of files.
pub(super) struct DomainFiles<'r> {
    pub(super) domain: &'r str,
    pub(super) files: Vec<usize>,
    /// `true` if all files of the domain are known, `false` if an unreadable file may belong to it.
    pub(super) is_complete: bool,
}

/// Groups files by domain. Without `merge`, a second file of a domain is an error. It forms its own
/// group, so that the rest of it is validated too.
pub(super) fn group_by_domain<'r>(
    files: &'r [(File, SourceText)],
    merge: bool,
    findings: &mut FileFindings<'_>,
) -> Vec<DomainFiles<'r>> {
    let mut groups: Vec<DomainFiles<'r>> = Vec::new();
    let mut group_by_name: HashMap<&str, usize> = HashMap::new();
    for (number, (file, _)) in files.iter().enumerate() {
        let domain = file.domain.value.as_str();
        let at = FileSpan { file: number, span: file.domain.span };
        if domain.is_empty() && !file.is_incomplete {
            let message = "the file has no domain".to_owned();
            let fix = "add `domain: NAME` at the top, with the domain of Envoy's rate limit filter";
            findings.add(Code::EmptyDomain, at, message, fix.to_owned());
        } else if domain.is_empty() {
            // The file has an unreadable field, which may be the domain.
        } else if let Some(&group) = group_by_name.get(domain) {
            if merge {
                groups[group].files.push(number);
                continue;
            }
            report_duplicate_domain(domain, at, groups[group].files[0], files, findings);
        } else {
            group_by_name.insert(domain, groups.len());
        }
        groups.push(DomainFiles { domain, files: vec![number], is_complete: true });
    }
    groups
}

fn report_duplicate_domain(
    domain: &str,
    at: FileSpan,
    first: usize,
    files: &[(File, SourceText)],
    findings: &mut FileFindings<'_>,
) {
    let first = FileSpan { file: first, span: files[first].0.domain.span };
    let message = format!("duplicate domain `{domain}`, first in {}", findings.place(first));
    let fix = "merge the two files, or set `limits.merge_domains: true`".to_owned();
    findings.add(Code::DuplicateDomain, at, message, fix);
}
