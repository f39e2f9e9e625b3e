//! Renders the points of an hour as one array for each value.

use serde_json::{Map, Value, json};

use crate::engine::history::{STEP, Series};
use crate::kernel::units::Nanos;

/// Returns the series with an array of numbers for each of `names`, in the order of the values of a
/// point. A name ending in `used` is a ratio instead of millionths.
pub(super) fn series_json(series: &Series, names: &[&str]) -> Value {
    let step_s = STEP.0 / Nanos::SECOND.0;
    let mut shown = Map::new();
    shown.insert("step_s".to_owned(), step_s.into());
    shown.insert("start_unix_s".to_owned(), series.start.saturating_mul(step_s).into());
    for (index, name) in names.iter().enumerate() {
        let values = series.points.iter().map(|point| point.get(index).copied().unwrap_or(0));
        let values: Vec<_> = values
            .map(|value| if *name == "used" { json!(used_ratio(value)) } else { json!(value) })
            .collect();
        shown.insert((*name).to_owned(), values.into());
    }
    shown.into()
}

/// Converts millionths of a limit to a ratio.
pub(super) fn used_ratio(millionths: u64) -> f64 {
    super::super::permits::to_ratio(millionths)
}
