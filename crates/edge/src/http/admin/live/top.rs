//! Renders `/top`: the keys with the most hits.
//!
//! Guarantees:
//! - At most the requested number of rows in each list.
//! - The totals count the hits of all keys, so that a row's share can be computed.

use serde_json::{Value, json};

use super::query::TopParams;
use super::rules::{domain_of, find_rule};
use crate::engine::Engine;
use crate::engine::fleet::live::WatchedPage;
use crate::engine::top_keys::{TopKeyList, TopKeyRow};

/// Returns the page.
///
/// # Errors
/// A message if there is no rule with the path of the query.
pub(super) fn top(engine: &Engine, params: TopParams) -> Result<Value, String> {
    let TopParams { window, domain, path, max } = params;
    let rule = path.map(|path| find_key(engine, domain.as_deref(), path)).transpose()?;
    let selection = match &rule {
        Some((domain, path)) => (Some(&**domain), Some(&**path)),
        None => (domain.as_deref(), None),
    };
    engine.watch_page(
        rule.clone().map_or(WatchedPage::Top, |(domain, path)| {
            WatchedPage::Rule(domain.into(), path.into())
        }),
    );
    let reports = engine.fleet_reports();
    let (scope, top) = engine.top_view(selection, max, &reports);
    let lists = top.of(window);
    Ok(json!({
        "scope": scope.as_str(),
        "replicas": reports.counted(scope),
        "live_replicas": reports.live_replicas(),
        "window": window.as_str(),
        "keys": engine.top_key_values().word(),
        "all_total": lists.all.total,
        "denied_total": lists.denied.total,
        "all": rows_json(&lists.all),
        "denied": rows_json(&lists.denied),
    }))
}

/// Returns the domain and the path of a rule. Without a domain, any rule with the path is meant.
fn find_key(
    engine: &Engine,
    domain: Option<&str>,
    path: String,
) -> Result<(String, String), String> {
    let config = engine.config().ok_or("no limits are loaded")?;
    let found = match domain {
        Some(domain) => find_rule(&config, domain, &path).map(|_| domain),
        None => domain_of(&config, &path),
    };
    let domain = found.ok_or_else(|| format!("no rule `{path}`; /rules lists all rules"))?;
    Ok((domain.to_owned(), path))
}

fn rows_json(list: &TopKeyList) -> Value {
    let row = |row: &TopKeyRow| {
        json!({
            "domain": row.domain, "path": row.path, "descriptor": row.descriptor,
            "hits": row.hits, "error": row.error,
        })
    };
    list.rows.iter().map(row).collect()
}
