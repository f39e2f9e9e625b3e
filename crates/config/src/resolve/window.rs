//! The period of a rate limit or budget: the fields `unit`, `per` and `calendar`.
//!
//! Guarantees:
//! - A valid block has either `unit` or `per`.
//! - `calendar` is valid only with `unit`.

use std::sync::Arc;

use super::findings::{FileFindings, FileSpan};
use super::{calendar_block, duration, keywords};
use crate::diagnostic::{Code, Span, Spanned};
use crate::kernel::units::Nanos;
use crate::{LimitWindow, Unit, raw};

/// The fields of a block that has a period.
#[derive(Clone, Copy)]
pub(super) struct WindowFields<'r> {
    /// The name of the block.
    pub(super) block: &'static str,
    /// The fix for a block without a period.
    pub(super) missing_fix: &'static str,
    /// The shortest `per`, with its text.
    pub(super) shortest: (Nanos, &'static str),
    pub(super) span: Span,
    pub(super) is_incomplete: bool,
    pub(super) unit: &'r Spanned<String>,
    pub(super) per: Option<&'r Spanned<String>>,
    pub(super) calendar: Option<&'r raw::Calendar>,
}

pub(super) struct WindowReader<'r, 'f, 'a> {
    pub(super) file: usize,
    pub(super) fields: WindowFields<'r>,
    pub(super) findings: &'f mut FileFindings<'a>,
}

impl WindowReader<'_, '_, '_> {
    /// Returns the period without its calendar.
    pub(super) fn window(&mut self) -> Option<LimitWindow> {
        let WindowFields { unit, per, .. } = self.fields;
        match per {
            Some(per) if !unit.value.is_empty() => {
                let (field, other) =
                    (format_args!("per: {}", per.value), format_args!("unit: {}", unit.value));
                self.findings.contradict(self.at(per.span), field, other, "remove one of the two");
                None
            }
            Some(per) => self.per(per),
            None => self.unit().map(LimitWindow::Unit),
        }
    }

    fn unit(&mut self) -> Option<Unit> {
        let WindowFields { block, missing_fix, span, is_incomplete, unit, .. } = self.fields;
        let parsed_unit = keywords::parse_unit(&unit.value);
        if unit.value.is_empty() && is_incomplete {
            return None;
        }
        if parsed_unit.is_none() && unit.value.is_empty() {
            let span = if unit.span.end == 0 { span } else { unit.span };
            let message = format!("`{block}` needs a `unit`");
            self.findings.add(Code::UnknownUnit, self.at(span), message, missing_fix);
        } else if parsed_unit.is_none() {
            let message = format!("invalid unit `{}`", unit.value);
            let fix = keywords::suggest(keywords::UNITS, &unit.value);
            self.findings.add(Code::UnknownUnit, self.at(unit.span), message, fix);
        }
        parsed_unit
    }

    fn per(&mut self, per: &Spanned<String>) -> Option<LimitWindow> {
        let example = "use whole numbers and `ms`, `s`, `m`, `h` or `d`, such as `90s` or `1h30m`";
        let (shortest, text) = self.fields.shortest;
        let (message, fix) = match duration::parse(&per.value) {
            Ok(period) if period < shortest => {
                let message = format!("`per: {}` is shorter than {text}", per.value);
                (message, format!("use at least `{text}`"))
            }
            Ok(period) => return Some(LimitWindow::Per(period)),
            Err(wrong) => {
                let (message, fix) = wrong.message_and_fix("per", &per.value, example);
                (message, fix.to_owned())
            }
        };
        self.findings.add(Code::BadDuration, self.at(per.span), message, fix);
        None
    }

    /// Returns the period with its calendar, if the block has one.
    pub(super) fn calendar(&mut self, window: Option<LimitWindow>) -> Option<LimitWindow> {
        let Some(raw) = self.fields.calendar else { return window };
        if let Some(LimitWindow::Per(_)) = window {
            let fix = "use `unit: day`, `week`, `month` or `year` instead of `per`";
            self.findings.contradict(self.at(raw.span), "calendar", "per", fix);
        }
        let unit = if let Some(LimitWindow::Unit(unit)) = window { Some(unit) } else { None };
        let calendar = calendar_block::read(raw, unit, self.file, self.findings)?;
        Some(LimitWindow::Calendar(unit?, Arc::new(calendar)))
    }

    const fn at(&self, span: Span) -> FileSpan {
        FileSpan { file: self.file, span }
    }
}
