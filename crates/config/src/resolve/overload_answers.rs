//! Reads and writes `overloaded_by`, the list of upstream answers that mean overload.
//!
//! Guarantees:
//! - Lists with different answers have different texts.

use std::fmt;

use super::findings::{FileFindings, FileSpan};
use super::keywords::{GRPC_CODES, STATUS_CLASSES, parse_keyword};
use crate::diagnostic::{Code, Spanned};
use crate::kernel::concurrency::{OverloadAnswers, UpstreamAnswer};
use crate::raw::TextList;

/// Reads a list, or the default without one. Returns `None` if an item is no answer.
pub(super) fn read(
    list: Option<&Spanned<TextList>>,
    file: usize,
    findings: &mut FileFindings<'_>,
) -> Option<OverloadAnswers> {
    let Some(list) = list else { return Some(OverloadAnswers::DEFAULT) };
    let mut answers = Some(OverloadAnswers::NONE);
    for item in &list.value.0 {
        let more = with_item(answers.unwrap_or_default(), &item.value);
        if more.is_none() {
            let message = format!("`overloaded_by: {}` is not an answer", item.value);
            let at = FileSpan { file, span: item.span };
            findings.add(Code::UnknownValue, at, message, suggest(&item.value));
        }
        answers = answers.and(more);
    }
    answers
}

fn with_item(answers: OverloadAnswers, item: &str) -> Option<OverloadAnswers> {
    if let Some((first, last)) = parse_keyword(STATUS_CLASSES, item) {
        return Some(answers.with_http(first..=last));
    }
    if let Some(code) = parse_keyword(GRPC_CODES, item) {
        return Some(answers.with_grpc(code));
    }
    let status = item.parse::<u16>().ok().filter(|status| (400..600).contains(status))?;
    Some(answers.with_http(status..=status))
}

fn suggest(item: &str) -> String {
    let upper = item.trim().to_uppercase().replace([' ', '-'], "_");
    match GRPC_CODES.iter().find(|(name, _)| *name == upper) {
        Some((name, _)) => format!("did you mean `{name}`?"),
        None => "use an HTTP status from 400 to 599, `4xx`, `5xx`, or a gRPC code such as \
                 `UNAVAILABLE`"
            .to_owned(),
    }
}

/// Writes a list as `429, 5xx, UNAVAILABLE`.
pub(crate) struct AnswerListText<'l>(pub(crate) &'l OverloadAnswers);

impl fmt::Display for AnswerListText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut write = |text: &dyn fmt::Display| {
            write!(f, "{separator}{text}")?;
            separator = ", ";
            Ok(())
        };
        let has_status = |status| self.0.contains(&UpstreamAnswer::with_http_status(status));
        for &(class, (first, last)) in STATUS_CLASSES {
            if (first..=last).all(has_status) {
                write(&class)?;
            } else {
                (first..=last)
                    .filter(|status| has_status(*status))
                    .try_for_each(|it| write(&it))?;
            }
        }
        let has_code = |code| {
            self.0.contains(&UpstreamAnswer { grpc: Some(code), ..UpstreamAnswer::default() })
        };
        GRPC_CODES.iter().filter(|(_, code)| has_code(*code)).try_for_each(|(name, _)| write(name))
    }
}
