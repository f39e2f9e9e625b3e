//! Renders `/top`: the keys with the most hits.
//!
//! Guarantees:
//! - At most [`MAX_ROWS`] rows in each list.
//! - The totals count the hits of all keys, so that a row's share can be computed.

use serde_json::{Value, json};

use super::rules::domain_of;
use super::{QueryPairs, unknown_parameter};
use crate::engine::Engine;
use crate::engine::fleet::live::WatchedPage;
use crate::engine::top_keys::TopKeyList;
use crate::kernel::top_keys::TopWindow;

const MAX_ROWS: usize = 100;
const DEFAULT_ROWS: usize = 20;

/// The query of `/top`.
pub(super) struct TopParams {
    window: TopWindow,
    domain: Option<String>,
    path: Option<String>,
    max: usize,
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

pub(super) fn top(engine: &Engine, params: TopParams) -> Value {
    let TopParams { window, mut domain, path, max } = params;
    if let (None, Some(path), Some(config)) = (&domain, &path, engine.config()) {
        domain = domain_of(&config, path).map(str::to_owned);
    }
    engine.watch_page(match (&domain, &path) {
        (Some(domain), Some(path)) => WatchedPage::Rule((**domain).into(), (**path).into()),
        _ => WatchedPage::Top,
    });
    let reports = engine.fleet_reports();
    let (scope, top) = engine.top_view((domain.as_deref(), path.as_deref()), max, &reports);
    let lists = top.of(window);
    json!({
        "scope": scope.as_str(),
        "replicas": reports.counted(scope),
        "live_replicas": reports.live_replicas(),
        "window": window.as_str(),
        "keys": engine.top_key_values().word(),
        "all_total": lists.all.total,
        "denied_total": lists.denied.total,
        "all": rows_json(&lists.all),
        "denied": rows_json(&lists.denied),
    })
}

fn rows_json(list: &TopKeyList) -> Value {
    let row = |row: &crate::engine::top_keys::TopKeyRow| {
        json!({
            "domain": row.domain, "path": row.path, "descriptor": row.descriptor,
            "hits": row.hits, "error": row.error,
        })
    };
    list.rows.iter().map(row).collect()
}
