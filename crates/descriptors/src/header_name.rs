//! Names of request headers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name of a request header, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String")]
#[schemars(with = "String")]
pub struct HeaderName(String);

impl HeaderName {
    /// Returns the name in lower case.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for HeaderName {
    fn from(mut name: String) -> Self {
        name.make_ascii_lowercase();
        Self(name)
    }
}
