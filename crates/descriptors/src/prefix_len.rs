//! The lengths of the prefixes by which an action masks addresses.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// A length of a prefix, 0 to `MAX` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PrefixLen<const MAX: u8>(u8);

impl<const MAX: u8> PrefixLen<MAX> {
    /// Returns the number of bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

/// All bits, so that each address is a network of its own. This is Envoy's default, too.
impl<const MAX: u8> Default for PrefixLen<MAX> {
    fn default() -> Self {
        Self(MAX)
    }
}

impl<'de, const MAX: u8> Deserialize<'de> for PrefixLen<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bits = f64::deserialize(deserializer).ok();
        // Envoy passes all numbers of a Struct as decimals.
        let bits = bits
            .and_then(|bits| (0..=MAX).find(|whole| f64::from(*whole).total_cmp(&bits).is_eq()));
        let expected = || format!("invalid length, expected a whole number from 0 to {MAX}");
        bits.map(Self).ok_or_else(|| D::Error::custom(expected()))
    }
}

impl<const MAX: u8> JsonSchema for PrefixLen<MAX> {
    fn schema_name() -> Cow<'static, str> {
        format!("PrefixLen{MAX}").into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": 0, "maximum": MAX})
    }
}
