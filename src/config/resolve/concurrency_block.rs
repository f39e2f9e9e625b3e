//! Validates one `concurrency` block and converts it to a concurrency limit.
//!
//! Guarantees:
//! - Every accepted field has an effect.
//! - All problems of a block are reported at once.

use super::duration;
use super::findings::{FileFindings, FileSpan};
use super::keywords;
use super::rate_limit_block::KeywordReader;
use crate::config::concurrency::{
    ConcurrencyFallback, ConcurrencyMode, DEFAULT_MAX_DURATION, LARGE_LIMIT, LONG_MAX_DURATION,
    RejectReply, SMALL_LIMIT,
};
use crate::config::diagnostic::{Code, Span, Spanned};
use crate::config::raw;
use crate::kernel::concurrency::adaptive::AdaptiveConfig;
use crate::kernel::concurrency::limiter::{LimiterConfig, QueueConfig};
use crate::kernel::units::Nanos;

const DEFAULT_ADAPTIVE_MAX: u32 = 1000;

pub(super) struct ConcurrencySettings {
    pub(super) rules: LimiterConfig,
    pub(super) mode: Option<ConcurrencyMode>,
    pub(super) on_backend_failure: ConcurrencyFallback,
    pub(super) max_duration: Nanos,
    pub(super) reject: RejectReply,
}

pub(super) struct ConcurrencyReader<'r, 'f, 'a> {
    pub(super) file: usize,
    pub(super) raw: &'r raw::Concurrency,
    pub(super) findings: &'f mut FileFindings<'a>,
}

impl ConcurrencyReader<'_, '_, '_> {
    /// Returns the validated block, or `None` if it is invalid and the findings contain the reason.
    pub(super) fn read(mut self) -> Option<ConcurrencySettings> {
        let raw = self.raw;
        // Run all validations before the first `?`, so that one problem does not hide another.
        let limit = self.read_limit();
        let adaptive = match &raw.adaptive {
            None => Some(None),
            Some(block) => self.read_adaptive(block, limit).map(Some),
        };
        let queue = match &raw.queue {
            None => Some(None),
            Some(block) => self.read_queue(block).map(Some),
        };
        let reject = self.read_reject(raw.reject.as_ref());
        let mode = self.read_mode();
        self.warn_unsuitable_mode(mode, limit);
        let on_backend_failure = self.read_fallback(mode);
        let max_duration = match &raw.max_duration {
            None => Some(DEFAULT_MAX_DURATION),
            Some(text) => self.parse_duration("max_duration", text),
        };
        self.warn_long_exposure(mode, max_duration);
        let rules = LimiterConfig { limit: limit?, adaptive: adaptive?, queue: queue? };
        let (max_duration, reject) = (max_duration?, reject?);
        Some(ConcurrencySettings { rules, mode, on_backend_failure, max_duration, reject })
    }

    fn read_limit(&mut self) -> Option<u32> {
        let Some(limit) = &self.raw.limit else {
            let message = "a ceiling needs a `limit`".to_owned();
            let help = "`limit: 64` for example; with `adaptive` it is where the ceiling starts";
            self.error(Code::OutOfRange, self.raw.span, message, help);
            return None;
        };
        let help = "at least 1; to deny everything a `rate_limit` of 0 requests";
        self.require_at_least_one("limit", limit, help)
    }

    fn read_adaptive(&mut self, raw: &raw::Adaptive, limit: Option<u32>) -> Option<AdaptiveConfig> {
        let mut reader = KeywordReader { file: self.file, findings: self.findings };
        let algorithm = reader.read("policy", keywords::ALGORITHMS, raw.policy.as_ref());
        let is_known_algorithm = algorithm.is_some() || raw.policy.is_none();
        let help = "at least 1: a ceiling of 0 could learn nothing";
        let min =
            raw.min.as_ref().map_or(Some(1), |min| self.require_at_least_one("min", min, help));
        let max = raw.max.as_ref().map_or_else(
            || Some(DEFAULT_ADAPTIVE_MAX.max(limit?)),
            |max| self.require_at_least_one("max", max, "at least `min`"),
        );
        let (limit, min, max) = (limit?, min?, max?);
        if limit < min || max < limit {
            let message = format!("`limit: {limit}` is not between `min` {min} and `max` {max}");
            let help = "the ceiling starts at `limit`, and stays from `min` to `max`";
            let span = self.raw.limit.as_ref().map_or(raw.span, |limit| limit.span);
            self.error(Code::Contradiction, span, message, help);
            return None;
        }
        is_known_algorithm.then(|| AdaptiveConfig {
            algorithm: algorithm.unwrap_or_default(),
            min,
            max,
        })
    }

    fn read_queue(&mut self, raw: &raw::Queue) -> Option<QueueConfig> {
        let help = "`queue: {size: 100, timeout: 300ms}` for example; without a queue one is \
                    turned away at once";
        let (Some(size), Some(timeout)) = (&raw.size, &raw.timeout) else {
            let message = "a queue needs a `size` and a `timeout`".to_owned();
            self.error(Code::OutOfRange, raw.span, message, help);
            return None;
        };
        let size = self.require_at_least_one("size", size, help);
        let timeout = self.parse_duration("timeout", timeout);
        Some(QueueConfig { size: size?, timeout: timeout? })
    }

    fn read_reject(&mut self, raw: Option<&raw::Reject>) -> Option<RejectReply> {
        let Some(raw) = raw else { return Some(RejectReply::default()) };
        let status = raw.status.as_ref().map_or(Some(RejectReply::default().status), |status| {
            let valid_status =
                u16::try_from(status.value).ok().filter(|status| (400..600).contains(status));
            if valid_status.is_none() {
                let message = format!("`status: {}` does not reject", status.value);
                let help = "400 to 599: 503 by default, or 429";
                self.error(Code::OutOfRange, status.span, message, help);
            }
            valid_status
        });
        let retry_after = match &raw.retry_after {
            None => Some(None),
            Some(wait) => self.parse_duration("retry_after", wait).map(Some),
        };
        let body = raw.body.as_ref().map(|body| body.value.as_str()).unwrap_or_default();
        Some(RejectReply { status: status?, retry_after: retry_after?, body: body.into() })
    }

    fn read_mode(&mut self) -> Option<ConcurrencyMode> {
        let keyword = self.raw.mode.as_ref()?;
        let mut reader = KeywordReader { file: self.file, findings: self.findings };
        let mode = reader.read("mode", keywords::CONCURRENCY_MODES, Some(keyword));
        if let Some(adaptive) =
            self.raw.adaptive.as_ref().filter(|_| mode == Some(ConcurrencyMode::Strict))
        {
            let message = "`adaptive` beside `mode: strict`, which holds one number".to_owned();
            let help = "`mode: leased`: each replica infers, and the fleet has one ceiling";
            self.error(Code::Contradiction, adaptive.span, message, help);
        }
        mode
    }

    fn warn_unsuitable_mode(&mut self, mode: Option<ConcurrencyMode>, limit: Option<u32>) {
        let (Some(field), Some(limit)) = (&self.raw.limit, limit) else { return };
        let is_fixed = self.raw.adaptive.is_none();
        if mode == Some(ConcurrencyMode::Leased) && is_fixed && limit <= SMALL_LIMIT {
            let message =
                format!("`limit: {limit}` in shares: a replica without one admits nobody");
            let help = "`mode: strict` asks the store each time, and is exact for small ceilings";
            self.error(Code::SmallShares, field.span, message, help);
        }
        if mode == Some(ConcurrencyMode::Strict) && LARGE_LIMIT <= limit {
            let message = format!("`limit: {limit}` with `mode: strict`: a call for each request");
            let help = "`mode: leased` holds so large a ceiling in shares, without a call";
            self.error(Code::CostlyStrict, field.span, message, help);
        }
    }

    fn read_fallback(&mut self, mode: Option<ConcurrencyMode>) -> ConcurrencyFallback {
        let Some(keyword) = &self.raw.on_backend_failure else {
            return ConcurrencyFallback::default();
        };
        if mode == Some(ConcurrencyMode::Local) {
            let message = "`on_backend_failure` beside `mode: local`, which asks no backend".into();
            let help = "leave one of them out";
            self.error(Code::Contradiction, keyword.span, message, help);
        }
        KeywordReader { file: self.file, findings: self.findings }
            .read("on_backend_failure", keywords::CONCURRENCY_FALLBACKS, Some(keyword))
            .unwrap_or_default()
    }

    /// Warns about a fleet-wide limit with a long or missing `max_duration`, for which the store
    /// reserves the share of a crashed replica.
    fn warn_long_exposure(&mut self, mode: Option<ConcurrencyMode>, max_duration: Option<Nanos>) {
        let mode_field = self.raw.mode.as_ref();
        if mode_field.is_some() && mode != Some(ConcurrencyMode::Leased) {
            return;
        }
        let is_long = max_duration.is_some_and(|duration| LONG_MAX_DURATION < duration);
        let (span, message) = match &self.raw.max_duration {
            Some(text) if is_long => {
                (text.span, format!("a fleet's ceiling with `max_duration: {}`", text.value))
            }
            Some(_) => return,
            None => {
                let span = mode_field.map_or(self.raw.span, |keyword| keyword.span);
                (span, "a ceiling without `max_duration`, which is 60s then".to_owned())
            }
        };
        let help = "a fleet keeps the part of a replica that is lost so long: say the proxy's route \
                    timeout, at most 5m";
        self.error(Code::LongExposure, span, message, help);
    }

    fn require_at_least_one(
        &mut self,
        field: &str,
        number: &Spanned<u32>,
        help: &str,
    ) -> Option<u32> {
        if number.value == 0 {
            let message = format!("`{field}: 0` would let nobody pass");
            self.error(Code::OutOfRange, number.span, message, help);
        }
        (0 < number.value).then_some(number.value)
    }

    fn parse_duration(&mut self, field: &str, text: &Spanned<String>) -> Option<Nanos> {
        let example = "a whole number and `ms`, `s`, `m` or `h`, as in `300ms`";
        let (message, help) = match duration::parse(&text.value) {
            Ok(Nanos(0)) => {
                (format!("`{field}: {}` is no time at all", text.value), "at least `1ms`")
            }
            Ok(duration) => return Some(duration),
            Err(error) => error.message_and_fix(field, &text.value, example),
        };
        self.error(Code::BadDuration, text.span, message, help);
        None
    }

    fn error(&mut self, code: Code, span: Span, message: String, help: &str) {
        self.findings.add(code, FileSpan { file: self.file, span }, message, help);
    }
}
