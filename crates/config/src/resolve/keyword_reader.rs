//! Reads the fields that are keywords, and amounts of overshoot.
//!
//! Guarantees:
//! - The error of an unknown keyword suggests the keyword that is meant.

use super::findings::{FileFindings, FileSpan};
use super::keywords::{self, ExcessKeyword, Keywords};
use super::overshoot::{self, OvershootAmount};
use crate::diagnostic::{Code, Spanned};

/// The error for a field or block that is invalid. The findings contain the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidSetting;

pub(super) struct KeywordReader<'f, 'a> {
    pub(super) file: usize,
    pub(super) findings: &'f mut FileFindings<'a>,
}

impl KeywordReader<'_, '_> {
    /// Returns the meaning of a keyword. Reports an unknown keyword as an error and returns `None`.
    pub(super) fn keyword<T: Copy>(
        &mut self,
        words: &Keywords<T>,
        key: &str,
        word: Option<&Spanned<String>>,
    ) -> Option<T> {
        let word = word?;
        let meaning = keywords::parse_keyword(words, &word.value);
        if meaning.is_none() {
            let message = format!("`{key}: {}` is not a valid value", word.value);
            let at = FileSpan { file: self.file, span: word.span };
            self.findings.add(
                Code::UnknownValue,
                at,
                message,
                keywords::suggest(words, &word.value),
            );
        }
        meaning
    }

    pub(super) fn keyword_or<T: Copy>(
        &mut self,
        default: Result<T, InvalidSetting>,
        words: &Keywords<T>,
        key: &str,
        word: Option<&Spanned<String>>,
    ) -> Result<T, InvalidSetting> {
        if word.is_none() { default } else { self.keyword(words, key, word).ok_or(InvalidSetting) }
    }

    pub(super) fn on_excess_or(
        &mut self,
        default: Result<Option<ExcessKeyword>, InvalidSetting>,
        word: Option<&Spanned<String>>,
    ) -> Result<Option<ExcessKeyword>, InvalidSetting> {
        if word.is_none() {
            return default;
        }
        self.keyword(keywords::ON_EXCESS, "on_excess", word).map(Some).ok_or(InvalidSetting)
    }

    pub(super) fn overshoot_amount(
        &mut self,
        word: Option<&Spanned<String>>,
    ) -> Result<Option<OvershootAmount>, InvalidSetting> {
        let Some(word) = word else { return Ok(None) };
        let amount = overshoot::parse(&word.value);
        if amount.is_none() {
            let message =
                format!("`max_overshoot: {}` is not a number of hits or a percentage", word.value);
            let fix = "use whole hits such as `100`, or a percentage of the limit such as `0.5%`";
            let at = FileSpan { file: self.file, span: word.span };
            self.findings.add(Code::OutOfRange, at, message, fix);
        }
        amount.map(Some).ok_or(InvalidSetting)
    }

    /// Reads the `max_overshoot` of a domain's `defaults`. An amount that no limit is large enough
    /// for is an error.
    pub(super) fn default_overshoot_amount(
        &mut self,
        word: Option<&Spanned<String>>,
    ) -> Result<Option<OvershootAmount>, InvalidSetting> {
        let amount = self.overshoot_amount(word)?;
        if let Some(word) = word.filter(|_| amount.is_some_and(OvershootAmount::is_above_any)) {
            let message = format!("`max_overshoot: {}` is larger than any limit", word.value);
            let at = FileSpan { file: self.file, span: word.span };
            self.findings.add(Code::OutOfRange, at, message, "use at most `100%`");
            return Err(InvalidSetting);
        }
        Ok(amount)
    }
}
