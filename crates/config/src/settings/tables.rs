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

use super::events::HttpUrl;
use super::postgres_url::PostgresUrl;
use super::redis_url::RedisUrl;
use super::value::{Shape, Value, block_schema};
use crate::kernel::units::Nanos;
use crate::tables::{Amount, PlanAmounts, TableSpec};

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
    /// The URL of the source: `file:///PATH` or `https://HOST/PATH` of CSV or JSON lines,
    /// `postgres://USER@HOST/DATABASE`, or `redis://HOST:PORT`. The last two are written as in
    /// `store.url`.
    pub source: String,
    /// For PostgreSQL: the query of all rows. It has the columns `id`, and as needed `plan`, `until`
    /// and amounts. For Redis: the key of a hash with the rows by id, each a JSON object or the name of
    /// a plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<String>,
    /// For PostgreSQL: the query of the rows that changed since the instant `$1`, a `timestamptz`. A
    /// row with `deleted` removes its id. With it, all rows are read once an hour. For Redis: the key of
    /// a text that every writer changes, such as a number. The hash is then read when it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<String>,
    /// For PostgreSQL: the channel on which a notification (`NOTIFY`) causes a read at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
    /// For PostgreSQL and Redis: the file with the password, if `source` has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// For HTTP: the file with the token that is sent as `Authorization: Bearer TOKEN`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// With TLS (`https`, `rediss`, `sslmode=require`): the CA bundle (PEM) that verifies the server's
    /// certificate. Default: the system's CAs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
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
    File(PathBuf),
    /// A file of rows over HTTP.
    Http(HttpUrl),
    /// Queries to a database.
    Postgres {
        /// The database.
        url: Box<PostgresUrl>,
        /// The query of all rows.
        rows: String,
        /// The query of the rows that changed since `$1`.
        changes: Option<String>,
        /// The channel of notifications.
        notify: Option<String>,
    },
    /// A hash.
    Redis {
        /// The server.
        url: Box<RedisUrl>,
        /// The key of the hash.
        hash: String,
        /// The key of a text that changes with the rows.
        version: Option<String>,
    },
}

impl TableSource {
    /// Returns the source without a password, and of HTTP without the query, which may be a secret.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::File(path) => format!("file://{}", path.display()),
            Self::Http(url) => url.as_str().split('?').next().unwrap_or_default().to_owned(),
            Self::Postgres { url, .. } => url.to_string(),
            Self::Redis { url, .. } => url.to_string(),
        }
    }

    fn has_secret(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Http(url) => url.as_str().contains('?'),
            Self::Postgres { url, .. } => url.has_password(),
            Self::Redis { url, .. } => url.password.is_some(),
        }
    }

    /// The fields that have an effect on this kind of source.
    fn fields(&self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::File(_) => ("a file", &[]),
            Self::Http(_) => ("HTTP", &["token_file", "ca_file"]),
            Self::Postgres { .. } => {
                ("PostgreSQL", &["rows", "changes", "notify", "password_file", "ca_file"])
            }
            Self::Redis { .. } => ("Redis", &["rows", "changes", "password_file", "ca_file"]),
        }
    }
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
    /// The URL has another scheme, or a field is missing or has no effect on the source.
    pub fn source(&self) -> Result<TableSource, String> {
        let source = self.source_of_url()?;
        let set = [
            ("rows", self.rows.is_some()),
            ("changes", self.changes.is_some()),
            ("notify", self.notify.is_some()),
            ("password_file", self.password_file.is_some()),
            ("token_file", self.token_file.is_some()),
            ("ca_file", self.ca_file.is_some()),
        ];
        let (kind, fields) = source.fields();
        let unused = set.iter().find(|(field, is_set)| *is_set && !fields.contains(field));
        match unused {
            None => Ok(source),
            Some((field, _)) => Err(format!("`{field}` has no effect on {kind}")),
        }
    }

    fn source_of_url(&self) -> Result<TableSource, String> {
        let (changes, notify) = (self.changes.clone(), self.notify.clone());
        if let Some(path) = self.source.strip_prefix("file://").filter(|it| it.starts_with('/')) {
            return Ok(TableSource::File(PathBuf::from(path)));
        }
        if let Some(url) = HttpUrl::new(&self.source) {
            return Ok(TableSource::Http(url));
        }
        if let Some(url) = PostgresUrl::new(&self.source) {
            let rows = self.rows.clone().ok_or("`rows` is missing: the query of all rows")?;
            check_query("rows", &rows)?;
            self.changes.as_ref().map_or(Ok(()), |query| check_query("changes", query))?;
            self.check_password(url.has_password())?;
            return Ok(TableSource::Postgres { url: Box::new(url), rows, changes, notify });
        }
        if let Some(url) = RedisUrl::new(&self.source) {
            let hash = self.rows.clone().ok_or("`rows` is missing: the key of the hash")?;
            self.check_password(url.password.is_some())?;
            return Ok(TableSource::Redis { url: Box::new(url), hash, version: changes });
        }
        Err("`source` must be a URL such as `file:///etc/sluicegate/customers.csv`, \
             `https://host/customers.csv`, `postgres://user@host/database` or `redis://host`"
            .to_owned())
    }

    fn check_password(&self, is_in_url: bool) -> Result<(), String> {
        if is_in_url && self.password_file.is_some() {
            return Err("both `source` and `password_file` have a password".to_owned());
        }
        Ok(())
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

/// Returns an error for a query that is more than one statement.
fn check_query(field: &str, query: &str) -> Result<(), String> {
    let first = query.split_whitespace().next().unwrap_or_default().to_ascii_lowercase();
    if matches!(&*first, "select" | "with") && !query.contains(';') {
        return Ok(());
    }
    Err(format!("`{field}` must begin with SELECT or WITH, and must not contain `;`"))
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
        let file = |table: &TableSettings| match table.source() {
            Ok(TableSource::File(path)) => Some(path),
            _ => None,
        };
        let files: HashSet<_> = tables.0.iter().filter_map(file).collect();
        let (mut names, mut copies) = (HashSet::new(), HashSet::new());
        for (at, table) in tables.0.iter().enumerate() {
            let is_new = names.insert(&table.name);
            let unique = || format!("has the name `{}` of another table", table.name);
            let is_own_copy = table.copy.as_ref().is_none_or(|copy| copies.insert(copy));
            let is_source = table.copy.as_ref().is_some_and(|copy| files.contains(copy));
            let checked = table.check().and_then(|()| match (is_new, is_own_copy) {
                (false, _) => Err(unique()),
                (true, false) => Err("has the `copy` of another table".to_owned()),
                (true, true) if is_source => Err("`copy` is the file of a `source`".to_owned()),
                (true, true) => Ok(()),
            });
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
        let shown = |table: &TableSettings| {
            let source = table.source().map_or_else(|_| String::new(), |source| source.shown());
            TableSettings { source, ..table.clone() }
        };
        serde_json::to_string(&Self(self.0.iter().map(shown).collect())).unwrap_or_default()
    }

    fn hides_secret(&self) -> bool {
        let mut sources = self.0.iter().filter_map(|table| table.source().ok());
        sources.any(|source| source.has_secret())
    }

    fn masked(text: &str) -> String {
        Self::parse(text).map_or_else(|_| "…".to_owned(), |tables| tables.show())
    }

    fn schema() -> Json {
        block_schema::<Self>()
    }

    fn why(text: &str) -> Option<String> {
        Self::parse(text).err()
    }
}
