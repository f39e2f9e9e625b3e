//! Validates one `concurrency` block and converts it to a concurrency limit.
//!
//! Guarantees:
//! - Every accepted field has an effect.
//! - All problems of a block are reported at once.
//!
//! Not covered:
//! - The place of the limit in the descriptor tree (see [`super`]).

use super::duration;
use super::findings::{FileFindings, FileSpan};
use super::keyword_reader::KeywordReader;
use super::status::read_status;
use super::{keywords, overload_answers};
use crate::concurrency::{
    ConcurrencyFallback, ConcurrencyLimit, ConcurrencyMode, DEFAULT_MAX_DURATION, LARGE_LIMIT,
    LONG_MAX_DURATION, RejectReply, RequesterRule, SMALL_LIMIT,
};
use crate::diagnostic::{Code, Span, Spanned};
use crate::kernel::concurrency::limiter::{LimiterConfig, QueueConfig};
use crate::kernel::concurrency::{ClassParts, OverloadAnswers, RetryAfterRule};
use crate::kernel::units::Nanos;
use crate::{FallbackMode, RuleNumber, raw};

/// A mode of rate limits. `shared` is the corresponding mode of concurrency limits.
const RATE_LIMIT_MODE: &str = "leased";

pub(super) struct ConcurrencyReader<'r, 'f, 'a> {
    pub(super) file: usize,
    pub(super) raw: &'r raw::Concurrency,
    /// `on_store_failure` of `defaults`.
    pub(super) default_fallback: FallbackMode,
    pub(super) shadow: bool,
    /// As [`ConcurrencyLimit::path`].
    pub(super) path: Box<str>,
    /// As [`ConcurrencyLimit::location`].
    pub(super) location: Box<str>,
    pub(super) findings: &'f mut FileFindings<'a>,
}

/// The meaning of the blocks `classes` and `fair`.
pub(super) struct RequesterFields {
    pub(super) classes: ClassParts,
    pub(super) fair_keys: Option<u32>,
    pub(super) rule: Option<Box<RequesterRule>>,
}

impl ConcurrencyReader<'_, '_, '_> {
    /// Returns the validated block, or `None` if it is invalid and the findings contain the reason.
    pub(super) fn read(mut self) -> Option<ConcurrencyLimit> {
        let raw = self.raw;
        let limit = self.limit();
        let adaptive = raw.adaptive.as_ref().map(|block| self.adaptive(block, limit));
        let (overloaded_by, retry_after) = (self.overloaded_by(), self.paused_by());
        let queue = raw.queue.as_ref().map(|block| self.queue(block));
        let reject = self.reject(raw.reject.as_ref());
        let mode = self.mode();
        let requesters = self.requesters(mode);
        self.warn_unsuitable_mode(mode, limit);
        let aggregate = self.aggregate(mode);
        let on_store_failure = self.fallback(mode);
        let word = raw.max_duration.as_ref();
        let max_duration =
            word.map_or(Some(DEFAULT_MAX_DURATION), |word| self.duration("max_duration", word));
        self.warn_long_exposure(mode, max_duration);
        // A block that is absent (`None`) is valid; a block that is invalid (`Some(None)`) ends the
        // function.
        let adaptive = adaptive.map_or(Some(None), |read| read.map(Some))?;
        let queue = queue.map_or(Some(None), |read| read.map(Some))?;
        let rules = LimiterConfig {
            adaptive,
            queue,
            overloaded_by: overloaded_by?,
            retry_after,
            ..LimiterConfig::fixed(limit?)
        };
        let RequesterFields { classes, fair_keys, rule: requesters } = requesters?;
        let rules = LimiterConfig { classes, fair_keys, ..rules };
        Some(ConcurrencyLimit {
            number: RuleNumber::default(),
            has_rate_limit: false,
            rules,
            aggregate: aggregate?,
            mode,
            on_store_failure,
            max_duration: max_duration?,
            reject: reject?,
            shadow: self.shadow,
            path: self.path,
            location: self.location,
            from: None,
            requesters,
        })
    }

    fn limit(&mut self) -> Option<u32> {
        let Some(limit) = &self.raw.limit else {
            if self.raw.is_incomplete {
                return None;
            }
            let message = "`concurrency` needs a `limit`".to_owned();
            let fix = "add for example `limit: 64`; with `adaptive`, it is the initial limit";
            self.error(Code::OutOfRange, self.raw.span, message, fix);
            return None;
        };
        let fix = "use at least 1; to deny everything, use a `rate_limit` of 0 requests";
        self.at_least_one("limit", limit, fix)
    }

    fn paused_by(&mut self) -> RetryAfterRule {
        let word = self.raw.adaptive.as_ref().and_then(|block| block.paused_by.as_ref());
        let mut ask = KeywordReader { file: self.file, findings: self.findings };
        ask.keyword(keywords::RETRY_AFTER_RULES, "paused_by", word).unwrap_or_default()
    }

    fn overloaded_by(&mut self) -> Option<OverloadAnswers> {
        let list = self.raw.adaptive.as_ref().and_then(|block| block.overloaded_by.as_ref());
        overload_answers::read(list, self.file, self.findings)
    }

    fn queue(&mut self, raw: &raw::Queue) -> Option<QueueConfig> {
        let fix = "write for example `queue: {size: 100, timeout: 300ms}`, or remove `queue`";
        let (Some(size), Some(timeout)) = (&raw.size, &raw.timeout) else {
            if raw.is_incomplete {
                return None;
            }
            let message = "`queue` needs a `size` and a `timeout`".to_owned();
            self.error(Code::OutOfRange, raw.span, message, fix);
            return None;
        };
        let size = self.at_least_one("size", size, fix);
        let timeout = self.duration("timeout", timeout);
        Some(QueueConfig { size: size?, timeout: timeout? })
    }

    fn reject(&mut self, raw: Option<&raw::Reject>) -> Option<RejectReply> {
        let Some(raw) = raw else { return Some(RejectReply::default()) };
        let status = match &raw.status {
            None => Some(RejectReply::default().status),
            Some(status) => read_status(status, self.file, self.findings),
        };
        let retry_after = match &raw.retry_after {
            None => Some(None),
            Some(wait) => self.duration("retry_after", wait).map(Some),
        };
        let body = raw.body.as_ref().map(|body| body.value.as_str()).unwrap_or_default();
        Some(RejectReply { status: status?, retry_after: retry_after?, body: body.into() })
    }

    fn mode(&mut self) -> Option<ConcurrencyMode> {
        let word = self.raw.mode.as_ref()?;
        if word.value == RATE_LIMIT_MODE {
            let message = format!("`mode: {}` is not a valid value", word.value);
            let fix = "use `mode: shared`; `leased` is a mode of `rate_limit`";
            self.error(Code::UnknownValue, word.span, message, fix);
            return None;
        }
        let mut ask = KeywordReader { file: self.file, findings: self.findings };
        let mode = ask.keyword(keywords::CONCURRENCY_MODES, "mode", Some(word));
        if let Some(adaptive) =
            self.raw.adaptive.as_ref().filter(|_| mode == Some(ConcurrencyMode::Strict))
        {
            let message = "`adaptive` cannot be combined with `mode: strict`".to_owned();
            let fix = "use `mode: shared`, or remove `adaptive`";
            self.error(Code::Contradiction, adaptive.span, message, fix);
        }
        mode
    }

    fn warn_unsuitable_mode(&mut self, mode: Option<ConcurrencyMode>, limit: Option<u32>) {
        let (Some(word), Some(limit)) = (&self.raw.limit, limit) else { return };
        let is_fixed = self.raw.adaptive.is_none();
        if mode == Some(ConcurrencyMode::Shared) && is_fixed && limit <= SMALL_LIMIT {
            let message = format!(
                "`limit: {limit}` is small for `mode: shared`: a replica without a share rejects \
                 every request"
            );
            let fix = "use `mode: strict`: exact for small limits, with a store call per request";
            self.error(Code::SmallShares, word.span, message, fix);
        }
        if mode == Some(ConcurrencyMode::Strict) && LARGE_LIMIT <= limit {
            let message =
                format!("`limit: {limit}` with `mode: strict` calls the store for each request");
            let fix = "use `mode: shared`, which needs no store call for each request";
            self.error(Code::CostlyStrict, word.span, message, fix);
        }
    }

    fn fallback(&mut self, mode: Option<ConcurrencyMode>) -> ConcurrencyFallback {
        let Some(word) = &self.raw.on_store_failure else {
            return if mode == Some(ConcurrencyMode::Local) {
                ConcurrencyFallback::default()
            } else {
                default_fallback(self.default_fallback)
            };
        };
        if mode == Some(ConcurrencyMode::Local) {
            let message = "`on_store_failure` cannot be combined with `mode: local`".into();
            let fix = "remove one of the two: `mode: local` makes no store calls";
            self.error(Code::Contradiction, word.span, message, fix);
        }
        let mut ask = KeywordReader { file: self.file, findings: self.findings };
        let fallback = ask.keyword(keywords::CONCURRENCY_FALLBACKS, "on_store_failure", Some(word));
        fallback.unwrap_or_default()
    }

    /// Warns about a fleet-wide limit with a long or missing `max_duration`.
    ///
    /// If a replica crashes, its requests may continue, so the store keeps its share reserved for
    /// `max_duration`. A limit without `mode` is fleet-wide if the store is shared.
    fn warn_long_exposure(&mut self, mode: Option<ConcurrencyMode>, max_duration: Option<Nanos>) {
        let word = self.raw.max_duration.as_ref();
        let is_long = max_duration.is_some_and(|it| LONG_MAX_DURATION < it);
        let (span, message) = match (word, &self.raw.mode) {
            (Some(word), said)
                if is_long && (said.is_none() || mode == Some(ConcurrencyMode::Shared)) =>
            {
                let message =
                    format!("`max_duration: {}` is long for a fleet-wide limit", word.value);
                (word.span, message)
            }
            (None, _) if self.raw.is_incomplete => return,
            (None, mode_field) if mode_field.is_none() || mode == Some(ConcurrencyMode::Shared) => {
                let span = mode_field.as_ref().map_or(self.raw.span, |said| said.span);
                (span, "`max_duration` is missing, so its default of 60s applies".to_owned())
            }
            _ => return,
        };
        let fix = "use the proxy's route timeout, at most 5m: the share of a crashed replica stays \
                    reserved for this time";
        self.error(Code::LongExposure, span, message, fix);
    }

    pub(super) fn at_least_one(
        &mut self,
        word: &str,
        number: &Spanned<u32>,
        help: &str,
    ) -> Option<u32> {
        if number.value == 0 {
            let message = format!("`{word}: 0` is too small");
            self.error(Code::OutOfRange, number.span, message, help);
        }
        (0 < number.value).then_some(number.value)
    }

    pub(super) fn duration(&mut self, word: &str, text: &Spanned<String>) -> Option<Nanos> {
        let example = "use a whole number and `ms`, `s`, `m` or `h`, such as `300ms`";
        let (message, help) = match duration::parse(&text.value) {
            Ok(Nanos(0)) => {
                (format!("`{word}: {}` is too short", text.value), "use at least `1ms`")
            }
            Ok(found) => return Some(found),
            Err(wrong) => wrong.message_and_fix(word, &text.value, example),
        };
        self.error(Code::BadDuration, text.span, message, help);
        None
    }

    pub(super) fn error(&mut self, code: Code, span: Span, message: String, help: &str) {
        self.findings.add(code, FileSpan { file: self.file, span }, message, help);
    }
}

/// Returns the fallback of a concurrency limit without `on_store_failure`, in a domain whose
/// `defaults` have this one. A permit cannot be answered with an error, so `error` is `local`: the
/// replica already has a share of the limit.
const fn default_fallback(of_domain: FallbackMode) -> ConcurrencyFallback {
    match of_domain {
        FallbackMode::Deny => ConcurrencyFallback::Deny,
        FallbackMode::Allow => ConcurrencyFallback::Allow,
        FallbackMode::Error | FallbackMode::Local => ConcurrencyFallback::Local,
    }
}
