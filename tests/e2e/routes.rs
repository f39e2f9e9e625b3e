//! Tests that routes of one `ext_proc` filter on a real Envoy select their hooks by metadata.

use super::envoy::{Envoy, Shipped, WhenDown, configured, replace_once};
use super::{Limits, serve, upstream};
use crate::support::http1;
use crate::support::waiting::for_a_day_with_a_minute_left;

/// Hooks that each build a descriptor with their own name.
const HOOKS: &str = r#"[
    {"name": "first", "domain": "shop", "descriptors":
        [[{"generic_key": {"descriptor_key": "hook", "descriptor_value": "first"}}]]},
    {"name": "second", "domain": "shop", "descriptors":
        [[{"generic_key": {"descriptor_key": "hook", "descriptor_value": "second"}}]]},
    {"name": "third", "domain": "shop", "descriptors":
        [[{"generic_key": {"descriptor_key": "hook", "descriptor_value": "third"}}]]}]"#;

/// A route with this hook in its metadata, placed before all other routes.
fn route(path: &str, hook: &str) -> String {
    let metadata = format!("{{filter_metadata: {{sluicegate: {{hook: {hook}}}}}}}");
    let indent = " ".repeat(24);
    format!(
        "- {{match: {{prefix: {path}}}, route: {{cluster: upstream}}, metadata: {metadata}}}\n{indent}"
    )
}

#[test]
fn route_metadata_selects_the_hook_with_first_as_default() {
    for_a_day_with_a_minute_left();
    let limits = Limits::per("hook", 2);
    let service = serve(limits.path(), &["--hooks", HOOKS]);
    let (app, replicas) = (upstream::start(), [service.grpc]);
    let mut text = configured(Shipped::ExtProc, app, &replicas, WhenDown::Deny);
    let mut replace = |from: &str, to: &str| replace_once(&mut text, from, to);
    let routes = [route("/a", "second"), route("/b", "second"), route("/c", "third")].concat();
    replace("- match: {prefix: /}", &format!("{routes}- match: {{prefix: /}}"));
    replace("initial_metadata: [{key: x-sluicegate-hook, value: edge}]", "");
    let asked = "[source.address, xds.route_metadata.filter_metadata.sluicegate.hook]";
    replace("request_attributes: [source.address]", &format!("request_attributes: {asked}"));
    let envoy = Envoy::start_with(text, 1);
    let forged = [("x-sluicegate-hook", "first"), ("hook", "first")];
    let ask = |path: &str| http1::get(envoy.ingress, path, &forged).unwrap().status;
    // Routes with the same hook share a counter.
    assert_eq!(["/a", "/b", "/a", "/b"].map(ask), [200, 200, 429, 429], "{}", envoy.log());
    assert_eq!(["/c", "/c", "/c"].map(ask), [200, 200, 429], "{}", envoy.log());
    assert_eq!(["/", "/", "/"].map(ask), [200, 200, 429], "{}", envoy.log());
}
