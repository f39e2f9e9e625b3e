//! The findings that are shown to the user, and the number of omitted ones.
//!
//! Guarantees:
//! - Omitted findings are counted by severity.
//! - An omitted finding is never more severe than a shown finding of the same file.
//!
//! Not covered:
//! - Detection of findings (see [`super::Findings`]).

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

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

    /// Adds the counts of `other`, by severity.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            errors: self.errors.saturating_add(other.errors),
            warnings: self.warnings.saturating_add(other.warnings),
            notes: self.notes.saturating_add(other.notes),
        }
    }

    /// Returns the number of findings of all severities.
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

/// Formats the numbers of omitted findings: `100 more errors, 1 more warning`. A severity with the
/// number 0 is left out.
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

/// The shown findings (by `Deref`, a slice), and the number of omitted ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    shown: Vec<Diagnostic>,
    not_shown: SeverityCounts,
}

impl Diagnostics {
    pub(super) const fn new(shown: Vec<Diagnostic>, more: SeverityCounts) -> Self {
        Self { shown, not_shown: more }
    }

    /// Returns the numbers of the omitted findings.
    ///
    /// In a file with over a thousand findings of one severity, a finding in a node with several
    /// YAML aliases may be counted once for each alias.
    #[must_use]
    pub const fn not_shown(&self) -> SeverityCounts {
        self.not_shown
    }

    /// Keeps the `max` most severe findings of each file, and counts the others.
    pub(crate) fn cap_per_file(&mut self, max: usize) {
        let mut shown_of_file: HashMap<Arc<str>, usize> = HashMap::new();
        let mut is_kept = vec![false; self.shown.len()];
        for severity in [Severity::Error, Severity::Warning, Severity::Note] {
            for (one, is_kept) in self.shown.iter().zip(&mut is_kept) {
                let shown = shown_of_file.entry(Arc::clone(&one.location.file)).or_default();
                match one.severity() == severity {
                    true if *shown < max => (*shown, *is_kept) = (shown.saturating_add(1), true),
                    true => self.not_shown.add(severity),
                    false => {}
                }
            }
        }
        let mut is_kept = is_kept.into_iter();
        self.shown.retain(|_| is_kept.next().unwrap_or(true));
    }

    /// Returns the numbers of all findings, shown or omitted.
    #[must_use]
    pub fn counts(&self) -> SeverityCounts {
        self.shown.iter().collect::<SeverityCounts>().plus(self.not_shown)
    }

    /// Returns the `max` most severe of the shown findings in their present order, and the numbers
    /// of all others.
    #[must_use]
    pub fn most_severe(&self, max: usize) -> (Vec<&Diagnostic>, SeverityCounts) {
        let mut ranked: Vec<(usize, &Diagnostic)> = self.shown.iter().enumerate().collect();
        ranked.sort_by_key(|(_, one)| std::cmp::Reverse(one.severity()));
        let omitted = ranked.iter().skip(max).map(|(_, one)| *one).collect::<SeverityCounts>();
        ranked.truncate(max);
        ranked.sort_unstable_by_key(|(at, _)| *at);
        (ranked.into_iter().map(|(_, one)| one).collect(), omitted.plus(self.not_shown))
    }

    /// Removes the findings of severity note, shown or omitted.
    #[must_use]
    pub fn without_notes(mut self) -> Self {
        self.shown.retain(|one| one.severity() != Severity::Note);
        self.not_shown.notes = 0;
        self
    }

    /// Appends the shown findings of `others`, and adds its numbers of omitted ones.
    pub fn append(&mut self, others: Self) {
        self.shown.extend(others.shown);
        self.not_shown = self.not_shown.plus(others.not_shown);
    }

    pub(crate) fn sort_by_key<K: Ord>(&mut self, key: impl FnMut(&Diagnostic) -> K) {
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

/// Formats all shown findings as the command `validate` does, then a line with the numbers of the
/// omitted ones.
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
