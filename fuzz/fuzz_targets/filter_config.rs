//! Bytes as the config of the filter inside Envoy, and of its routes.
//!
//! Guarantees:
//! - Every error names the field and the fix.
//! - The numbers of a valid config are in their documented ranges.
//! - A valid config builds descriptors, none of which is empty.
#![no_main]

use std::borrow::Cow;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use sluicegate_descriptors::address::ClientAddress;
use sluicegate_descriptors::filter_config::{FilterConfig, FilterConfigError, RouteFilterConfig};
use sluicegate_descriptors::{Action, PathSpelling, RequestAttributes, build_descriptors};

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    match FilterConfig::parse(&text) {
        Ok(config) => assert_usable(&config),
        Err(error) => assert_helpful(&error),
    }
    match RouteFilterConfig::parse(&text) {
        Ok(config) => {
            assert_eq!(config.enabled, config.descriptors.is_some());
            assert_descriptors(&config.descriptors.unwrap_or_default(), PathSpelling::Raw);
        }
        Err(error) => assert_helpful(&error),
    }
});

fn assert_helpful(error: &FilterConfigError) {
    assert!(!error.field.is_empty() && !error.fix.is_empty(), "{error}");
}

fn assert_usable(config: &FilterConfig) {
    let longest = Duration::from_secs(1);
    assert!((Duration::from_millis(1)..=longest).contains(&config.deadline));
    assert!((400..=599).contains(&config.status));
    assert!(!config.domain.is_empty() && !config.descriptors.is_empty());
    assert!(!config.service.address.host.is_empty() && config.service.address.port != 0);
    assert_descriptors(&config.descriptors, config.path);
}

/// Builds the descriptors of a request that has all inputs, and of one that has none.
fn assert_descriptors(actions: &[Vec<Action>], path: PathSpelling) {
    for has_inputs in [true, false] {
        let text = |value: &'static str| Some(Cow::Borrowed(value)).filter(|_| has_inputs);
        let request = RequestAttributes {
            first_header_value: &|_| text("7"),
            joined_header_values: &|_| text("7,8"),
            path: if has_inputs { "/a%2fb//../c?a=%00&a=1&&b" } else { "" },
            remote_address: ClientAddress::parse("::ffff:192.0.2.1").filter(|_| has_inputs),
            metadata: &|_| text("gold"),
        };
        let descriptors = build_descriptors(actions, path, &request);
        assert!(descriptors.len() <= actions.len());
        assert!(descriptors.iter().all(|entries| !entries.is_empty()));
    }
}
