//! Everything that was found in some texts: what is shown of it, and how much is not.
//!
//! Guarantees: what is not shown is counted by severity, and is never worse than what is shown of the same file.
//! Leaves out: what is found, which is for [`super::Findings`].

use std::fmt;
use std::ops::Deref;

use serde::Serialize;

use super::{Diagnostic, Severity};

/// Findings by severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// How many errors.
    pub errors: usize,
    /// How many warnings.
    pub warnings: usize,
    /// How many notes.
    pub notes: usize,
}

impl Counts {
    /// One more. Numbers that no memory holds stay at the largest.
    pub(super) fn add(&mut self, severity: Severity) {
        let count = match severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
            Severity::Note => &mut self.notes,
        };
        *count = count.saturating_add(1);
    }

    /// These and the others.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            errors: self.errors.saturating_add(other.errors),
            warnings: self.warnings.saturating_add(other.warnings),
            notes: self.notes.saturating_add(other.notes),
        }
    }

    /// All of them.
    #[must_use]
    pub const fn sum(&self) -> usize {
        self.errors.saturating_add(self.warnings).saturating_add(self.notes)
    }

    /// Whether there is none of any.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.sum() == 0
    }
}

/// As what is left out: `100 more errors, 1 more warning`; nothing where none is.
impl fmt::Display for Counts {
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

impl<'d> FromIterator<&'d Diagnostic> for Counts {
    fn from_iter<I: IntoIterator<Item = &'d Diagnostic>>(all: I) -> Self {
        let mut counts = Self::default();
        all.into_iter().for_each(|one| counts.add(one.severity()));
        counts
    }
}

/// The findings that are shown, as a slice, and the count of those that are not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    shown: Vec<Diagnostic>,
    more: Counts,
}

impl Diagnostics {
    pub(super) const fn new(shown: Vec<Diagnostic>, more: Counts) -> Self {
        Self { shown, more }
    }

    /// How many are not shown. Of a file with more than a thousand of one severity, one that is met again through an alias
    /// may be counted again.
    #[must_use]
    pub const fn more(&self) -> Counts {
        self.more
    }

    /// How many there are, shown or not.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shown.iter().collect::<Counts>().plus(self.more)
    }

    /// The `most` worst in the order in which they are here, and how many of all that leaves out.
    #[must_use]
    pub fn worst(&self, most: usize) -> (Vec<&Diagnostic>, Counts) {
        let mut ranked: Vec<(usize, &Diagnostic)> = self.shown.iter().enumerate().collect();
        ranked.sort_by_key(|(_, one)| std::cmp::Reverse(one.severity()));
        let left_out = ranked.iter().skip(most).map(|(_, one)| *one).collect::<Counts>();
        ranked.truncate(most);
        ranked.sort_unstable_by_key(|(at, _)| *at);
        (ranked.into_iter().map(|(_, one)| one).collect(), left_out.plus(self.more))
    }

    /// These without the notes, shown or not.
    #[must_use]
    pub fn without_notes(mut self) -> Self {
        self.shown.retain(|one| one.severity() != Severity::Note);
        self.more.notes = 0;
        self
    }

    /// Takes in `others`, behind these.
    pub fn append(&mut self, others: Self) {
        self.shown.extend(others.shown);
        self.more = self.more.plus(others.more);
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

/// Each as `check` prints it, then a line that says how many more there are.
impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, one) in self.shown.iter().enumerate() {
            let line_end = if at == 0 { "" } else { "\n" };
            write!(f, "{line_end}{one}")?;
        }
        if self.more.is_none() { Ok(()) } else { write!(f, "\nand {}, not shown", self.more) }
    }
}
