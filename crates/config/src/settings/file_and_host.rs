//! Parses settings that are the path of a file or the name of a host.
//!
//! Guarantees:
//! - Files are not opened and host names are not resolved here.
//! - An empty text means that the setting is not set.

use std::path::PathBuf;

use serde_json::{Value as Json, json};

use super::value::{Value, quoted};

impl Value for Option<PathBuf> {
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [""] => Some(None),
            [text] => (!text.contains('\0')).then(|| Some(PathBuf::from(text))),
            _ => None,
        }
    }
    fn accepts() -> String {
        "the path of a file, or nothing for none".to_owned()
    }
    fn show(&self) -> String {
        quoted(&self.as_ref().map(|path| path.to_string_lossy()).unwrap_or_default())
    }
    fn schema() -> Json {
        json!({"type": "string"})
    }
}

/// A DNS name or an IP address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

impl HostName {
    /// Returns a host name if `text` is a DNS name or an IP address without brackets; otherwise
    /// `None`.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_valid_byte = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let is_name = !text.is_empty() && text.len() <= 253 && text.bytes().all(is_valid_byte);
        (is_name || text.parse::<std::net::IpAddr>().is_ok()).then(|| Self(text.to_owned()))
    }

    /// Returns the host name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Value for Option<HostName> {
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [""] => Some(None),
            [text] => HostName::new(text).map(Some),
            _ => None,
        }
    }
    fn accepts() -> String {
        "a DNS name or an IP address, or nothing for none".to_owned()
    }
    fn show(&self) -> String {
        quoted(self.as_ref().map(HostName::as_str).unwrap_or_default())
    }
    fn schema() -> Json {
        json!({"type": "string", "maxLength": 253, "pattern": "^[0-9A-Za-z._:-]*$"})
    }
}
