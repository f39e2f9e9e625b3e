//! Finds the limit of an id in its table, for the plan of a check.
//!
//! Guarantees:
//! - An id that is `unlimited` or `blocked` changes no counter.
//! - A refund of a blocked id changes its counter.

use crate::config::table_limits::FromTable;
use crate::config::{Config, Limit, Rule};
use crate::decide::limit_plan::LimitPlan;
use crate::decide::plan::{CheckPlan, PlanInstants};
use crate::kernel::decision::{Cost, Descriptor, Verdict};
use crate::telemetry::event::{Event as _, UnknownTableId};

impl<'c> CheckPlan<'c> {
    /// Returns the limit that applies to the id of a descriptor. If its table says `unlimited` or
    /// `blocked`, adds the plan and returns `None`: no counter is charged.
    #[inline]
    pub(super) fn limit_from_table(
        &mut self,
        config: &'c Config,
        (rule, limit): (&'c Rule, &'c Limit),
        descriptor: &Descriptor<'_>,
        instants: PlanInstants,
    ) -> Option<&'c Limit> {
        let Some(column) = limit.from.as_deref() else { return Some(limit) };
        let id = descriptor.entries.get(column.entry).map_or("", |(_, id)| *id);
        match config.tables.rate_limit(column, id, instants.forced_at) {
            FromTable::Limit(sized) => return Some(sized),
            FromTable::RuleNumber => return Some(limit),
            FromTable::UnknownId => {
                UnknownTableId.emit();
                return Some(limit);
            }
            FromTable::Unlimited => self.limits.push(LimitPlan::Unlimited(rule)),
            // A refund changes only the counter, which may be older than the block.
            FromTable::Blocked if matches!(descriptor.cost, Cost::Refund(_)) => return Some(limit),
            FromTable::Blocked => self.limits.push(LimitPlan::Forced(rule, limit, Verdict::Deny)),
        }
        None
    }
}
