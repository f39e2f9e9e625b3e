//! Parses and validates the setting `tables`.
//!
//! Guarantees:
//! - Every error message contains its position inside the setting.
//!
//! Not covered:
//! - Reading a table (see `source` in the binary).

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::value::{Shape, Value, block_schema};
use crate::kernel::units::Nanos;
use crate::tables::{Amount, PlanAmounts, RowFormat, TableSpec};

/// The largest number of tables.
const MAX_TABLES: usize = 16;

/// The pause between two reads of a source.
const DEFAULT_REFRESH: &str = "1s";

/// The largest part of the ids that a load may remove.
const DEFAULT_MAX_SHRINK: &str = "10%";

/// All tables that limits can read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tables(pub Vec<TableSettings>);

/// A table that limits can read: its name, its source and its plans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TableSettings {
    /// The name. A rule reads a column of the table with `from: NAME.COLUMN`.
    pub name: String,
    /// The URL of the source: `file:///PATH` of a file with CSV (`.csv`) or JSON lines (`.jsonl`).
    pub source: String,
    /// The pause between two reads of the source, `100ms` to `24h`.
    #[serde(default = "default_refresh")]
    #[schemars(with = "String")]
    pub refresh: String,
    /// The largest part of the ids that one load may remove, `0%` to `100%`. A load that would remove
    /// more changes nothing.
    #[serde(default = "default_max_shrink")]
    pub max_shrink: String,
    /// The file with the last good copy of the table. A replica reads it at its start, and serves with
    /// it until the source answers. Without it, a replica is ready after the first read of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<PathBuf>,
    /// The plans by name, each with its amounts by column: a number, `unlimited` or `blocked`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub plans: BTreeMap<String, BTreeMap<String, PlanAmount>>,
}

/// An amount of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PlanAmount {
    /// A number of requests.
    Number(u32),
    /// `unlimited` or `blocked`.
    Word(String),
}

/// The source of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableSource {
    /// A file of rows.
    File(PathBuf, RowFormat),
}

fn default_refresh() -> String {
    DEFAULT_REFRESH.to_owned()
}

fn default_max_shrink() -> String {
    DEFAULT_MAX_SHRINK.to_owned()
}

impl TableSettings {
    /// Returns the definition of the table.
    ///
    /// # Errors
    /// An invalid name, plan, amount or `max_shrink`.
    pub fn spec(&self) -> Result<TableSpec, String> {
        let percent = self.max_shrink.strip_suffix('%').and_then(|number| number.parse().ok());
        let percent = percent.filter(|percent: &u8| *percent <= 100);
        let max_shrink = percent.ok_or_else(|| "`max_shrink` must be `0%` to `100%`".to_owned())?;
        let plans = self
            .plans
            .iter()
            .map(|(name, amounts)| Ok((name.as_str().into(), plan(name, amounts)?)));
        TableSpec::new(&self.name, plans.collect::<Result<_, String>>()?, max_shrink)
            .map_err(|error| error.to_string())
    }

    /// Returns the source.
    ///
    /// # Errors
    /// The URL has another scheme, or the file name another ending.
    pub fn source(&self) -> Result<TableSource, String> {
        let Some(path) = self.source.strip_prefix("file://").filter(|path| path.starts_with('/'))
        else {
            return Err(
                "`source` must be a URL such as `file:///etc/sluicegate/customers.csv`".to_owned()
            );
        };
        let format = RowFormat::of_name(path).ok_or_else(|| {
            "`source` must name a file that ends with `.csv`, `.jsonl` or `.ndjson`".to_owned()
        })?;
        Ok(TableSource::File(PathBuf::from(path), format))
    }

    /// Returns the pause between two reads.
    ///
    /// # Errors
    /// The text is not a duration from 100 ms to 24 h.
    pub fn refresh(&self) -> Result<Nanos, String> {
        let bounds = Nanos(100 * Nanos::MILLI.0)..=Nanos::from_secs(24 * 60 * 60);
        let pause = Nanos::read(&[&self.refresh]).filter(|pause| bounds.contains(pause));
        pause.ok_or_else(|| "`refresh` must be a duration from `100ms` to `24h`".to_owned())
    }

    fn check(&self) -> Result<(), String> {
        self.spec()?;
        self.source()?;
        self.refresh().map(drop)
    }
}

fn plan(name: &str, amounts: &BTreeMap<String, PlanAmount>) -> Result<PlanAmounts, String> {
    let amount = |(column, amount): (&String, &PlanAmount)| {
        let parsed = match amount {
            PlanAmount::Number(number) => Ok(Amount::from_number(*number)),
            PlanAmount::Word(word) => word.parse(),
        };
        let parsed = parsed.map_err(|error| {
            let PlanAmount::Word(word) = amount else { return error.to_string() };
            format!("`plans.{name}.{column}`: `{word}` {error}")
        });
        Ok((column.as_str().into(), parsed?))
    };
    amounts.iter().map(amount).collect()
}

impl Tables {
    /// Parses the tables as JSON.
    ///
    /// # Errors
    /// The first unknown, missing or invalid field.
    pub fn parse(json: &str) -> Result<Self, String> {
        let mut reader = serde_json::Deserializer::from_str(json);
        let tables: Self = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let (path, problem) = (error.path().to_string(), error.inner().to_string());
            let problem = problem.split(" at line ").next().unwrap_or_default();
            if path == "." { problem.to_owned() } else { format!("at `{path}`: {problem}") }
        })?;
        if MAX_TABLES < tables.0.len() {
            return Err(format!("more than {MAX_TABLES} tables"));
        }
        let mut names = HashSet::new();
        for (at, table) in tables.0.iter().enumerate() {
            let is_new = names.insert(&table.name);
            let unique = || format!("has the name `{}` of another table", table.name);
            let checked = table.check().and_then(|()| if is_new { Ok(()) } else { Err(unique()) });
            checked.map_err(|problem| format!("at `[{at}]`: {problem}"))?;
        }
        Ok(tables)
    }
}

impl Value for Tables {
    const SHAPE: Shape = Shape::Block;

    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [text] => Self::parse(text).ok(),
            _ => None,
        }
    }

    fn accepts() -> String {
        "a list of tables: name, source, and plans with amounts".to_owned()
    }

    fn show(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    fn schema() -> Json {
        block_schema::<Self>()
    }

    fn why(text: &str) -> Option<String> {
        Self::parse(text).err()
    }
}
