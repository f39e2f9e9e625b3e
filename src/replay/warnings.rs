//! Remarks about the validity of a replay.

use std::collections::BTreeSet;

use crate::config::{Config, TableColumn};
use crate::recording::percent::Percent;
use crate::recording::{RecordingEnd, RecordingHeader};

/// Returns remarks about a recording from which checks are missing.
pub(super) fn recording_warnings(
    header: &RecordingHeader,
    end: Option<RecordingEnd>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    match end {
        None => warnings.push("the recording was interrupted; its last calls are missing".into()),
        Some(RecordingEnd { dropped: 0, .. }) => {}
        Some(RecordingEnd { dropped, .. }) => {
            warnings.push(format!("{dropped} calls are missing; record a smaller sample"));
        }
    }
    if header.sample != Percent::ALL {
        warnings.push(format!(
            "sample of {} of the keys: checks have only their sampled descriptors",
            header.sample
        ));
    }
    warnings
}

/// Returns the patterns of `new` that `old` lacks.
pub(super) fn new_patterns(old: &Config, new: &Config) -> Vec<String> {
    let patterns = |config: &Config| {
        let trees = config.domains.values().map(|domain| &domain.tree);
        trees.flat_map(|tree| tree.patterns_of_all_levels().map(str::to_owned)).collect()
    };
    let (old, new): (BTreeSet<String>, BTreeSet<String>) = (patterns(old), patterns(new));
    new.difference(&old).cloned().collect()
}

/// Returns remarks about limits that read a table or a column which is not there.
pub(super) fn missing_tables<'c>(configs: impl Iterator<Item = &'c Config>) -> Vec<String> {
    let all: BTreeSet<_> =
        configs.flat_map(|config| unread_columns(config).chain(missing_prices(config))).collect();
    all.into_iter().collect()
}

fn unread_columns(config: &Config) -> impl Iterator<Item = String> {
    let rates = config.rates_of_tables().map(|(_, column)| column);
    let columns = rates.chain(config.budgets_of_tables().map(|(_, column)| column));
    columns.filter_map(|TableColumn { table, column, .. }| {
        let effect = "so the limit's own number applies";
        match config.tables.table(table) {
            None => Some(format!("table `{table}` is not given (--old-tables), {effect}")),
            Some(read) if read.column(column).is_some() => None,
            Some(_) => Some(format!("table `{table}` has no column `{column}`, {effect}")),
        }
    })
}

fn missing_prices(config: &Config) -> impl Iterator<Item = String> {
    let missing = config.price_tables().filter(|(table, _)| config.tables.table(table).is_none());
    missing.map(|(table, _)| {
        format!("table `{table}` is not given (--old-tables), so budgets of money deny every check")
    })
}
