//! Reads the tables of limits from files, for the commands that decide checks without a replica.
//!
//! Guarantees:
//! - A file is loaded as a replica loads it: bad rows change nothing, and `max_shrink` holds.
//! - Only the tables that the limits read are loaded.
//!
//! Not covered:
//! - Sources that are no files: their `copy` is read instead.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::settings_input::read_file;
use super::table_conflicts::table_conflicts;
use crate::config::settings::{self, SettingsInput, TableSettings, TableSource, Tables};
use crate::config::table_limits::TableLimits;
use crate::config::tables::{LoadReport, Table};
use crate::config::{Config, TableColumn};
use crate::source::tables::{CheckNumber, load_file};

/// The number of bad rows of a table that are named.
const MAX_NAMED: usize = 5;

/// The tables that a flag names: their settings, and files that are read instead of their sources.
#[derive(Clone, Debug)]
pub(super) struct GivenTables {
    flag: &'static str,
    settings: Tables,
    files: BTreeMap<String, PathBuf>,
}

impl GivenTables {
    /// Reads the values of a flag: at most one file of settings, and texts `TABLE=FILE`. The settings
    /// of `old` apply if the flag has none.
    ///
    /// # Errors
    /// A message if the settings are invalid, or have no such table.
    pub(super) fn read(
        flag: &'static str,
        values: &[String],
        old: Option<&Self>,
    ) -> Result<Self, String> {
        let (files, settings): (Vec<&String>, Vec<&String>) =
            values.iter().partition(|value| table_and_file(value).is_some());
        let mut given = match (&*settings, old) {
            ([], Some(old)) if files.is_empty() => return Ok(old.clone()),
            ([], Some(old)) => Self { flag, ..old.clone() },
            ([], None) => Self { flag, settings: Tables::default(), files: BTreeMap::new() },
            ([file], _) => {
                Self { flag, settings: read_settings(flag, file)?, files: BTreeMap::new() }
            }
            ([_, second, ..], _) => {
                return Err(format!(
                    "error: {flag} {second}: {flag} takes one file of settings; write others as TABLE=FILE"
                ));
            }
        };
        let files = files.into_iter().filter_map(|value| table_and_file(value));
        given.files.extend(files.map(|(table, file)| (table.to_owned(), file.into())));
        let is_known = |table: &String| given.settings.0.iter().any(|known| known.name == *table);
        match given.files.keys().find(|table| !is_known(table)) {
            None => Ok(given),
            Some(table) => Err(format!(
                "error: {flag} {table}=FILE: no settings of the table `{table}`; add {} server.yaml",
                old.map_or(flag, |old| old.flag)
            )),
        }
    }

    /// Returns `config` with the tables that it reads, and their bad rows. If the settings are the same,
    /// `old` is the earlier version, as in a running replica: it has the rows of bad ids, and it is the
    /// base of `max_shrink`.
    ///
    /// # Errors
    /// A message if a table cannot be loaded, or if a replica would refuse the limits.
    pub(super) fn load(
        &self,
        config: Config,
        old: &TableLimits,
    ) -> Result<(Config, BadRows), String> {
        if self.settings.0.is_empty() {
            return Ok((config, BadRows::default()));
        }
        if let Some(first) = table_conflicts(&config, &self.settings).first() {
            let (place, message, help) = (&first.location, &first.message, &first.help);
            return Err(format!("error: {place}: {message}; {help}"));
        }
        let checked = config.clone();
        let check = move |table: &str, column: &str, number| {
            checked.check_table_number(table, column, number)
        };
        let of_limits = config.table_columns().map(|(TableColumn { table, .. }, _)| &**table);
        let of_prices = config.price_tables().map(|(table, _)| table);
        let names: HashSet<_> = of_limits.chain(of_prices).collect();
        let (mut tables, mut bad_rows) = (Vec::new(), BadRows::default());
        for table in self.settings.0.iter().filter(|table| names.contains(&*table.name)) {
            let (loaded, report) = self.load_table(table, old.table(&table.name), &check)?;
            bad_rows.add(self.flag, &table.name, report);
            tables.push(Arc::new(loaded));
        }
        Ok((config.with_tables(tables.into()), bad_rows))
    }

    fn load_table(
        &self,
        table: &TableSettings,
        old: Option<&Arc<Table>>,
        check: &CheckNumber,
    ) -> Result<(Table, LoadReport), String> {
        let (name, flag) = (&table.name, self.flag);
        let error = |problem: String| format!("error: table `{name}`: {problem}");
        let spec = Arc::new(table.spec().map_err(error)?);
        let file =
            self.files.get(name).map_or_else(|| file_of(flag, table), |file| Ok(file.clone()));
        let old = old.filter(|old| *old.spec() == spec);
        load_file(&spec, &file.map_err(error)?, old.map(|old| &**old), check).map_err(error)
    }
}

/// Splits `TABLE=FILE`. A text with `/` or `.` before the `=` is a path.
fn table_and_file(value: &str) -> Option<(&str, &str)> {
    value.split_once('=').filter(|(table, _)| !table.contains(['/', '.']))
}

fn read_settings(flag: &str, file: &str) -> Result<Tables, String> {
    let text = read_file(Path::new(file)).map_err(|problem| format!("error: {problem}"))?;
    let input = SettingsInput { file: Some(text), ..SettingsInput::default() };
    match settings::read(&input).map(|loaded| loaded.settings.tables) {
        Ok(Tables(tables)) if tables.is_empty() => {
            Err(format!("error: {flag} {file}: the setting `tables` is empty"))
        }
        Ok(tables) => Ok(tables),
        Err(problems) => {
            Err(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
        }
    }
}

fn file_of(flag: &str, table: &TableSettings) -> Result<PathBuf, String> {
    match (table.source()?, &table.copy) {
        (TableSource::File(path), _) => Ok(path),
        (_, Some(copy)) => Ok(copy.clone()),
        (source, None) => {
            let (source, name) = (source.shown(), &table.name);
            let fix = format!("to read a file, add {flag} {name}=FILE");
            Err(format!("{source} is not a file, and the table has no `copy`; {fix}"))
        }
    }
}

/// The bad rows of tables.
#[derive(Debug, Default)]
pub(super) struct BadRows(Vec<(String, LoadReport)>);

impl BadRows {
    fn add(&mut self, flag: &str, table: &str, report: LoadReport) {
        if 0 < report.bad {
            self.0.push((format!("table `{table}` ({flag})"), report));
        }
    }

    /// Adds bad rows. Equal ones are added once.
    pub(super) fn append(&mut self, other: Self) {
        for bad in other.0 {
            if !self.0.contains(&bad) {
                self.0.push(bad);
            }
        }
    }

    /// Returns the numbers of bad rows.
    pub(super) fn summaries(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(table, report)| format!("{table} has bad rows: {}", report.bad))
    }

    /// Prints the numbers of bad rows, and the first ones.
    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.summaries().zip(&self.0).try_for_each(|(summary, (_, report))| {
            let first: Vec<_> =
                report.bad_rows.iter().take(MAX_NAMED).map(ToString::to_string).collect();
            writeln!(out, "warning: {summary}, such as {}", first.join("; "))
        })
    }
}
