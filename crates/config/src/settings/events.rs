//! Parses settings of events and of the mirror: the receiver's URL, kinds of events.
//!
//! Guarantees:
//! - A URL with credentials or a fragment is rejected.
//! - Only scheme and host of a URL are printed: its path and query may be secrets.

use std::fmt;

use hyper::http::Uri;
use serde_json::{Value as Json, json};

use super::masked_url::masked;
use super::value::{Shape, Value, quoted};

/// The URL of a program that receives events, or has a table: scheme `http` or `https`, with a host.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpUrl {
    text: String,
    /// Scheme, host and port.
    origin: String,
}

impl HttpUrl {
    /// Returns the URL if `text` is one with the scheme `http` or `https`, a host, and neither
    /// credentials nor a fragment; otherwise `None`.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        let authority = uri.authority()?.as_str();
        let has_host = uri.host().is_some_and(|host| !host.is_empty()) && !authority.contains('@');
        let origin = format!("{}://{authority}", uri.scheme_str()?);
        (is_http && has_host && !text.contains('#')).then(|| Self { text: text.to_owned(), origin })
    }

    /// Returns `true` if the URL has a path or a query, which may be secrets.
    fn has_more_than_origin(&self) -> bool {
        !matches!(self.text.strip_prefix(&self.origin), Some("" | "/"))
    }

    /// Returns the whole URL, for requests. It may contain a secret.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// Formats scheme, host and port.
impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)
    }
}

impl fmt::Debug for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpUrl({self})")
    }
}

impl Value for Option<HttpUrl> {
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [""] => Some(None),
            [text] => HttpUrl::new(text).map(Some),
            _ => None,
        }
    }
    fn accepts() -> String {
        "a URL such as https://events.internal/sluicegate, or nothing for none".to_owned()
    }
    fn show(&self) -> String {
        let text = |url: &HttpUrl| {
            if url.has_more_than_origin() { url.to_string() } else { url.text.clone() }
        };
        quoted(&self.as_ref().map(text).unwrap_or_default())
    }
    fn hides_secret(&self) -> bool {
        self.as_ref().is_some_and(HttpUrl::has_more_than_origin)
    }
    fn schema() -> Json {
        json!({"type": "string", "pattern": "^(https?://[^@#]+)?$"})
    }
    fn masked(text: &str) -> String {
        masked(text)
    }
}

/// A set of kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch that a person sets")]
pub struct EventKinds {
    /// An allowed check used much of its limit.
    pub near_limit: bool,
    /// A limit denied a check.
    pub denied: bool,
    /// This replica's share of a concurrency limit expired.
    pub fenced: bool,
    /// An operator forced a decision, or ended one.
    pub forced: bool,
    /// A key was banned, or an operator lifted a ban.
    pub banned: bool,
    /// The store became unavailable, or available again.
    pub store_down: bool,
}

/// The words of the kinds, in the order of [`EventKinds::flags`].
const KIND_WORDS: [&str; 6] = ["near_limit", "denied", "fenced", "forced", "banned", "store_down"];

impl EventKinds {
    /// All kinds of events.
    pub const ALL: Self = Self {
        near_limit: true,
        denied: true,
        fenced: true,
        forced: true,
        banned: true,
        store_down: true,
    };

    const fn flags(self) -> [bool; 6] {
        [self.near_limit, self.denied, self.fenced, self.forced, self.banned, self.store_down]
    }
}

impl Value for EventKinds {
    const SHAPE: Shape = Shape::Many;
    fn read(texts: &[&str]) -> Option<Self> {
        let is_known = texts.iter().all(|text| KIND_WORDS.contains(text)) && !texts.is_empty();
        let [near_limit, denied, fenced, forced, banned, store_down] =
            KIND_WORDS.map(|word| texts.contains(&word));
        is_known.then_some(Self { near_limit, denied, fenced, forced, banned, store_down })
    }
    fn accepts() -> String {
        format!("one or more of {}", KIND_WORDS.join(", "))
    }
    fn show(&self) -> String {
        let kinds = KIND_WORDS.iter().zip(self.flags());
        let words: Vec<&str> = kinds.filter_map(|(word, is_on)| is_on.then_some(*word)).collect();
        json!(words).to_string()
    }
    fn schema() -> Json {
        json!({
            "type": ["array", "string"],
            "minItems": 1,
            "items": {"type": "string", "enum": KIND_WORDS},
            "pattern": format!("^({})$", KIND_WORDS.join("|")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_urls_without_credentials_receive_events() {
        for text in ["http://127.0.0.1:80/a?b=c", "https://events.internal", "http://[::1]:8080/x"]
        {
            assert_eq!(HttpUrl::new(text).unwrap().as_str(), text);
        }
        for text in
            ["/path", "host:80", "ftp://h/", "http://", "http://user:pw@h/", "http://h/#f", "h"]
        {
            assert_eq!(HttpUrl::new(text), None, "{text}");
        }
    }

    #[test]
    fn only_scheme_and_host_of_a_webhook_are_printed() {
        let url = HttpUrl::new("https://hooks.example:8443/services/T0/s3cret?token=s3cret");
        assert_eq!(url.show(), r#""https://hooks.example:8443""#);
        assert!(!format!("{url:?}").contains("s3cret"));
        assert_eq!(<Option<HttpUrl>>::masked("https://me:s3cret@h/s3cret"), "https://…@h");
    }

    #[test]
    fn kinds_of_events_are_a_list_of_known_words() {
        let kinds = EventKinds::read(&["denied", "store_down"]).unwrap();
        assert!(kinds.denied && kinds.store_down && !kinds.near_limit && !kinds.fenced);
        assert_eq!(kinds.show(), r#"["denied","store_down"]"#);
        assert_eq!(EventKinds::read(&KIND_WORDS), Some(EventKinds::ALL));
        assert_eq!((EventKinds::read(&["deny"]), EventKinds::read(&[])), (None, None));
    }
}
