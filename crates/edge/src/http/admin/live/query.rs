//! Reads the queries of `/rule` and `/top`.
//!
//! Guarantees:
//! - An unknown parameter and an invalid value are errors with the valid ones.

use crate::kernel::top_keys::TopWindow;

/// The largest number of rows in each list of `/top`.
const MAX_ROWS: usize = 100;
const DEFAULT_ROWS: usize = 20;

pub(super) type QueryPairs = Vec<(String, String)>;

/// The rule in the query of `/rule`.
pub(super) struct RuleParams {
    pub(super) domain: String,
    pub(super) path: String,
}

impl RuleParams {
    /// Reads the query.
    ///
    /// # Errors
    /// A message for the operator.
    pub(super) fn from_query(query: QueryPairs) -> Result<Self, String> {
        let (mut domain, mut path) = (None, None);
        for (name, value) in query {
            match &*name {
                "domain" => domain = Some(value),
                "path" => path = Some(value),
                _ => return Err(unknown_parameter(&name, "domain and path")),
            }
        }
        let missing = |name: &str| format!("the parameter `{name}` is missing");
        Ok(Self {
            domain: domain.ok_or_else(|| missing("domain"))?,
            path: path.ok_or_else(|| missing("path"))?,
        })
    }
}

/// The query of `/top`.
pub(super) struct TopParams {
    pub(super) window: TopWindow,
    pub(super) domain: Option<String>,
    pub(super) path: Option<String>,
    pub(super) max: usize,
}

impl TopParams {
    /// Reads the query.
    ///
    /// # Errors
    /// A message for the operator.
    pub(super) fn from_query(query: QueryPairs) -> Result<Self, String> {
        let mut params =
            Self { window: TopWindow::Minute, domain: None, path: None, max: DEFAULT_ROWS };
        for (name, value) in query {
            match &*name {
                "window" => params.window = parse_window(&value)?,
                "limit" => params.max = parse_max(&value)?,
                "domain" => params.domain = Some(value).filter(|domain| !domain.is_empty()),
                "path" => params.path = Some(value).filter(|path| !path.is_empty()),
                _ => return Err(unknown_parameter(&name, "window, domain, path and limit")),
            }
        }
        Ok(params)
    }
}

fn parse_window(text: &str) -> Result<TopWindow, String> {
    let found = TopWindow::ALL.into_iter().find(|window| window.as_str() == text);
    found.ok_or_else(|| format!("unknown window `{text}`; use minute or hour"))
}

fn parse_max(text: &str) -> Result<usize, String> {
    let max = text.parse().ok().filter(|max| (1..=MAX_ROWS).contains(max));
    max.ok_or_else(|| format!("limit `{text}` must be a number from 1 to {MAX_ROWS}"))
}

fn unknown_parameter(name: &str, known: &str) -> String {
    format!("unknown parameter `{name}`; use {known}")
}
