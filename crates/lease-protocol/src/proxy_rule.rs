//! The message of the rule of a descriptor.
//!
//! Guarantees:
//! - The validity of a rule and the duration of its leases never grow by a conversion.

use std::sync::Arc;

use sluicegate_kernel::decision::Verdict;
use sluicegate_kernel::lease::sizer::LeaseSizing;
use sluicegate_kernel::lease::{LeaseTerms, Overshoot};
use sluicegate_kernel::proxy_rule::{
    CustomerWeight, ProxyHandling, ProxyLimit, ProxyRule, TableRow,
};
use sluicegate_kernel::units::{Hits, Nanos};

use crate::api::lease_sizes::Sizes;
use crate::api::leased_limit::OnFailure;
use crate::api::rule_reply::Handling;
use crate::concurrency::{concurrency_message, concurrency_rule};
use crate::{api, entries, nanos, strategy, strategy_message};

/// Converts a message to a rule. `None` if a part is missing, or has a value that this version of
/// the protocol does not define.
#[must_use]
pub fn proxy_rule(wire: &api::RuleReply) -> Option<ProxyRule> {
    let handling = match Handling::try_from(wire.handling).ok()? {
        Handling::Unspecified => return None,
        Handling::Unlimited => ProxyHandling::Unlimited,
        Handling::Leased if wire.leased.is_empty() => return None,
        Handling::Leased => {
            ProxyHandling::Leased(wire.leased.iter().map(proxy_limit).collect::<Option<_>>()?)
        }
        Handling::Ask => ProxyHandling::Ask,
        Handling::AskTogether => ProxyHandling::AskTogether,
        Handling::ForcedAllow => ProxyHandling::Forced(Verdict::Allow),
        Handling::ForcedDeny => ProxyHandling::Forced(Verdict::Deny),
    };
    let concurrency = match &wire.concurrency {
        Some(limit) => Some(Box::new(concurrency_rule(limit)?)),
        None => None,
    };
    let entry = |entry: &api::LeaseEntry| (entry.key.as_str().into(), entry.value.as_str().into());
    Some(ProxyRule {
        handling,
        limits: wire.limits,
        valid_for: wire.valid_for_us.map(nanos),
        is_for_any_values: wire.any_values,
        path: text(&wire.rule),
        is_shadow: wire.shadow,
        counter: wire.counter.iter().map(entry).collect(),
        concurrency,
        rows: wire.rows.iter().map(|row| TableRow::new(&row.table, &row.id)).collect(),
        weights: wire.weights.iter().map(customer_weight).collect(),
    })
}

/// Converts a rule to its message. Validity and lease durations are rounded down to microseconds.
#[must_use]
pub fn proxy_rule_message(rule: &ProxyRule) -> api::RuleReply {
    let (handling, limits) = match &rule.handling {
        ProxyHandling::Unlimited => (Handling::Unlimited, &[][..]),
        ProxyHandling::Leased(limits) => (Handling::Leased, &limits[..]),
        ProxyHandling::Ask => (Handling::Ask, &[][..]),
        ProxyHandling::AskTogether => (Handling::AskTogether, &[][..]),
        ProxyHandling::Forced(Verdict::Allow) => (Handling::ForcedAllow, &[][..]),
        ProxyHandling::Forced(Verdict::Deny) => (Handling::ForcedDeny, &[][..]),
    };
    api::RuleReply {
        handling: handling.into(),
        limits: rule.limits,
        valid_for_us: rule.valid_for.map(micros_down),
        any_values: rule.is_for_any_values,
        rule: rule.path.as_deref().unwrap_or_default().to_owned(),
        shadow: rule.is_shadow,
        counter: entries(rule.counter.iter().map(|(key, value)| (&**key, &**value))),
        leased: limits.iter().map(limit_message).collect(),
        concurrency: rule.concurrency.as_deref().map(concurrency_message),
        rows: rule.rows.iter().map(row_message).collect(),
        weights: rule.weights.iter().map(weight_message).collect(),
    }
}

/// Returns the hashes of rows of tables.
#[must_use]
pub fn row_hashes<R: FromIterator<u64>>(wire: &[api::TableRow]) -> R {
    wire.iter().map(|row| TableRow::new(&row.table, &row.id).hash_value()).collect()
}

/// Converts the name of a row of a table.
#[must_use]
pub fn row_message(row: &TableRow) -> api::TableRow {
    api::TableRow { table: row.table.to_string(), id: row.id.to_string() }
}

fn customer_weight(wire: &api::CustomerWeight) -> CustomerWeight {
    let (key, column) = (wire.key.as_str().into(), wire.column.as_str().into());
    CustomerWeight { key, column, weight: wire.weight }
}

fn weight_message(weight: &CustomerWeight) -> api::CustomerWeight {
    let (key, column) = (weight.key.to_string(), weight.column.to_string());
    api::CustomerWeight { key, column, weight: weight.weight }
}

fn proxy_limit(wire: &api::LeasedLimit) -> Option<ProxyLimit> {
    let overshoot =
        wire.max_overshoot.map_or(Overshoot::InWindow, |most| Overshoot::AtMost(Hits(most)));
    let sizing = match wire.sizes.as_ref()?.sizes? {
        Sizes::Fixed(hits) => LeaseSizing::Fixed(Hits(hits)),
        Sizes::Recent(_) => LeaseSizing::Recent,
        Sizes::Learned(_) => LeaseSizing::Learned,
    };
    Some(ProxyLimit {
        name: text(&wire.name),
        requests: wire.requests,
        period: Nanos(wire.period_ns),
        strategy: strategy(wire.strategy.as_ref()?)?,
        terms: LeaseTerms { overshoot, duration: nanos(wire.duration_us), sizing },
        on_failure: match OnFailure::try_from(wire.on_failure).ok()? {
            OnFailure::Unspecified => None,
            OnFailure::Allow => Some(Verdict::Allow),
            OnFailure::Deny => Some(Verdict::Deny),
        },
    })
}

fn limit_message(limit: &ProxyLimit) -> api::LeasedLimit {
    let LeaseTerms { overshoot, duration, sizing } = limit.terms;
    let sizes = match sizing {
        LeaseSizing::Fixed(Hits(hits)) => Sizes::Fixed(hits),
        LeaseSizing::Recent => Sizes::Recent(true),
        LeaseSizing::Learned => Sizes::Learned(true),
    };
    let on_failure = match limit.on_failure {
        None => OnFailure::Unspecified,
        Some(Verdict::Allow) => OnFailure::Allow,
        Some(Verdict::Deny) => OnFailure::Deny,
    };
    api::LeasedLimit {
        name: limit.name.as_deref().unwrap_or_default().to_owned(),
        requests: limit.requests,
        period_ns: limit.period.0,
        strategy: Some(strategy_message(&limit.strategy)),
        max_overshoot: match overshoot {
            Overshoot::InWindow => None,
            // The hits of occupying leases occupy the limit in the service, not in the proxy.
            Overshoot::AtMost(Hits(most)) | Overshoot::Occupying(Hits(most)) => Some(most),
        },
        duration_us: micros_down(duration),
        sizes: Some(api::LeaseSizes { sizes: Some(sizes) }),
        on_failure: on_failure.into(),
    }
}

fn text(wire: &str) -> Option<Arc<str>> {
    (!wire.is_empty()).then(|| wire.into())
}

/// Converts to microseconds, rounded down.
const fn micros_down(time: Nanos) -> u64 {
    time.0 / Nanos::MICRO.0
}

#[cfg(test)]
mod tests;
