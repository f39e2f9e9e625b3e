//! The field `status`: the HTTP status of a denied request.

use super::findings::{FileFindings, FileSpan};
use crate::diagnostic::{Code, Spanned};

/// Returns the status, or `None` after a finding.
pub(super) fn read_status(
    status: &Spanned<u32>,
    file: usize,
    findings: &mut FileFindings<'_>,
) -> Option<u16> {
    let valid = u16::try_from(status.value).ok().filter(|it| (400..600).contains(it));
    if valid.is_none() {
        let message = format!("`status: {}` is not an error status", status.value);
        let at = FileSpan { file, span: status.span };
        findings.add(Code::OutOfRange, at, message, "use 400 to 599, such as 503 or 429");
    }
    valid
}
