//! Compares StatsD counters and Prometheus series after a scenario with the recording.

use std::collections::BTreeMap;

use serde_json::Value;

use super::vectors::Scenario;
use crate::support::http1;
use crate::support::service::Service;

pub fn compare(scenario: &Scenario, service: &Service) -> Result<(), String> {
    if let Some(recorded) = &scenario.metrics {
        let reply = http1::get(service.admin, "/stats", &[]).map_err(|error| error.to_string())?;
        let stats: Value =
            serde_json::from_slice(&reply.body).map_err(|error| error.to_string())?;
        compare_numbers(
            "metrics",
            &numbers(recorded),
            &numbers(&stats["stats"]),
            is_always_recorded,
        )?;
    }
    if let Some(recorded) = &scenario.prometheus {
        let reply =
            http1::get(service.metrics, "/metrics", &[]).map_err(|error| error.to_string())?;
        let is_wanted = |name: &str| {
            name.starts_with("ratelimit_service_") && !name.contains("_response_time_")
        };
        compare_numbers("prometheus", &numbers(recorded), &series(&reply.text()), is_wanted)?;
    }
    Ok(())
}

/// Returns `false` for metrics that only some recordings contain: successful loads and call counts.
fn is_always_recorded(name: &str) -> bool {
    name.starts_with("ratelimit.service.") && !name.ends_with("config_load_success")
}

type Numbers = BTreeMap<String, u64>;

fn numbers(recorded: &Value) -> Numbers {
    let fields = recorded.as_object().into_iter().flatten();
    fields.filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))).collect()
}

fn series(page: &str) -> Numbers {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        })
        .collect()
}

fn compare_numbers(
    what: &str,
    recorded: &Numbers,
    came: &Numbers,
    is_wanted: fn(&str) -> bool,
) -> Result<(), String> {
    let wrong = recorded.iter().filter(|(name, value)| came.get(*name) != Some(value));
    let wrong =
        wrong.map(|(name, value)| format!("{name} is {:?} instead of {value}", came.get(name)));
    let more = came.iter().filter(|(name, _)| is_wanted(name) && !recorded.contains_key(*name));
    let more = more.map(|(name, value)| format!("{name} is {value} and not recorded"));
    let differences: Vec<_> = wrong.chain(more).take(4).collect();
    if differences.is_empty() { Ok(()) } else { Err(format!("{what}: {}", differences.join("; "))) }
}
