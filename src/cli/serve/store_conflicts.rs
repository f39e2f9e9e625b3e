//! Finds limits that the configured Redis cannot enforce as their file demands.
//!
//! Guarantees:
//! - With `charge: all_or_nothing`, one script can charge all limits of a check.
//!
//! Not covered:
//! - Slots of Sluicegate's own keys (see the field `colocate`).
//! - Limits that requests carry.
//! - A proxy in front of Redis, which is found later.

use crate::cli::table_conflicts::Conflict;
use crate::config::diagnostic::Code;
use crate::config::settings::{KeyFormat, RedisEndpoint, RedisUrl, Settings, StoreUrl};
use crate::config::{ChargePolicy, Config, Domain, Limit, LimitMode, LimitWindow, Rule};
use crate::kernel::rate::Strategy;
use crate::kernel::units::Nanos;

pub(super) fn store_conflicts(config: &Config, settings: &Settings) -> Vec<Conflict> {
    let mut conflicts = Vec::new();
    for domain in config.domains.values() {
        if settings.compat.store.key_format == KeyFormat::Compat {
            conflicts.extend(lease_conflicts(domain));
        }
        if domain.charge == ChargePolicy::AllOrNothing {
            conflicts.extend(second_redis_conflicts(domain, settings));
            conflicts.extend(compat_key_conflicts(domain, settings));
        }
    }
    conflicts
}

/// Finds leased limits that conflict with `compat.store.key_format: compat`.
/// envoyproxy/ratelimit uses the same counters, and ignores leases.
fn lease_conflicts(domain: &Domain) -> Vec<Conflict> {
    let is_leased =
        |limit: &Limit| is_compat_counter(limit) && matches!(limit.mode, LimitMode::Leased(_));
    let message = "`mode: leased`, which `compat.store.key_format: compat` does not support";
    let help = "use `mode: exact` or `cached_deny`; another strategy, or `per`, can be leased";
    conflicts_of(domain, is_leased, message, help)
}

/// Finds all-or-nothing limits per second, whose counters are not in the Redis of the others.
fn second_redis_conflicts(domain: &Domain, settings: &Settings) -> Vec<Conflict> {
    let is_second = |limit: &Limit| limit.window.length() == Nanos::SECOND && is_joint(limit);
    if settings.compat.store.per_second_url.is_none() || all_joint_limits(domain, is_second) {
        return Vec::new();
    }
    let message = "`charge: all_or_nothing`, but `compat.store.per_second_url` has its counters, \
                   not those of other limits";
    let help = "remove `compat.store.per_second_url`, or write `charge: each`";
    conflicts_of(domain, is_second, message, help)
}

/// Finds all-or-nothing limits with keys of envoyproxy/ratelimit, which one script cannot charge
/// with other keys, or with keys in other slots of a Cluster.
fn compat_key_conflicts(domain: &Domain, settings: &Settings) -> Vec<Conflict> {
    let store = &settings.compat.store;
    let StoreUrl::Redis(url) = &settings.store.url else { return Vec::new() };
    let is_cluster = |url: &RedisUrl| matches!(url.endpoint, RedisEndpoint::Cluster(_));
    let has_cluster = is_cluster(url) || store.per_second_url.as_ref().is_some_and(is_cluster);
    let is_whole = !has_cluster && all_joint_limits(domain, is_compat_counter);
    if store.key_format != KeyFormat::Compat || is_whole {
        return Vec::new();
    }
    let message = "`charge: all_or_nothing`, but `compat.store.key_format: compat` lets no script \
                   charge its counters with all others";
    let help = "use `compat.store.key_format: own`, or write `charge: each`";
    conflicts_of(domain, is_compat_counter, message, help)
}

/// Returns a conflict for each rule of `domain` with such a limit.
fn conflicts_of(
    domain: &Domain,
    is_conflict: impl Fn(&Limit) -> bool,
    message: &str,
    help: &str,
) -> Vec<Conflict> {
    let rules = domain.tree.rules().filter(|rule| rule.limits.iter().any(&is_conflict));
    let conflict = |rule: &Rule| Conflict {
        location: rule.location.clone(),
        code: Code::Contradiction,
        message: format!("`{}` has {message}", rule.path),
        help: help.to_owned(),
    };
    rules.map(conflict).collect()
}

fn all_joint_limits(domain: &Domain, is_such: impl Fn(&Limit) -> bool) -> bool {
    domain.tree.rules().flat_map(|rule| &rule.limits).filter(|limit| is_joint(limit)).all(is_such)
}

/// Returns `true` if `charge: all_or_nothing` applies to the limit.
fn is_joint(limit: &Limit) -> bool {
    !limit.strategy.on_excess().is_charge()
}

/// Returns `true` if the counter has a key of envoyproxy/ratelimit with
/// `compat.store.key_format: compat`.
fn is_compat_counter(limit: &Limit) -> bool {
    limit.name.is_none()
        && is_joint(limit)
        && matches!(limit.strategy, Strategy::FixedWindow(_))
        && matches!(limit.window, LimitWindow::Unit(_))
}
