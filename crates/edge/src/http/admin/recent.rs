//! Renders the admin page `/recent`: the last different descriptors that matched no rule.
//!
//! Guarantees:
//! - The reason is that of the last check; the nearest rule is that of the current configuration.

use serde_json::{Value, json};

use super::show::format_time;
use crate::config::Config;
use crate::config::descriptor_text::{borrow_entries, format_entries};
use crate::config::explain::near_miss::nearest_rule;
use crate::engine::{Engine, UnmatchedDescriptor};

pub(super) fn unmatched(engine: &Engine) -> Value {
    let config = engine.config();
    let descriptors = engine.unmatched_descriptors();
    descriptors.iter().map(|unmatched| descriptor_json(unmatched, config.as_deref())).collect()
}

fn descriptor_json(unmatched: &UnmatchedDescriptor, config: Option<&Config>) -> Value {
    let UnmatchedDescriptor { domain, entries, checks, last, .. } = unmatched;
    let entries = borrow_entries(entries);
    let nearest = config.and_then(|config| nearest_rule(config, domain, &entries));
    json!({
        "domain": domain,
        "descriptor": format_entries(entries),
        "reason": unmatched.reason(),
        "nearest": nearest,
        "checks": checks,
        "last": format_time(*last),
    })
}
