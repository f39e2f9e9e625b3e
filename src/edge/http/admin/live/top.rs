//! Renders `/top`: the keys with the most hits.
//!
//! Guarantees:
//! - At most the requested number of rows in each list.
//! - The totals count the hits of all keys, so that a row's share can be computed.

use serde_json::{Value, json};

use super::query::TopParams;
use super::rules::domain_of;
use crate::engine::Engine;
use crate::engine::fleet::live::WatchedPage;
use crate::engine::top_keys::{TopKeyList, TopKeyRow};

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
    let row = |row: &TopKeyRow| {
        json!({
            "domain": row.domain, "path": row.path, "descriptor": row.descriptor,
            "hits": row.hits, "error": row.error,
        })
    };
    list.rows.iter().map(row).collect()
}
