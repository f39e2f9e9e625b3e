//! Reads the `defaults` of a domain.
//!
//! Guarantees:
//! - An invalid field is `Err`, so that validations that depend on it are skipped.
//!
//! Not covered:
//! - The fields of one limit (see [`super::rate_limit_block`]).

use super::findings::FileFindings;
use super::keyword_reader::{InvalidSetting, KeywordReader};
use super::keywords::{self, ExcessKeyword, ModeKeyword, StrategyKeyword};
use super::overshoot::OvershootAmount;
use crate::{FallbackMode, raw};

/// The `defaults` of a domain, validated.
///
/// `Err` means that the field has an invalid value. Validations that depend on it are skipped,
/// because the intended value may be valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DomainDefaults {
    pub(super) strategy: Result<StrategyKeyword, InvalidSetting>,
    pub(super) on_excess: Result<Option<ExcessKeyword>, InvalidSetting>,
    pub(super) mode: Result<ModeKeyword, InvalidSetting>,
    pub(super) overshoot: Result<Option<OvershootAmount>, InvalidSetting>,
    pub(super) on_store_failure: FallbackMode,
}

impl Default for DomainDefaults {
    fn default() -> Self {
        Self {
            strategy: Ok(StrategyKeyword::default()),
            on_excess: Ok(None),
            mode: Ok(ModeKeyword::default()),
            overshoot: Ok(None),
            on_store_failure: FallbackMode::default(),
        }
    }
}

impl DomainDefaults {
    pub(super) fn unknown() -> Self {
        Self {
            strategy: Err(InvalidSetting),
            on_excess: Err(InvalidSetting),
            mode: Err(InvalidSetting),
            overshoot: Err(InvalidSetting),
            on_store_failure: FallbackMode::default(),
        }
    }
}

pub(super) fn read_defaults(
    raw: &raw::Defaults,
    file: usize,
    findings: &mut FileFindings<'_>,
) -> DomainDefaults {
    let mut reader = KeywordReader { file, findings };
    let base =
        if raw.is_incomplete { DomainDefaults::unknown() } else { DomainDefaults::default() };
    let DomainDefaults { strategy, on_excess, mode, on_store_failure, .. } = base;
    let word = raw.on_store_failure.as_ref();
    let failure = reader.keyword(keywords::FALLBACK_MODES, "on_store_failure", word);
    DomainDefaults {
        strategy: reader.keyword_or(
            strategy,
            keywords::STRATEGIES,
            "strategy",
            raw.strategy.as_ref(),
        ),
        on_excess: reader.on_excess_or(on_excess, raw.on_excess.as_ref()),
        mode: reader.keyword_or(mode, keywords::MODES, "mode", raw.mode.as_ref()),
        overshoot: reader.default_overshoot_amount(raw.max_overshoot.as_ref()),
        on_store_failure: failure.unwrap_or(on_store_failure),
    }
}
