//! A list of diagnostics, and counts of the omitted ones.
//!
//! Guarantees:
//! - Findings that are not shown are counted by severity.
//! - They are never more severe than the shown findings of the same file.
//!
//! Not covered:
//! - Detection (see [`super::Findings`]).

use std::fmt;
use std::ops::Deref;

use serde::Serialize;

use super::{Diagnostic, Severity};

/// The number of findings by severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SeverityCounts {
    /// The number of errors.
    pub errors: usize,
    /// The number of warnings.
    pub warnings: usize,
    /// The number of notes.
    pub notes: usize,
}

impl SeverityCounts {
    pub(super) fn add(&mut self, severity: Severity) {
        let count = match severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
            Severity::Note => &mut self.notes,
        };
        *count = count.saturating_add(1);
    }

    /// Returns the sum of both counts.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            errors: self.errors.saturating_add(other.errors),
            warnings: self.warnings.saturating_add(other.warnings),
            notes: self.notes.saturating_add(other.notes),
        }
    }

    /// Returns the total over all severities.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.errors.saturating_add(self.warnings).saturating_add(self.notes)
    }

    /// Returns `true` if all counts are zero.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        self.total() == 0
    }
}

/// The form for omitted findings: `100 not_shown errors, 1 not_shown warning`. Zero counts are omitted.
impl fmt::Display for SeverityCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [(self.errors, "error"), (self.warnings, "warning"), (self.notes, "note")];
        for (at, (count, thing)) in all.into_iter().filter(|(count, _)| *count > 0).enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            let plural = if count == 1 { "" } else { "s" };
            write!(f, "{comma}{count} more {thing}{plural}")?;
        }
        Ok(())
    }
}

impl<'d> FromIterator<&'d Diagnostic> for SeverityCounts {
    fn from_iter<I: IntoIterator<Item = &'d Diagnostic>>(all: I) -> Self {
        let mut counts = Self::default();
        all.into_iter().for_each(|one| counts.add(one.severity()));
        counts
    }
}

/// A slice of the shown findings, and the count of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    shown: Vec<Diagnostic>,
    not_shown: SeverityCounts,
}

impl Diagnostics {
    pub(super) const fn new(shown: Vec<Diagnostic>, more: SeverityCounts) -> Self {
        Self { shown, not_shown: more }
    }

    /// Returns the count of findings that are not shown.
    ///
    /// In a file with over a thousand findings of one severity, a
    /// finding that several aliases reach may be counted several times.
    #[must_use]
    pub const fn not_shown(&self) -> SeverityCounts {
        self.not_shown
    }

    /// Returns the count of all findings, shown or not.
    #[must_use]
    pub fn counts(&self) -> SeverityCounts {
        self.shown.iter().collect::<SeverityCounts>().plus(self.not_shown)
    }

    /// Returns the `max` severe findings in their present order, and the count of the others.
    #[must_use]
    pub fn most_severe(&self, max: usize) -> (Vec<&Diagnostic>, SeverityCounts) {
        let mut ranked: Vec<(usize, &Diagnostic)> = self.shown.iter().enumerate().collect();
        ranked.sort_by_key(|(_, one)| std::cmp::Reverse(one.severity()));
        let left_out = ranked.iter().skip(max).map(|(_, one)| *one).collect::<SeverityCounts>();
        ranked.truncate(max);
        ranked.sort_unstable_by_key(|(at, _)| *at);
        (ranked.into_iter().map(|(_, one)| one).collect(), left_out.plus(self.not_shown))
    }

    /// Removes the notes, shown or not.
    #[must_use]
    pub fn without_notes(mut self) -> Self {
        self.shown.retain(|one| one.severity() != Severity::Note);
        self.not_shown.notes = 0;
        self
    }

    /// Appends the findings and counts of `others`.
    pub fn append(&mut self, others: Self) {
        self.shown.extend(others.shown);
        self.not_shown = self.not_shown.plus(others.not_shown);
    }

    pub(in crate::config) fn sort_by_key<K: Ord>(&mut self, key: impl FnMut(&Diagnostic) -> K) {
        self.shown.sort_by_key(key);
    }
}

impl Deref for Diagnostics {
    type Target = [Diagnostic];

    fn deref(&self) -> &[Diagnostic] {
        &self.shown
    }
}

impl IntoIterator for Diagnostics {
    type Item = Diagnostic;
    type IntoIter = std::vec::IntoIter<Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.shown.into_iter()
    }
}

impl<'d> IntoIterator for &'d Diagnostics {
    type Item = &'d Diagnostic;
    type IntoIter = std::slice::Iter<'d, Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.shown.iter()
    }
}

/// All shown findings in the format of `check`, then a line with the count of the others.
impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, one) in self.shown.iter().enumerate() {
            let line_end = if at == 0 { "" } else { "\n" };
            write!(f, "{line_end}{one}")?;
        }
        if self.not_shown.is_zero() {
            Ok(())
        } else {
            write!(f, "\nand {}, not shown", self.not_shown)
        }
    }
}
