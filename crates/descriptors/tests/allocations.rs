//! Building descriptors from borrowed values allocates nothing.

#![allow(clippy::unwrap_used)]

use std::borrow::Cow;

use allocation_counter::measure;
use sluicegate_descriptors::address::ClientAddress;
use sluicegate_descriptors::{Action, PathSpelling, RequestAttributes, build_descriptors};

const ACTIONS: &str = r#"[
  [{"request_headers": {"header_name": "X-Api-Key", "descriptor_key": "api_key"}},
   {"remote_address": {}}],
  [{"generic_key": {"descriptor_value": "edge"}},
   {"header_value_match": {"descriptor_value": "get", "headers": [
      {"name": ":Method", "string_match": {"exact": "GET"}}]}},
   {"query_parameters": {"query_parameter_name": "b", "descriptor_key": "b"}},
   {"metadata": {"descriptor_key": "team", "metadata_key": {"key": "auth", "path": [{"key": "team"}]}}}]
]"#;

#[test]
fn descriptors_of_borrowed_values_need_no_allocation() {
    let actions: Vec<Vec<Action>> = serde_json::from_str(ACTIONS).unwrap();
    let header = |name: &str| match name {
        "x-api-key" => Some(Cow::Borrowed("ann")),
        ":method" => Some(Cow::Borrowed("GET")),
        _ => None,
    };
    let request = RequestAttributes {
        first_header_value: &header,
        joined_header_values: &header,
        path: "/pay?a=1&b=2",
        remote_address: ClientAddress::parse("192.0.2.7"),
        metadata: &|_| Some(Cow::Borrowed("red")),
    };
    let mut built = 0;
    let allocations = measure(|| {
        let descriptors = build_descriptors(&actions, PathSpelling::Raw, &request);
        built = descriptors.iter().map(smallvec::SmallVec::len).sum();
    });
    assert_eq!((built, allocations.count_total), (6, 0));
}
