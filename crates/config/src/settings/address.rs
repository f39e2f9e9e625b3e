//! Parses settings that are an IP address to listen on, or a host and port to connect to.
//!
//! Guarantees:
//! - An empty text means that the setting is not set.
//! - Host names are not resolved here.

use std::net::IpAddr;

use serde_json::{Value as Json, json};

use super::host_port::{HostPort, parse_address};
use super::value::{Value, quoted};

impl Value for Option<IpAddr> {
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [""] => Some(None),
            [text] => text.parse().ok().map(Some),
            _ => None,
        }
    }
    fn accepts() -> String {
        "an IP address, or nothing for the common one".to_owned()
    }
    fn show(&self) -> String {
        quoted(&self.map(|address| address.to_string()).unwrap_or_default())
    }
    fn schema() -> Json {
        json!({"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}, {"maxLength": 0}]})
    }
}

impl Value for Option<HostPort> {
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [""] => Some(None),
            // The default port 0 marks a missing port, which is invalid here.
            [text] => parse_address(text, 0).filter(|address| address.port != 0).map(Some),
            _ => None,
        }
    }
    fn accepts() -> String {
        "host:port, or nothing for none".to_owned()
    }
    fn show(&self) -> String {
        quoted(&self.as_ref().map(ToString::to_string).unwrap_or_default())
    }
    fn schema() -> Json {
        json!({"type": "string", "pattern": "^(.+:[0-9]+)?$"})
    }
}
