//! Finds limits that read tables which the settings do not have, or whose plans they cannot count.

use std::num::NonZeroU32;

use crate::config::diagnostic::Code;
use crate::config::settings::{PlanAmount, Tables};
use crate::config::{Config, TableColumn};

const MISSING_TABLE_FIX: &str = "add the table to the settings, or correct its name";

/// A limit that conflicts with a setting.
pub(super) struct Conflict {
    /// The file and line of the rule, `file:line`.
    pub(super) location: Box<str>,
    pub(super) code: Code,
    pub(super) message: String,
    pub(super) help: String,
}

/// Finds limits that read a table which the settings do not have, or whose plans they cannot count,
/// and budgets without their table of prices.
pub(super) fn table_conflicts(config: &Config, tables: &Tables) -> Vec<Conflict> {
    let mut conflicts = Vec::new();
    for (read, location) in config.table_columns() {
        let TableColumn { table, column, .. } = read;
        let field = if config.is_weight(read) { "weight" } else { "from" };
        let conflict = |message, help: &str| Conflict {
            location: location.into(),
            code: Code::BadTableColumn,
            message,
            help: help.to_owned(),
        };
        let Some(settings) = tables.0.iter().find(|settings| *settings.name == **table) else {
            let message =
                format!("`{field}: {table}.{column}`: the setting `tables` has no `{table}`");
            conflicts.push(conflict(message, MISSING_TABLE_FIX));
            continue;
        };
        let plans = settings.plans.iter();
        let numbers = plans.filter_map(|(plan, amounts)| Some((plan, amounts.get(&**column)?)));
        for (plan, amount) in numbers {
            let PlanAmount::Number(number) = amount else { continue };
            let Some(number) = NonZeroU32::new(*number) else { continue };
            if let Err(problem) = config.check_table_number(table, column, number) {
                let message = format!("`from: {table}.{column}`: plan `{plan}`: {problem}");
                conflicts.push(conflict(message, "use a smaller number, or another period"));
            }
        }
    }
    conflicts.extend(missing_prices(config, tables));
    conflicts
}

fn missing_prices<'c>(config: &'c Config, tables: &Tables) -> impl Iterator<Item = Conflict> + 'c {
    let known: Vec<_> = tables.0.iter().map(|settings| settings.name.clone()).collect();
    let missing =
        config.price_tables().filter(move |(table, _)| !known.iter().any(|it| it == table));
    missing.map(|(table, location)| Conflict {
        location: location.into(),
        code: Code::BadTableColumn,
        message: format!("`prices: {table}`: the setting `tables` has no `{table}`"),
        help: MISSING_TABLE_FIX.to_owned(),
    })
}
