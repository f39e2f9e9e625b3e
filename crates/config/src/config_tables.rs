//! The limits of a configuration that read tables.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::budget::{BudgetRule, BudgetUnit};
use crate::concurrency::ConcurrencyLimit;
use crate::table_column::TableColumn;
use crate::table_limits::{SetAmount, TableLimits};
use crate::tables::Table;
use crate::tree::DescriptorTree;
use crate::{Config, Limit};

impl Config {
    /// Returns this configuration with other versions of the tables. Shares all rules.
    #[must_use]
    pub fn with_tables(&self, tables: Arc<[Arc<Table>]>) -> Self {
        let tables = self.limits_with(tables, &[]);
        Self { revision: self.revision, domains: Arc::clone(&self.domains), tables }
    }

    /// Returns the limits for these versions of the tables, with amounts that operators set.
    pub(crate) fn limits_with(&self, tables: Arc<[Arc<Table>]>, set: &[SetAmount]) -> TableLimits {
        let weights = self.weight_columns().map(|(_, column)| column);
        let (rates, permits) = (self.rates_of_tables(), self.permits_of_tables());
        let limits = (rates, permits, self.budgets_of_tables(), weights);
        self.tables.with_tables(limits, tables, set)
    }

    /// Returns the rate limits that read tables, with their columns.
    pub fn rates_of_tables(&self) -> impl Iterator<Item = (&Limit, &TableColumn)> {
        let trees = self.domains.values().map(|domain| &domain.tree);
        let limits = trees.flat_map(DescriptorTree::rules).flat_map(|rule| &rule.limits);
        limits.filter_map(|limit| Some((limit, limit.from.as_deref()?)))
    }

    fn permits_of_tables(&self) -> impl Iterator<Item = (&ConcurrencyLimit, &TableColumn)> {
        let trees = self.domains.values().map(|domain| &domain.tree);
        let limits = trees.flat_map(DescriptorTree::concurrency_limits);
        limits.filter_map(|limit| Some((limit, limit.from.as_deref()?)))
    }

    /// Returns the columns with the weights of customers, each with its limit.
    fn weight_columns(&self) -> impl Iterator<Item = (&ConcurrencyLimit, &TableColumn)> {
        let trees = self.domains.values().map(|domain| &domain.tree);
        let limits = trees.flat_map(DescriptorTree::concurrency_limits);
        limits.filter_map(|limit| Some((limit, limit.requesters.as_ref()?.weight.as_ref()?)))
    }

    /// Returns the budgets that read tables, with their columns.
    pub fn budgets_of_tables(&self) -> impl Iterator<Item = (&BudgetRule, &TableColumn)> {
        let trees = self.domains.values().map(|domain| &domain.tree);
        let budgets = trees.flat_map(DescriptorTree::budgets);
        budgets.filter_map(|budget| Some((budget, budget.from.as_deref()?)))
    }

    /// Returns an error if a limit that reads this column of a table cannot count `number`.
    ///
    /// # Errors
    /// The path of the first such limit, and the reason.
    pub fn check_table_number(
        &self,
        table: &str,
        column: &str,
        number: NonZeroU32,
    ) -> Result<(), String> {
        for rule in self.domains.values().flat_map(|domain| domain.tree.rules()) {
            for limit in &rule.limits {
                let reads = limit.from.as_ref();
                if reads.is_some_and(|from| *from.table == *table && *from.column == *column) {
                    let sized = limit.resized(number.get());
                    sized.map_err(|error| format!("the limit `{}`: {error}", rule.path))?;
                }
            }
        }
        Ok(())
    }

    /// Returns `true` for a column with the weights of customers.
    #[must_use]
    pub fn is_weight(&self, column: &TableColumn) -> bool {
        self.weight_columns().any(|(_, weight)| std::ptr::eq(weight, column))
    }

    /// Returns the columns that limits read, each with the place of its limit, `file:line`.
    pub fn table_columns(&self) -> impl Iterator<Item = (&TableColumn, &str)> {
        let trees = self.domains.values().map(|domain| &domain.tree);
        let rates = trees.flat_map(DescriptorTree::rules).flat_map(|rule| {
            let columns = rule.limits.iter().filter_map(|limit| limit.from.as_deref());
            columns.map(|column| (column, &*rule.location))
        });
        let permits = self.permits_of_tables().chain(self.weight_columns());
        let permits = permits.map(|(limit, column)| (column, &*limit.location));
        let budgets = self.budgets_of_tables().map(|(budget, column)| (column, &*budget.location));
        rates.chain(permits).chain(budgets)
    }

    /// Returns the tables with the prices of models, each with the place of a budget that needs it,
    /// `file:line`.
    pub fn price_tables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.domains.values().filter_map(|domain| {
            let prices = domain.usage.prices.as_deref()?;
            let is_money = |budget: &&BudgetRule| matches!(budget.unit, BudgetUnit::Money(_));
            Some((prices, &*domain.tree.budgets().find(is_money)?.location))
        })
    }
}
