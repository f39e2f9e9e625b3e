//! Tests of the setting `hooks`: Envoy rate limit actions build descriptors from request
//! attributes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use proptest::prelude::*;
use sluicegate::config::hooks::address::ClientAddress;
use sluicegate::config::hooks::{Hook, Hooks, MetadataKey, RequestAttributes};
use sluicegate::config::settings::Settings;

use super::{environment, file, load_valid, read_errors};

#[derive(Default)]
struct HookRequest {
    headers: BTreeMap<&'static str, &'static str>,
    path: &'static str,
    address: Option<&'static str>,
    metadata: BTreeMap<&'static str, &'static str>,
}

impl HookRequest {
    fn with(headers: &[(&'static str, &'static str)]) -> Self {
        Self { headers: headers.iter().copied().collect(), ..Self::default() }
    }

    /// The entries that `actions` (YAML flow style) build from this request, as `key=value`.
    fn built_entries(&self, actions: &str) -> Vec<String> {
        let hook = only(&format!("[{actions}]"));
        let header = |name: &str| self.headers.get(name).map(|value| Cow::Borrowed(*value));
        let metadata = |key: &MetadataKey| {
            let path: Vec<&str> = key.path.iter().map(|segment| segment.key.as_str()).collect();
            let place = format!("{}/{}", key.key, path.join("/"));
            self.metadata.get(place.as_str()).map(|text| Cow::Borrowed(*text))
        };
        let (path, remote_address) = (self.path, self.address);
        let (header, joined) = (&header, &header);
        let metadata = &metadata;
        let attributes = RequestAttributes {
            first_header_value: header,
            joined_header_values: joined,
            path,
            remote_address: remote_address.and_then(ClientAddress::parse),
            metadata,
        };
        let made = hook.build_descriptors(&attributes);
        let entry = |(key, value): &(&str, Cow<'_, str>)| format!("{key}={value}");
        made.iter().flat_map(|entries| entries.iter().map(entry)).collect()
    }
}

fn hooks(yaml: &str) -> Hooks {
    load_valid(&file(yaml)).settings.hooks
}

fn only(descriptors: &str) -> Hook {
    let text = format!("hooks:\n- {{name: edge, domain: shop, descriptors: [{descriptors}]}}\n");
    hooks(&text).0.remove(0)
}

/// The value of `:path` in a hook with normalized paths.
fn normalized(path: &str) -> String {
    let text = "hooks:\n- name: edge\n  domain: shop\n  path: normalized\n  descriptors:\n  \
                - [{request_headers: {header_name: ':path', descriptor_key: path}}]\n";
    let hook = hooks(text).0.remove(0);
    let header = |name: &str| (name == ":path").then_some(Cow::Borrowed(path));
    let attributes = RequestAttributes {
        first_header_value: &header,
        joined_header_values: &header,
        path,
        remote_address: None,
        metadata: &|_| None,
    };
    hook.build_descriptors(&attributes)[0][0].1.clone().into_owned()
}

/// The right sides follow from RFC 3986, section 6.2.2, and from the characters that NGINX decodes.
#[test]
fn normalized_path_has_one_spelling() {
    for (path, expected) in [
        ("/", "/"),
        ("/pay?a=1#b", "/pay"),
        ("/%70ay", "/pay"),
        ("//pay//", "/pay/"),
        ("/a/./b/../pay", "/a/pay"),
        ("/../../pay", "/pay"),
        ("/pay/.", "/pay/"),
        ("/pay/..", "/"),
        ("/a%2F..%2Fpay", "/pay"),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/café", "/caf%C3%A9"),
        ("/a%20b%3f%25%00", "/a%20b%3F%25%00"),
        ("/a:@!$&'()*+,;=-._~", "/a:@!$&'()*+,;=-._~"),
        ("/%3a%40%24", "/:@$"),
        ("/%", "/%25"),
        ("*", "*"),
    ] {
        assert_eq!(normalized(path), expected, "{path}");
        assert_eq!(normalized(expected), expected, "twice: {path}");
    }
}

proptest! {
    #[test]
    fn normalizing_a_path_twice_equals_once(path in "/[a-c./%25F?#é]{0,12}") {
        let once = normalized(&path);
        prop_assert_eq!(normalized(&once), once.clone(), "{}", path);
        prop_assert!(!once.contains("//") && !once.contains('?'), "{}", once);
        prop_assert!(once.split('/').all(|segment| segment != "." && segment != ".."), "{}", once);
    }
}

#[test]
fn settings_file_and_variable_give_the_same_hooks() {
    let in_file = hooks(
        "hooks:\n  - name: edge\n    domain: shop\n    descriptors:\n      \
         - [{generic_key: {descriptor_key: upstream, descriptor_value: checkout}}]\n      \
         - [{request_headers: {header_name: x-api-key, descriptor_key: api_key}}]\n",
    );
    let json = serde_json::to_string(&in_file).unwrap();
    let in_environment = load_valid(&environment(&[("SLUICEGATE_HOOKS", &json)])).settings.hooks;
    assert_eq!(in_file, in_environment);
    assert_eq!(in_file.find_or_first(None).unwrap().name, "edge");
    assert!(in_file.find_or_first(Some("other")).is_none());
    assert!(Settings::default().hooks.find_or_first(None).is_none());
}

#[test]
fn each_action_builds_its_entry() {
    let mut request = HookRequest::with(&[("x-api-key", "k1"), ("num", "17")]);
    request.path = "/a?first=1&user=a%20b+c&user=second#f";
    request.address = Some("10.0.0.7");
    request.metadata.insert("jwt/claims/sub", "joe");
    for (action, entry) in [
        ("generic_key: {descriptor_value: v}", "generic_key=v"),
        ("generic_key: {descriptor_key: k, descriptor_value: v}", "k=v"),
        ("request_headers: {header_name: X-Api-Key, descriptor_key: k}", "k=k1"),
        ("remote_address: {}", "remote_address=10.0.0.7"),
        ("header_value_match: {descriptor_value: v, headers: [{name: num}]}", "header_match=v"),
        ("query_parameters: {query_parameter_name: user, descriptor_key: k}", "k=a b+c"),
        (
            "metadata: {descriptor_key: k, metadata_key: {key: jwt, path: [{key: claims}, {key: sub}]}}",
            "k=joe",
        ),
        (
            "metadata: {descriptor_key: k, metadata_key: {key: x, path: []}, default_value: d}",
            "k=d",
        ),
    ] {
        assert_eq!(request.built_entries(&format!("{{{action}}}")), [entry], "{action}");
    }
}

/// As in Envoy's `QueryParamsMulti::parseAndDecodeQueryString`: `&` and the first `=` separate.
/// Names and values are percent-decoded, without any other conversion.
#[test]
fn query_parsing_matches_envoy() {
    for (query, entry) in [
        ("user=a+b", "k=a+b"),
        ("user=a%2Bb", "k=a+b"),
        ("%75ser=v", "k=v"),
        ("user=a=b", "k=a=b"),
        ("user=%zz%2", "k=%zz%2"),
        ("user=%ff", "k=\u{fffd}"),
        ("a=1&user", "k="),
        ("&&user=v", "k=v"),
    ] {
        let path = format!("/a?{query}").leak();
        let request = HookRequest { path, ..HookRequest::default() };
        let action = "{query_parameters: {query_parameter_name: user, descriptor_key: k}}";
        assert_eq!(request.built_entries(action), [entry], "{query}");
    }
}

#[test]
fn missing_value_drops_the_descriptor_unless_skip_if_absent() {
    let request = HookRequest { path: "/a?b=c", ..HookRequest::default() };
    let fixed = "{generic_key: {descriptor_value: v}}";
    for action in [
        "request_headers: {header_name: h, descriptor_key: k",
        "query_parameters: {query_parameter_name: q, descriptor_key: k",
        "metadata: {descriptor_key: k, metadata_key: {key: m, path: []}",
    ] {
        let (left_out, skipped) = (
            format!("{fixed}, {{{action}}}}}"),
            format!("{fixed}, {{{action}, skip_if_absent: true}}}}"),
        );
        assert_eq!(request.built_entries(&left_out), [] as [&str; 0], "{action}");
        assert_eq!(request.built_entries(&skipped), ["generic_key=v"], "{action}");
    }
    assert_eq!(request.built_entries("{remote_address: {}}"), [] as [&str; 0]);
}

#[test]
fn header_matching_follows_envoy() {
    let request = HookRequest::with(&[("h", "shop-17"), ("num", "17")]);
    for (matcher, matches) in [
        ("name: h, string_match: {exact: shop-17}", true),
        ("name: h, string_match: {exact: shop}", false),
        ("name: h, string_match: {prefix: shop}", true),
        ("name: h, string_match: {suffix: '17'}", true),
        ("name: h, string_match: {contains: p-1}", true),
        ("name: h, string_match: {safe_regex: {regex: 'sh.*7'}}", true),
        ("name: h, string_match: {safe_regex: {regex: 'sh|17'}}", false),
        ("name: num, range_match: {start: 17, end: 18}", true),
        ("name: num, range_match: {start: 16, end: 17}", false),
        ("name: h, range_match: {start: 0, end: 99}", false),
        ("name: h, present_match: false", false),
        ("name: gone, present_match: false", true),
        ("name: gone", false),
        ("name: gone, invert_match: true", true),
        ("name: h, string_match: {exact: shop-17}, invert_match: true", false),
        // An inverted match still needs a header value to compare.
        ("name: gone, string_match: {exact: a}, invert_match: true", false),
        ("name: gone, string_match: {exact: ''}, treat_missing_header_as_empty: true", true),
    ] {
        for expect in [true, false] {
            let action = format!(
                "{{header_value_match: {{descriptor_value: v, expect_match: {expect}, headers: [{{{matcher}}}]}}}}"
            );
            assert_eq!(
                !request.built_entries(&action).is_empty(),
                matches == expect,
                "{matcher} {expect}"
            );
        }
    }
}

#[test]
fn errors_of_the_setting_hooks_name_field_and_cause() {
    let errors_of = |hook: &str| read_errors(&file(&format!("hooks:\n- {{{hook}}}\n"))).join("\n");
    let fine = "name: a, domain: d, descriptors: [[{remote_address: {}}]]";
    for (hook, place, cause) in [
        (
            "name: a, domain: d, descriptors: [[{remote_adress: {}}]]",
            "[0].descriptors[0][0]",
            "remote_adress",
        ),
        (
            "name: a, domain: d, descriptors: [[{request_headers: {header_name: x}}]]",
            "[0].descriptors[0][0]",
            "descriptor_key",
        ),
        ("name: a, domain: d, descriptors: []", "[0]", "has no `descriptors`"),
        ("name: a, domain: '', descriptors: [[{remote_address: {}}]]", "[0]", "has no `domain`"),
        ("name: '', domain: d, descriptors: [[{remote_address: {}}]]", "[0]", "has no `name`"),
        (&format!("{fine}}}\n- {{{fine}"), "[1]", "has the name `a` of another hook"),
        (
            "name: a, domain: d, descriptors: [[{header_value_match: {descriptor_value: v, headers: [{name: h, string_match: {safe_regex: {regex: '('}}}]}}]]",
            "headers[0].string_match",
            "regex parse error",
        ),
    ] {
        let errors = errors_of(hook);
        assert!(errors.contains("server.yaml:2:3"), "{errors}");
        assert!(errors.contains(place) && errors.contains(cause), "{hook}: {errors}");
    }
    assert!(read_errors(&environment(&[("SLUICEGATE_HOOKS", "x")]))[0].contains("hooks"));
}

/// A case from the field: `masked_remote_address` was unknown, and errors had words of the program.
#[test]
fn hooks_mask_addresses_as_envoy_does() {
    let server = include_str!("../../field/hook-masked-address/server.yaml");
    let hook = hooks(server).0.remove(0);
    for (address, expected) in [
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("192.0.2.7", "192.0.2.7/32"),
        ("::ffff:192.0.2.7", "192.0.2.7/32"),
    ] {
        let attributes = RequestAttributes {
            first_header_value: &|_| None,
            joined_header_values: &|_| None,
            path: "/",
            remote_address: ClientAddress::parse(address),
            metadata: &|_| None,
        };
        let built = hook.build_descriptors(&attributes);
        assert_eq!(built[0][0], ("masked_remote_address", expected.into()));
    }
    let wrong = include_str!("../../field/hook-masked-address/wrong-words.yaml");
    let error = read_errors(&file(wrong)).join("\n");
    assert!(
        error.contains(
            "at `[0].descriptors[0][0].remote_address`: has no value; write `remote_address: {}`"
        ),
        "{error}"
    );
    assert!(!error.contains("variant") && !error.contains("struct"), "{error}");
}
