//! The explanation of a descriptor with a list `rate_limits`.

use sluicegate::config::explain::explain;
use sluicegate::kernel::units::{Hits, Nanos};

use crate::config::load_clean;

const LIMITS: &str = "- {key: k, shadow_mode: true, rate_limits: [{unit: second, \
                      requests_per_unit: 2}, {unit: hour, requests_per_unit: 5, name: hourly}]}\n\
                      - {key: o, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: \
                      hourly}]}}\n";

#[test]
fn explain_shows_each_limit_of_a_list() {
    let config = load_clean(LIMITS);
    let descriptors = [vec![("k", "v")], vec![("o", "v")]];
    let explained = explain(&config, "d", &descriptors, Hits(3), Nanos(0));
    let limits: Vec<_> = explained.descriptors[0].limits().collect();
    let texts: Vec<_> = limits.iter().map(|limit| &*limit.text).collect();
    let [second, hour] = [
        "2 per second, fixed_window, named \"per-second\", shadow",
        "5 per hour, fixed_window, named \"hourly\", shadow",
    ];
    assert_eq!(texts, [second, hour]);
    assert_eq!(limits[0].counter.as_deref(), Some("d: k=v (per-second)"));
    assert_eq!([&*limits[0].fresh.verdict, &*limits[1].fresh.verdict], ["never", "allow"]);
    let replaced: Vec<_> = limits.iter().map(|limit| limit.replaced_by.as_deref()).collect();
    assert_eq!(replaced, [None, Some("d.o")]);
    assert_eq!(explained.descriptors[1].limits().count(), 1);
}
