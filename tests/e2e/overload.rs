//! Tests of the shipped part of a configuration that protects Envoy's own process.

use super::envoy::{Launch, Shipped};

const OVERLOAD: &str = include_str!("../../config/envoy/overload.yaml");

#[test]
fn every_envoy_version_merges_the_shipped_overload_manager() {
    for version in ["1.38", "1.39", "1.40"] {
        for (text, is_valid) in [
            (OVERLOAD.to_owned(), true),
            (OVERLOAD.replace("max_heap_size_bytes", "max_heap_bytes"), false),
        ] {
            let flags = vec!["--config-yaml".to_owned(), text];
            let launch = Launch { version: Some(version), flags, ..Launch::default() };
            let output = launch.validate(Shipped::ExtProc.text());
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.success(), is_valid, "{version}: {errors}");
        }
    }
}
