//! Tests of warnings about values that look like more than text.

use super::super::load;

/// The W33 findings of one descriptor, each with its help.
fn warnings(key: &str, value: &str) -> Vec<String> {
    let text = format!(
        "domain: d\ndescriptors:\n- key: '{key}'\n  value: '{value}'\n  \
         rate_limit: {{unit: minute, requests_per_unit: 1}}\n"
    );
    let (_, findings) = load(&[("a.yaml", &text)], false).unwrap();
    let describe = |one: &sluicegate::config::diagnostic::Diagnostic| {
        assert_eq!((one.code.name(), one.location.line, one.location.column), ("W33", 4, 10));
        format!("{}; {}", one.message, one.help.as_deref().unwrap_or_default())
    };
    findings.iter().map(describe).collect()
}

#[test]
fn network_as_an_address_warns() {
    let found = warnings("remote_address", "10.0.0.0/8");
    let message = "the value `10.0.0.0/8` is compared as text: `remote_address` is one address, \
                   which never equals a network";
    let fix = "write `network: 10.0.0.0/8` instead of `value`";
    assert_eq!(found, [format!("{message}; {fix}")]);
    for (value, network) in [
        ("10.0.0.0/9", "10.0.0.0/9"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("10.1.2.3/32", "10.1.2.3/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("2001:DB8::/32", "2001:db8::/32"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
    ] {
        let found = warnings("x-forwarded-for", value);
        assert!(found[0].ends_with(&format!("`network: {network}` instead of `value`")), "{value}");
    }
    for (key, value) in [
        ("masked_remote_address", "10.0.0.0/8"),
        ("path", "10.0.0.0/8"),
        ("zip", "10.0.0.0/8"),
        ("remote_address", "10.1.2.3"),
        ("remote_address", "10.*"),
    ] {
        assert!(warnings(key, value).is_empty(), "{key}={value}");
    }
}

/// Proxies send addresses as in RFC 5952, and mapped ones as IPv4.
#[test]
fn address_in_another_spelling_warns() {
    for (value, text) in [
        ("2001:DB8::1", "2001:db8::1"),
        ("2001:db8:0:0:0:0:0:1", "2001:db8::1"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("192.0.2.7:80", "192.0.2.7"),
    ] {
        let found = warnings("remote_address", value);
        assert!(found[0].ends_with(&format!("write `{text}`")), "{found:?}");
        assert!(warnings("key", value).is_empty(), "{value}");
    }
    assert!(warnings("remote_address", "2001:db8::1").is_empty());
}

#[test]
fn placeholder_in_a_path_warns() {
    for (value, pattern) in [
        ("/orders/{id}", "/orders/*"),
        ("/orders/:id/items/{item_id}", "/orders/*/items/*"),
        ("{tenant}", "*"),
    ] {
        let found = warnings("path", value);
        assert!(found[0].ends_with(&format!("write `*` for any text: `{pattern}`")), "{found:?}");
    }
    for value in ["/orders/{}", "/v1/things:cancel", "/a/:80", "{\"a\": 1}"] {
        assert!(warnings("path", value).is_empty(), "{value}");
    }
}

#[test]
fn variable_warns() {
    for value in ["$USER", "${user}", "$(USER)", "{{ .Values.key }}", "%REQ(x-user)%"] {
        let found = warnings("user", value);
        assert!(found[0].contains("limits files have no variables"), "{found:?}");
    }
    for value in ["US$", "$5", "%2F%2F", "100%", "a%20b"] {
        assert!(warnings("user", value).is_empty(), "{value}");
    }
}

#[test]
fn regular_expression_warns() {
    for value in ["^/api", "/api/.*", "/api$", ".*", r"/v\d", "/v[0-9]", "(?i)get", "/.+"] {
        let found = warnings("path", value);
        assert!(found[0].contains("values are no regular expressions"), "{value}: {found:?}");
    }
    for value in ["10.*", "*.png", "/a?b=c+d", "a.b", "/[id]", "/.well-known/*"] {
        assert!(warnings("path", value).is_empty(), "{value}");
    }
}

#[test]
fn alternatives_warn() {
    let found = warnings("method", "GET|POST");
    assert!(found[0].ends_with("write one descriptor for each value: `GET`, `POST`"), "{found:?}");
    for value in ["a | b", "|", "a|"] {
        assert!(warnings("method", value).is_empty(), "{value}");
    }
}
