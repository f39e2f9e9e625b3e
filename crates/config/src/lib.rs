//! Converts limits files, given as bytes, to a [`Config`].
//!
//! Guarantees:
//! - A [`Config`] is complete and valid. Every problem of a file is a [`diagnostic::Diagnostic`].
//! - A limits file of envoyproxy/ratelimit has the same meaning here.
//!
//! Not covered:
//! - Reading the files from disk or xDS (see `source`).
//! - Counting hits (see `store`).

pub mod action;
pub mod budget;
pub mod budget_amount;
pub mod calendar;
pub mod concurrency;
mod config_tables;
mod describe;
pub mod descriptor_text;
pub mod diagnostic;
pub mod envoy_filter;
pub mod explain;
mod lint;
mod load;
pub mod manifest;
pub mod penalty;
pub mod prices;
pub mod raw;
pub mod resolve;
mod rule;
pub mod schema;
pub mod settings;
mod table_column;
pub mod table_limits;
pub mod tree;
mod yaml;

pub use describe::strategy_keyword;
pub use load::load;
pub use rule::{
    ChargePolicy, FallbackMode, Limit, LimitMode, LimitWindow, Rule, RuleLimits, RuleNumber,
};
pub use sluicegate_descriptors as hooks;
pub use sluicegate_tables as tables;
pub use table_column::TableColumn;

use sluicegate_kernel as kernel;

use std::collections::HashMap;
use std::sync::Arc;

use fnv::FnvBuildHasher;

use crate::kernel::units::Revision;
pub use crate::kernel::units::Unit;
use action::{Action, ActionEffect, ActionTarget, ForcedDecision};
use budget::UsageRules;
pub use calendar::Calendar;
use table_limits::{SetAmount, TableLimits};
use tree::DescriptorTree;

/// A complete, valid and immutable configuration: all limits that the engine enforces.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The version number of this configuration.
    pub revision: Revision,
    /// The domains, by name. Shared by the versions that differ only in their tables.
    pub domains: Arc<HashMap<Box<str>, Domain, FnvBuildHasher>>,
    /// The limits whose numbers come from tables.
    pub tables: TableLimits,
}

/// The rules of one domain, and the fields that apply to all of them.
#[derive(Clone, Debug)]
pub struct Domain {
    /// The domain's name.
    pub name: Box<str>,
    /// The limits of a check that are charged if at least one of them denies it (field `charge`).
    pub charge: ChargePolicy,
    /// The key of the entry whose value selects the Redis Cluster slot of a counter (field
    /// `colocate`).
    pub colocate: Option<Box<str>>,
    /// The fallback for a limit that the request itself carries, if the domain has no rule for the
    /// descriptor.
    pub on_store_failure: FallbackMode,
    /// How the requests of the domain use budgets (block `usage`).
    pub usage: UsageRules,
    /// The rules of the domain, as a descriptor tree.
    pub tree: DescriptorTree,
}

/// The prefix of a text in `metadata` that stands for a number that JSON cannot express. After the
/// prefix comes `inf`, `-inf` or `NaN`.
///
/// Such numbers are possible in gRPC metadata and in envoyproxy/ratelimit. Unicode reserves this
/// character for internal use by a program, so a file never contains it as text.
pub const NON_FINITE_PREFIX: char = '\u{fdd0}';

impl Config {
    /// Returns `true` if any rule has a rate limit, a concurrency limit or a budget.
    #[must_use]
    pub fn has_limits(&self) -> bool {
        let trees = || self.domains.values().map(|domain| &domain.tree);
        trees().any(|tree| {
            tree.rules().len() + tree.concurrency_limits().len() + tree.budgets().len() != 0
        })
    }

    /// Returns a copy of this configuration with these actions of an operator. Cost: a copy of all
    /// rules.
    #[must_use]
    pub fn with_actions(&self, actions: &[Action]) -> Self {
        let (mut config, mut amounts) = (self.clone(), Vec::new());
        for Action { domain, target, effect, until } in actions {
            if let (ActionTarget::Amount { id, column }, ActionEffect::Set(amount)) =
                (target, *effect)
            {
                let (table, id, column) = (domain.clone(), id.clone(), column.clone());
                amounts.push(SetAmount { table, column, id, amount, until: *until });
                continue;
            }
            let domains = Arc::make_mut(&mut config.domains);
            let Some(domain) = domains.get_mut(domain) else { continue };
            match (target, *effect) {
                (ActionTarget::Rule(path), ActionEffect::Force(verdict)) => {
                    domain.tree.force_decision(path, ForcedDecision { verdict, until: *until });
                }
                // The engine has shadow mode.
                (
                    ActionTarget::Rule(_) | ActionTarget::Amount { .. } | ActionTarget::Everything,
                    _,
                ) => {}
                (ActionTarget::Key(entries), effect) => {
                    domain.tree.add_key_action(entries, effect, *until);
                }
            }
        }
        if !amounts.is_empty() {
            let tables = Arc::clone(&config.tables.tables);
            config.tables = config.limits_with(tables, &amounts);
        }
        config
    }
}
