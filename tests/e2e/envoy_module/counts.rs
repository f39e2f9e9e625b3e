//! Tests of the filter's counters, which Envoy has up to 100 ms after the requests.
//!
//! Guarantees:
//! - Expected counts are the numbers of requests.

use super::super::envoy::{Envoy, Launch, WhenDown};
use super::changes::{WatchedListener, wait_for_drained};
use super::{VERSIONS, configuration, get, launch, wait_for_counts};
use crate::support::waiting::until;

/// Without a drain time, Envoy drops the old config before the addition of its last requests.
#[test]
fn replaced_configs_lose_no_count() {
    for version in VERSIONS {
        let (listener, text) = WatchedListener::new(&configuration(WhenDown::Allow));
        let flags = ["--drain-time-s", "0"].map(str::to_owned).to_vec();
        let mut envoy = Envoy::launch(text, 0, &Launch { flags, ..launch(version) });
        for change in
            [listener.with_all_headers(), listener.listener.clone()].iter().cycle().take(10)
        {
            for _ in 0..3 {
                assert_eq!(get(&envoy, "/", &[]), 200, "{version}: {}", envoy.log());
            }
            replace(&envoy, &listener, change);
        }
        wait_for_counts(&envoy, [("fallback_allowed", 30), ("panics", 0)]);
        assert!(envoy.stop().success(), "{version}: {}", envoy.log());
    }
}

/// Replaces the listener, and waits for the end of the old one.
fn replace(envoy: &Envoy, listener: &WatchedListener, text: &str) {
    let updates = || envoy.counter("listener_manager.lds.update_success");
    let before = updates();
    listener.replace(text);
    until("an update", || if before < updates() { Ok(()) } else { Err(envoy.log()) }).unwrap();
    wait_for_drained(envoy);
}
