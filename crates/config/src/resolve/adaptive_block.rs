//! Validates the block `adaptive` of a concurrency limit.
//!
//! | field | range | algorithms |
//! |---|---|---|
//! | `target` | 1 ms to 1 h | all |
//! | `tolerance` | 1.05 to 10 | all |
//! | `increase` | 1 to 1000 | `aimd`, `gradient2` |
//! | `decrease` | 0.1 to 0.99 | `aimd`, `gradient2` |
//! | `window` | 10 ms to 1 min | all |
//! | `smoothing` | 0.05 to 1 | `gradient2` |
//! | `probe_interval` | 1 s to 1 h | all |
//! | `probe_depth` | 0.3 to 0.9 | all |
//!
//! Guarantees:
//! - A field without effect is an error.
//! - Decimal numbers are exact: at most two decimals.

use std::ops::RangeInclusive;

use super::concurrency_block::ConcurrencyReader;
use super::keyword_reader::{InvalidSetting, KeywordReader};
use super::keywords;
use crate::concurrency::{ConcurrencyMode, DECREASE, INCREASE, PROBE_DEPTH, SMOOTHING, TOLERANCE};
use crate::diagnostic::{Code, Span, Spanned};
use crate::kernel::concurrency::adaptive::{
    AdaptiveAlgorithm, AdaptiveConfig, AdaptiveTuning, Hundredths,
};
use crate::kernel::coordinator::aggregate::VoteAggregate;
use crate::kernel::units::Nanos;
use crate::raw;

const TARGET: RangeInclusive<Nanos> = Nanos::MILLI..=Nanos::from_secs(3_600);
const WINDOW: RangeInclusive<Nanos> = Nanos(10 * Nanos::MILLI.0)..=Nanos::from_secs(60);
const PROBE_INTERVAL: RangeInclusive<Nanos> = Nanos::SECOND..=Nanos::from_secs(3_600);

/// The default of `max`, the upper bound of an adaptive limit.
const DEFAULT_MAX: u32 = 1_000;

impl ConcurrencyReader<'_, '_, '_> {
    pub(super) fn adaptive(
        &mut self,
        raw: &raw::Adaptive,
        limit: Option<u32>,
    ) -> Option<AdaptiveConfig> {
        let mut reader = KeywordReader { file: self.file, findings: self.findings };
        let named = reader.keyword(keywords::ALGORITHMS, "algorithm", raw.algorithm.as_ref());
        let algorithm =
            if raw.algorithm.is_some() { named } else { Some(AdaptiveAlgorithm::default()) };
        let tuning = self.tuning(raw, algorithm);
        let (min, max) = self.bounds(raw, limit)?;
        Some(AdaptiveConfig { algorithm: algorithm?, min, max, tuning: tuning? })
    }

    fn bounds(&mut self, raw: &raw::Adaptive, limit: Option<u32>) -> Option<(u32, u32)> {
        let fix = "use at least 1: with a limit of 0, there is no latency to measure";
        let min = raw.min.as_ref().map_or(Some(1), |min| self.at_least_one("min", min, fix));
        let max = raw.max.as_ref().map_or_else(
            || Some(DEFAULT_MAX.max(limit?)),
            |max| self.at_least_one("max", max, "use at least the value of `min`"),
        );
        let (limit, min, max) = (limit?, min?, max?);
        if limit < min || max < limit {
            let message = format!("`limit: {limit}` is not between `min` {min} and `max` {max}");
            let fix = "change one of the three: `limit` is the initial limit";
            let span = self.raw.limit.as_ref().map_or(raw.span, |limit| limit.span);
            self.error(Code::Contradiction, span, message, fix);
            return None;
        }
        Some((min, max))
    }

    /// Returns the parameters, or `None` if one of them is invalid.
    fn tuning(
        &mut self,
        raw: &raw::Adaptive,
        algorithm: Option<AdaptiveAlgorithm>,
    ) -> Option<AdaptiveTuning> {
        if let Some(algorithm) = algorithm {
            self.refuse_without_effect(raw, algorithm);
        }
        let target = self.duration_within("target", raw.target.as_ref(), &TARGET);
        let tolerance = self.decimal("tolerance", raw.tolerance.as_ref(), &TOLERANCE);
        let increase = self.increase(raw.increase.as_ref());
        let decrease = self.decimal("decrease", raw.decrease.as_ref(), &DECREASE);
        let window = self.duration_within("window", raw.window.as_ref(), &WINDOW);
        let smoothing = self.decimal("smoothing", raw.smoothing.as_ref(), &SMOOTHING);
        let probe_interval =
            self.duration_within("probe_interval", raw.probe_interval.as_ref(), &PROBE_INTERVAL);
        let probe_depth = self.decimal("probe_depth", raw.probe_depth.as_ref(), &PROBE_DEPTH);
        Some(AdaptiveTuning {
            target: target.ok()?,
            tolerance: tolerance.ok()?,
            increase: increase.ok()?,
            decrease: decrease.ok()?,
            window: window.ok()?,
            smoothing: smoothing.ok()?,
            probe_interval: probe_interval.ok()?,
            probe_depth: probe_depth.ok()?,
        })
    }

    fn refuse_without_effect(&mut self, raw: &raw::Adaptive, algorithm: AdaptiveAlgorithm) {
        use AdaptiveAlgorithm::{Aimd, Gradient2};
        let fields: [(&str, Option<Span>, &[AdaptiveAlgorithm]); 3] = [
            ("increase", raw.increase.as_ref().map(|it| it.span), &[Aimd, Gradient2]),
            ("decrease", raw.decrease.as_ref().map(|it| it.span), &[Aimd, Gradient2]),
            ("smoothing", raw.smoothing.as_ref().map(|it| it.span), &[Gradient2]),
        ];
        for (field, span, suitable) in fields {
            let Some(span) = span.filter(|_| !suitable.contains(&algorithm)) else { continue };
            let word = |algorithm| keywords::keyword_of(keywords::ALGORITHMS, algorithm);
            let message = format!("`{field}` has no effect with `algorithm: {}`", word(algorithm));
            let others: Vec<_> = suitable.iter().map(|it| format!("`{}`", word(*it))).collect();
            let fix = format!("remove it, or set `algorithm` to {}", others.join(" or "));
            self.error(Code::Contradiction, span, message, &fix);
        }
    }

    fn duration_within(
        &mut self,
        field: &str,
        word: Option<&Spanned<String>>,
        range: &RangeInclusive<Nanos>,
    ) -> Result<Option<Nanos>, InvalidSetting> {
        let Some(word) = word else { return Ok(None) };
        let found = self.duration(field, word).ok_or(InvalidSetting)?;
        self.within(field, word.span, (found, &word.value), range)
    }

    fn increase(&mut self, word: Option<&Spanned<u32>>) -> Result<Option<u32>, InvalidSetting> {
        let Some(word) = word else { return Ok(None) };
        let text = word.value.to_string();
        self.within("increase", word.span, (word.value, &text), &INCREASE)
    }

    fn decimal(
        &mut self,
        field: &str,
        word: Option<&Spanned<String>>,
        range: &RangeInclusive<Hundredths>,
    ) -> Result<Option<Hundredths>, InvalidSetting> {
        let Some(word) = word else { return Ok(None) };
        let Some(found) = parse_hundredths(&word.value) else {
            let message =
                format!("`{field}: {}` is not a number with up to two decimals", word.value);
            let fix = format!("use for example `{}`", range.start());
            self.error(Code::OutOfRange, word.span, message, &fix);
            return Err(InvalidSetting);
        };
        self.within(field, word.span, (found, &word.value), range)
    }

    fn within<T: Copy + PartialOrd + std::fmt::Display>(
        &mut self,
        field: &str,
        span: Span,
        (value, text): (T, &str),
        range: &RangeInclusive<T>,
    ) -> Result<Option<T>, InvalidSetting> {
        if range.contains(&value) {
            return Ok(Some(value));
        }
        let message = format!("`{field}: {text}` is out of range");
        let fix = format!("use {} to {}", range.start(), range.end());
        self.error(Code::OutOfRange, span, message, &fix);
        Err(InvalidSetting)
    }

    /// Returns the rule that combines the replicas' votes. With `mode: local`, there are no votes, so
    /// the field is an error.
    pub(super) fn aggregate(&mut self, mode: Option<ConcurrencyMode>) -> Option<VoteAggregate> {
        let word = self.raw.adaptive.as_ref().and_then(|adaptive| adaptive.aggregate.as_ref());
        let Some(word) = word else { return Some(VoteAggregate::default()) };
        if mode == Some(ConcurrencyMode::Local) {
            let message = "`aggregate` has no effect with `mode: local`".to_owned();
            let fix = "remove it: replicas vote on an adaptive limit in `mode: shared` only";
            self.error(Code::Contradiction, word.span, message, fix);
        }
        let mut reader = KeywordReader { file: self.file, findings: self.findings };
        reader.keyword(keywords::VOTE_AGGREGATES, "aggregate", Some(word))
    }
}

/// Parses a plain decimal number, such as `2`, `1.5` or `0.75`, without rounding.
pub(super) fn parse_hundredths(text: &str) -> Option<Hundredths> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| {
        !digits.is_empty() && digits.len() <= 6 && digits.bytes().all(|it| it.is_ascii_digit())
    };
    if !is_number(whole) || !is_number(decimals) || 2 < decimals.len() {
        return None;
    }
    let hundredths = format!("{decimals:0<2}").parse::<u32>().ok()?;
    Some(Hundredths(whole.parse::<u32>().ok()?.checked_mul(100)?.checked_add(hundredths)?))
}
