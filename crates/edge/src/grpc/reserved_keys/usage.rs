//! The usage in the entries of a settle.
//!
//! | entries | usage |
//! |---|---|
//! | `settle_input` 100, `settle_cached_input` 80, `settle_output` 20 | 20 input, 80 cached, 20 output |
//! | `settle` 120, none of the above | 120 tokens of any kind |
//! | 0 or 1 tokens in all, or no number, and `status` 400 to 599 | nothing: the request failed |
//! | 0 or 1 tokens in all, or no number | unknown: the held amount is charged |
//!
//! Envoy sends 1 if a number is missing in the metadata, and no request uses only one token.

use super::entry::{ReservedEntry, ReservedKey};
use crate::config::prices::TokenCounts;
use crate::engine::budgets::RequestUsage;

/// Returns what a request used. `hits_addend` is that of the whole call; 0 if it has none. If several
/// descriptors have a number of one kind, the largest counts.
pub(super) fn request_usage(
    reserved: &[ReservedEntry],
    status: Option<u64>,
    hits_addend: u32,
) -> RequestUsage {
    let of_kind = |key| {
        let entries = reserved.iter().filter(move |entry| entry.key == key);
        entries.filter_map(|entry| entry.hits).max()
    };
    let input = of_kind(ReservedKey::SettleInput);
    let output = of_kind(ReservedKey::SettleOutput);
    let cached_input = of_kind(ReservedKey::SettleCachedInput).unwrap_or(0);
    let tokens = if input.is_none() && output.is_none() {
        let any = of_kind(ReservedKey::Settle).unwrap_or(hits_addend.into());
        TokenCounts { any, ..TokenCounts::default() }
    } else {
        let input = input.unwrap_or(0).saturating_sub(cached_input);
        TokenCounts { input, cached_input, output: output.unwrap_or(0), any: 0 }
    };
    match (tokens.total(), status) {
        (2.., _) => RequestUsage::Tokens(tokens),
        (_, Some(400..=599)) => RequestUsage::Nothing,
        _ => RequestUsage::Unknown,
    }
}
