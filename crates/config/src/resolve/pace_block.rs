//! Converts a `rate_limit` block with `adaptive` or `wait` to a concurrency limit with a pace.
//!
//! Guarantees:
//! - The rate is from 1 per hour to [`MAX_PACE`] per second.
//! - A field without effect is an error.
//! - All problems of a block are reported at once.

use super::adaptive_block::parse_hundredths;
use super::findings::{FileFindings, FileSpan};
use super::keyword_reader::KeywordReader;
use super::window::{WindowFields, WindowReader};
use super::{duration, keywords, overload_answers};
use crate::concurrency::{
    ConcurrencyFallback, ConcurrencyLimit, ConcurrencyMode, DECREASE, DEFAULT_MAX_DURATION,
    DEFAULT_PACE_DECREASE, DEFAULT_PACE_INCREASE, MAX_PACE, MAX_PACE_UNIT, PACE_STATUS,
    RejectReply,
};
use crate::diagnostic::{Code, Span, Spanned};
use crate::kernel::concurrency::RetryAfterRule;
use crate::kernel::concurrency::adaptive::Hundredths;
use crate::kernel::concurrency::limiter::{LimiterConfig, QueueConfig};
use crate::kernel::concurrency::pace::{AdaptivePace, PaceConfig};
use crate::kernel::coordinator::aggregate::VoteAggregate;
use crate::kernel::units::Nanos;
use crate::{RuleNumber, raw};

/// The default of `max`.
const DEFAULT_MAX: u32 = 1_000;

const WAIT_EXAMPLE: &str = "write for example `wait: {at_most: 2s, queue: 100}`, or remove `wait`";

pub(super) struct PaceReader<'r, 'f, 'a> {
    pub(super) file: usize,
    pub(super) raw: &'r raw::RateLimit,
    pub(super) shadow: bool,
    /// As [`ConcurrencyLimit::path`].
    pub(super) path: Box<str>,
    /// As [`ConcurrencyLimit::location`].
    pub(super) location: Box<str>,
    pub(super) findings: &'f mut FileFindings<'a>,
}

impl PaceReader<'_, '_, '_> {
    /// Returns the limit, or `None` if the block is invalid and the findings contain the reason.
    pub(super) fn read(mut self) -> Option<ConcurrencyLimit> {
        let raw = self.raw;
        self.refuse_counting_fields();
        let (unit, rate) = (self.unit(), self.rate("requests_per_unit", &raw.requests_per_unit));
        let adaptive = raw.adaptive.as_ref().map(|block| self.adaptive(block, rate));
        let queue = raw.wait.as_ref().map(|block| self.queue(block));
        let list = raw.adaptive.as_ref().and_then(|block| block.overloaded_by.as_ref());
        let overloaded_by = overload_answers::read(list, self.file, self.findings);
        let retry_after = self.paused_by();
        self.refuse_fast(unit);
        let adaptive = adaptive.map_or(Some(None), |read| read.map(Some))?;
        let queue = queue.map_or(Some(None), |read| read.map(Some))?;
        let pace = Some(PaceConfig { unit: unit?, adaptive });
        let fixed = LimiterConfig::fixed(rate?);
        let rules =
            LimiterConfig { pace, queue, overloaded_by: overloaded_by?, retry_after, ..fixed };
        Some(ConcurrencyLimit {
            number: RuleNumber::default(),
            has_rate_limit: false,
            rules,
            aggregate: VoteAggregate::default(),
            mode: Some(ConcurrencyMode::Local),
            on_store_failure: ConcurrencyFallback::default(),
            max_duration: DEFAULT_MAX_DURATION,
            reject: RejectReply { status: PACE_STATUS, ..RejectReply::default() },
            shadow: self.shadow,
            path: self.path,
            location: self.location,
            from: None,
            requesters: None,
        })
    }

    fn refuse_counting_fields(&mut self) {
        let raw = self.raw;
        let Some((field, _)) = raw.pace_field() else { return };
        let span = |word: &Spanned<String>| word.span;
        let others = [
            ("unlimited", Some(raw.unlimited.span).filter(|_| raw.unlimited.value)),
            ("name", Some(raw.name.span).filter(|_| !raw.name.value.is_empty())),
            ("replaces", raw.replaces.first().map(span)),
            ("strategy", raw.strategy.as_ref().map(span)),
            ("burst", raw.burst.as_ref().map(|word| word.span)),
            ("on_excess", raw.on_excess.as_ref().map(span)),
            ("mode", raw.mode.as_ref().map(span)),
            ("max_overshoot", raw.max_overshoot.as_ref().map(span)),
            ("lease_hits", raw.lease_hits.as_ref().map(|word| word.span)),
            ("on_store_failure", raw.on_store_failure.as_ref().map(span)),
            ("calendar", raw.calendar.as_ref().map(|block| block.span)),
            ("penalty", raw.penalty.as_ref().map(|block| block.span)),
        ];
        for (other, span) in others.into_iter().filter_map(|(other, span)| Some((other, span?))) {
            let fix = format!(
                "remove it, or `{field}`: with `{field}` each replica paces requests by itself, \
                 without counters"
            );
            let at = FileSpan { file: self.file, span };
            self.findings.contradict(at, other, field, &fix);
        }
        if let (Some(from), Some(_)) = (&raw.from, &raw.adaptive) {
            let fix = "remove one of them: an adaptive rate is learned, not read from a table";
            self.findings.contradict(
                FileSpan { file: self.file, span: from.span },
                "from",
                "adaptive",
                fix,
            );
        }
    }

    fn unit(&mut self) -> Option<Nanos> {
        let raw = self.raw;
        let fields = WindowFields {
            block: "rate_limit",
            missing_fix: "add for example `unit: second`",
            shortest: (Nanos::MILLI, "1ms"),
            span: raw.span,
            is_incomplete: raw.is_incomplete,
            unit: &raw.unit,
            per: raw.per.as_ref(),
            calendar: None,
        };
        let unit =
            WindowReader { file: self.file, fields, findings: self.findings }.window()?.length();
        if MAX_PACE_UNIT < unit {
            let span = raw.per.as_ref().map_or(raw.unit.span, |per| per.span);
            let message = match &raw.per {
                Some(per) => format!("`per: {}` is longer than an hour", per.value),
                None => format!("`unit: {}` is longer than an hour", raw.unit.value),
            };
            self.error(Code::OutOfRange, span, message, "use `unit: second`, `minute` or `hour`");
            return None;
        }
        Some(unit)
    }

    fn adaptive(&mut self, raw: &raw::AdaptiveRate, rate: Option<u32>) -> Option<AdaptivePace> {
        let mut reader = KeywordReader { file: self.file, findings: self.findings };
        let algorithm =
            reader.keyword(keywords::RATE_ALGORITHMS, "algorithm", raw.algorithm.as_ref());
        let or = |number: Option<&Spanned<u32>>, default, reader: &mut Self, field| {
            number.map_or(Some(default), |number| reader.rate(field, number))
        };
        let min = or(raw.min.as_ref(), 1, self, "min");
        let max = or(raw.max.as_ref(), DEFAULT_MAX.max(rate.unwrap_or(0)), self, "max");
        let increase = or(raw.increase.as_ref(), DEFAULT_PACE_INCREASE, self, "increase");
        let decrease = self.decrease(raw.decrease.as_ref());
        let (rate, min, max) = (rate?, min?, max?);
        if let Some(written) = raw.max.as_ref().filter(|_| max < min) {
            let message = format!("`max: {max}` is less than `min: {min}`");
            self.error(Code::Contradiction, written.span, message, "exchange them");
            return None;
        }
        if rate < min || max < rate {
            let message =
                format!("`requests_per_unit: {rate}` is not between `min` {min} and `max` {max}");
            let fix = "change one of the three: `requests_per_unit` is the initial rate";
            self.error(Code::Contradiction, self.raw.requests_per_unit.span, message, fix);
            return None;
        }
        algorithm.or_else(|| raw.algorithm.is_none().then_some(()))?;
        Some(AdaptivePace { min, max, increase: increase?, decrease: decrease? })
    }

    fn decrease(&mut self, word: Option<&Spanned<String>>) -> Option<Hundredths> {
        let Some(word) = word else { return Some(DEFAULT_PACE_DECREASE) };
        let factor = parse_hundredths(&word.value).filter(|factor| DECREASE.contains(factor));
        if factor.is_none() {
            let message = format!("`decrease: {}` is out of range", word.value);
            let fix =
                format!("use {} to {}, with up to two decimals", DECREASE.start(), DECREASE.end());
            self.error(Code::OutOfRange, word.span, message, &fix);
        }
        factor
    }

    fn paused_by(&mut self) -> RetryAfterRule {
        let word = self.raw.adaptive.as_ref().and_then(|block| block.paused_by.as_ref());
        let mut reader = KeywordReader { file: self.file, findings: self.findings };
        reader.keyword(keywords::RETRY_AFTER_RULES, "paused_by", word).unwrap_or_default()
    }

    fn queue(&mut self, raw: &raw::Wait) -> Option<QueueConfig> {
        let (Some(size), Some(at_most)) = (&raw.queue, &raw.at_most) else {
            if !raw.is_incomplete {
                let message = "`wait` needs `at_most` and `queue`".to_owned();
                self.error(Code::OutOfRange, raw.span, message, WAIT_EXAMPLE);
            }
            return None;
        };
        let size = self.rate("queue", size);
        let example = "use a whole number and `ms`, `s`, `m` or `h`, such as `2s`";
        let (message, fix) = match duration::parse(&at_most.value) {
            Ok(Nanos(0)) => {
                (format!("`at_most: {}` is too short", at_most.value), "use at least `1ms`")
            }
            Ok(timeout) => return Some(QueueConfig { size: size?, timeout }),
            Err(wrong) => wrong.message_and_fix("at_most", &at_most.value, example),
        };
        self.error(Code::BadDuration, at_most.span, message, fix);
        None
    }

    /// Returns a number that must be at least 1.
    fn rate(&mut self, field: &str, number: &Spanned<u32>) -> Option<u32> {
        if number.value == 0 && !self.raw.is_incomplete {
            let is_missing = number.span.end == 0;
            let span = if is_missing { self.raw.span } else { number.span };
            let message = if is_missing {
                format!("`{field}` is missing")
            } else {
                format!("`{field}: 0` is too small")
            };
            self.error(Code::OutOfRange, span, message, "use at least 1");
        }
        (0 < number.value).then_some(number.value)
    }

    /// Refuses the rates above [`MAX_PACE`].
    fn refuse_fast(&mut self, unit: Option<Nanos>) {
        let (Some(unit), adaptive) = (unit, self.raw.adaptive.as_ref()) else { return };
        let rates = [
            ("requests_per_unit", Some(&self.raw.requests_per_unit)),
            ("max", adaptive.and_then(|block| block.max.as_ref())),
            ("increase", adaptive.and_then(|block| block.increase.as_ref())),
        ];
        let most = u128::from(MAX_PACE).saturating_mul(unit.0.into());
        for (field, rate) in rates.into_iter().filter_map(|(field, rate)| Some((field, rate?))) {
            if most < u128::from(rate.value).saturating_mul(Nanos::SECOND.0.into()) {
                let message = format!("`{field}: {}` is too large", rate.value);
                let fix = format!("use at most {MAX_PACE} requests per second");
                self.error(Code::OutOfRange, rate.span, message, &fix);
            }
        }
    }

    fn error(&mut self, code: Code, span: Span, message: String, help: &str) {
        self.findings.add(code, FileSpan { file: self.file, span }, message, help);
    }
}
