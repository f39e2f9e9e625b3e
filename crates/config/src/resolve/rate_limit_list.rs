//! Validates the list `rate_limits` of a descriptor and converts it to limits.
//!
//! Guarantees:
//! - Each limit of a list has a name and a period that no other limit of the list has.
//! - All problems of a list and its blocks are reported at once.
//!
//! Not covered:
//! - The fields of one block (see [`super::rate_limit_block`]).

use std::sync::Arc;

use super::domain_defaults::DomainDefaults;
use super::findings::{FileFindings, FileSpan};
use super::keyword_reader::InvalidSetting;
use super::rate_limit_block::RateLimitReader;
use crate::diagnostic::{Code, Span, Spanned};
use crate::raw::{self, Descriptor, RateLimit};
use crate::{ChargePolicy, Limit, RuleLimits};

/// The largest number of limits in a list. Each costs one more charge per check.
const MAX_LIMITS: usize = 8;

pub(super) struct RateLimitListReader<'r, 'f, 'a> {
    pub(super) file: usize,
    pub(super) descriptor: &'r Descriptor,
    pub(super) list: &'r Spanned<Vec<RateLimit>>,
    pub(super) charge: ChargePolicy,
    pub(super) defaults: DomainDefaults,
    pub(super) findings: &'f mut FileFindings<'a>,
}

/// Returns the name of a limit in a list. The default is `per-` and the period as it is written,
/// such as `per-second`.
pub(super) fn limit_name(raw: &RateLimit) -> String {
    if !raw.name.value.is_empty() {
        return raw.name.value.clone();
    }
    let period = raw.per.as_ref().map_or(&raw.unit.value, |per| &per.value);
    format!("per-{}", period.to_lowercase())
}

impl RateLimitListReader<'_, '_, '_> {
    /// Returns the limits of the list, with their names.
    pub(super) fn read(mut self) -> Result<RuleLimits, InvalidSetting> {
        let size = self.check_size();
        let (place, quota) = (self.check_place(), self.check_quota());
        let mut limits = RuleLimits::new();
        let mut blocks = Ok(());
        for raw in self.list.value.iter().take(MAX_LIMITS) {
            match self.read_limit(raw, &limits) {
                Ok(limit) => limits.push(limit),
                Err(invalid) => blocks = Err(invalid),
            }
        }
        size.and(place).and(quota).and(blocks).map(|()| limits)
    }

    fn check_size(&mut self) -> Result<(), InvalidSetting> {
        let count = self.list.value.len();
        if count == 0 && !self.descriptor.is_incomplete {
            let fix = "add limits such as `- {unit: second, requests_per_unit: 10}`, or remove it";
            return self.error(Code::OutOfRange, self.list.span, "`rate_limits` is empty", fix);
        }
        if MAX_LIMITS < count {
            let message = format!("`rate_limits` has {count} limits");
            let fix = format!("use at most {MAX_LIMITS}");
            return self.error(Code::OutOfRange, self.list.span, message, &fix);
        }
        Ok(())
    }

    fn check_place(&mut self) -> Result<(), InvalidSetting> {
        let Some(beside) = &self.descriptor.rate_limit else { return Ok(()) };
        let message = "`rate_limit` cannot be combined with `rate_limits`";
        self.error(Code::Contradiction, beside.span, message, "move it into the list")
    }

    /// Refuses a list in the quota group of an all-or-nothing check, because the store counts one
    /// vote for each limit instead of one for each descriptor.
    fn check_quota(&mut self) -> Result<(), InvalidSetting> {
        let is_valid = !self.descriptor.quota_mode
            || self.list.value.len() < 2
            || self.charge == ChargePolicy::Each;
        if is_valid {
            return Ok(());
        }
        let message = "`rate_limits` with `quota_mode` cannot be combined with `charge: \
                       all_or_nothing`";
        let fix = "remove `quota_mode`, or use `charge: each`";
        self.error(Code::Contradiction, self.list.span, message, fix)
    }

    /// Reads one block, and compares the limit with the `earlier` ones of the list.
    fn read_limit(&mut self, raw: &RateLimit, earlier: &[Limit]) -> Result<Limit, InvalidSetting> {
        if let Some((field, span)) = raw.pace_field() {
            let message = format!("`{field}` cannot be combined with `rate_limits`");
            let fix = "write it in the `rate_limit` of another rule";
            self.error(Code::Contradiction, span, message, fix)?;
        }
        let (file, defaults) = (self.file, self.defaults);
        let block = RateLimitReader { file, raw, defaults, findings: self.findings };
        let Some(limit) = block.read()? else {
            let message = "`unlimited` cannot be combined with other limits of `rate_limits`";
            let fix = "remove it, or use `rate_limit: {unlimited: true}` alone";
            self.error(Code::UnlimitedWithLimit, raw.unlimited.span, message, fix)?;
            return Err(InvalidSetting);
        };
        let name = limit_name(raw);
        self.check_unique(raw, (&name, &limit), earlier)?;
        Ok(Limit { name: Some(Arc::from(name)), ..limit })
    }

    fn check_unique(
        &mut self,
        raw: &RateLimit,
        (name, limit): (&str, &Limit),
        earlier: &[Limit],
    ) -> Result<(), InvalidSetting> {
        let period = limit.window.length();
        if earlier.iter().any(|other| other.window.length() == period) {
            let message = format!("two limits of `rate_limits` have the period {period}");
            let span = period_span(raw);
            let fix = "give each limit of the list another period";
            return self.error(Code::Contradiction, span, message, fix);
        }
        if earlier.iter().any(|other| other.name.as_deref() == Some(name)) {
            let message = format!("two limits of `rate_limits` are named `{name}`");
            let fix = "give each limit of the list another `name`";
            let has_name = !raw.name.value.is_empty();
            let span = if has_name { raw.name.span } else { period_span(raw) };
            return self.error(Code::Contradiction, span, message, fix);
        }
        Ok(())
    }

    fn error(
        &mut self,
        code: Code,
        span: Span,
        message: impl Into<String>,
        fix: &str,
    ) -> Result<(), InvalidSetting> {
        let at = FileSpan { file: self.file, span };
        self.findings.add(code, at, message.into(), fix);
        Err(InvalidSetting)
    }
}

fn period_span(raw: &raw::RateLimit) -> Span {
    raw.per.as_ref().map_or(raw.unit.span, |per| per.span)
}
