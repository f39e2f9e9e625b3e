//! Reads and writes `overloaded_by`, the list of upstream answers that mean overload.
//!
//! Guarantees:
//! - Lists with different answers have different texts.

use std::fmt;

use super::keywords::{GRPC_CODES, STATUS_CLASSES, parse_keyword};
use crate::diagnostic::Spanned;
use crate::kernel::concurrency::{OverloadAnswers, UpstreamAnswer};

/// An item that is no answer, and the fix.
pub(super) struct InvalidAnswer<'r> {
    pub(super) item: &'r Spanned<String>,
    pub(super) fix: String,
}

/// Reads a list, or returns its invalid items.
pub(super) fn parse(items: &[Spanned<String>]) -> Result<OverloadAnswers, Vec<InvalidAnswer<'_>>> {
    let mut answers = OverloadAnswers::NONE;
    let mut invalid = Vec::new();
    for item in items {
        match with_item(answers, &item.value) {
            Some(more) => answers = more,
            None => invalid.push(InvalidAnswer { item, fix: suggest(&item.value) }),
        }
    }
    if invalid.is_empty() { Ok(answers) } else { Err(invalid) }
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
