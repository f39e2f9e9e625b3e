//! Warns about values that look like networks, regular expressions, templates or lists, but are
//! compared as text.
//!
//! Guarantees:
//! - A value gets at most one warning.
//! - Patterns such as `10.*` and `*.png` get no warning.
//!
//! Not covered:
//! - Rules that another rule shadows (see [`super::DomainLint`]).

use crate::diagnostic::Code;
use crate::hooks::address::{ClientAddress, Network, NetworkError};
use crate::raw::Descriptor;
use crate::resolve::findings::{FileFindings, FileSpan};

/// Parts of keys whose values are single addresses.
const ADDRESS_WORDS: [&str; 3] = ["address", "addr", "ip"];
/// Parts of keys whose values may be networks.
const NETWORK_WORDS: [&str; 6] = ["masked", "mask", "cidr", "network", "subnet", "prefix"];
/// Texts that rarely occur except in regular expressions.
const REGEX_PARTS: [&str; 11] =
    [".+", "/.*", r"\d", r"\w", r"\s", r"\.", r"\/", "[0-9", "[a-z", "[A-Z", "(?"];

/// The cause and the fix of a value that is only compared as text.
struct LiteralValue {
    cause: String,
    fix: String,
}

/// Warns if the value of a descriptor looks like more than text.
pub(super) fn warn_literal_value(raw: &Descriptor, at: FileSpan, findings: &mut FileFindings<'_>) {
    let (key, value) = (raw.key.value.as_str(), raw.value.value.as_str());
    let found = find_network(key, value)
        .or_else(|| find_spelling(key, value))
        .or_else(|| find_variable(value))
        .or_else(|| find_path_template(value))
        .or_else(|| find_regular_expression(value))
        .or_else(|| find_alternatives(value));
    if let Some(LiteralValue { cause, fix }) = found {
        let at = FileSpan { span: raw.value.span, ..at };
        let message = format!("the value `{value}` is compared as text: {cause}");
        findings.add(Code::LiteralValue, at, message, fix);
    }
}

fn find_network(key: &str, value: &str) -> Option<LiteralValue> {
    let (Ok(network) | Err(NetworkError::HostBits(network) | NetworkError::Mapped(network))) =
        Network::parse(value)
    else {
        return None;
    };
    is_address_key(key).then(|| LiteralValue {
        cause: format!("`{key}` is one address, which never equals a network"),
        fix: format!("write `network: {network}` instead of `value`"),
    })
}

/// Finds an address in another spelling than the proxy's.
fn find_spelling(key: &str, value: &str) -> Option<LiteralValue> {
    let address = ClientAddress::parse(value).filter(|_| key == "remote_address")?;
    let text = address.value();
    (text != value).then(|| LiteralValue {
        cause: "proxies send each address in one spelling".to_owned(),
        fix: format!("write `{text}`"),
    })
}

fn is_address_key(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let has = |words: &[&str]| key.split(['_', '-', '.']).any(|part| words.contains(&part));
    (has(&ADDRESS_WORDS) && !has(&NETWORK_WORDS)) || key == "x-forwarded-for"
}

/// Finds `$VAR`, `${VAR}`, `$(VAR)`, a Helm template or one of Envoy's `%…%`.
fn find_variable(value: &str) -> Option<LiteralValue> {
    let starts_name = |c: char| c.is_ascii_uppercase() || matches!(c, '_' | '{' | '(');
    let has_dollar = value.split('$').skip(1).any(|rest| rest.starts_with(starts_name));
    let format = value.strip_prefix('%').and_then(|rest| rest.strip_suffix('%'));
    let is_format =
        format.is_some_and(|inside| inside.starts_with(|c: char| c.is_ascii_uppercase()));
    (has_dollar || is_format || value.contains("{{")).then(|| LiteralValue {
        cause: "limits files have no variables".to_owned(),
        fix: "write the value that the proxy sends, or omit `value` to match any value".to_owned(),
    })
}

/// Finds `/orders/{id}` and `/orders/:id`.
fn find_path_template(value: &str) -> Option<LiteralValue> {
    let segments: Vec<_> = value.split('/').collect();
    if !segments.iter().any(|segment| is_placeholder(segment)) {
        return None;
    }
    let stars = segments.iter().map(|segment| if is_placeholder(segment) { "*" } else { segment });
    let pattern = stars.collect::<Vec<&str>>().join("/");
    Some(LiteralValue {
        cause: "a placeholder stands for itself".to_owned(),
        fix: format!("write `*` for any text: `{pattern}`"),
    })
}

fn is_placeholder(segment: &str) -> bool {
    let braced = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    braced.or_else(|| segment.strip_prefix(':')).is_some_and(|name| {
        name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
    })
}

fn find_regular_expression(value: &str) -> Option<LiteralValue> {
    let is_anchored = value.starts_with('^') || (value.starts_with('/') && value.ends_with('$'));
    let is_regex = is_anchored
        || value.starts_with(".*")
        || REGEX_PARTS.iter().any(|part| value.contains(part));
    is_regex.then(|| LiteralValue {
        cause: "values are no regular expressions".to_owned(),
        fix: "use `*` for any text, or match in Envoy with `header_value_match`".to_owned(),
    })
}

fn find_alternatives(value: &str) -> Option<LiteralValue> {
    let parts: Vec<_> = value.split('|').collect();
    let are_words = |part: &&str| !part.is_empty() && !part.contains(char::is_whitespace);
    (1 < parts.len() && parts.iter().all(are_words)).then(|| LiteralValue {
        cause: "`|` stands for itself, not for alternatives".to_owned(),
        fix: format!("write one descriptor for each value: `{}`", parts.join("`, `")),
    })
}
