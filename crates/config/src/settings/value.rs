//! The types of setting values, and their conversion from and to text.
//!
//! Guarantees:
//! - A text has the same meaning in a flag, an environment variable and `server.yaml`.
//! - The error message for an invalid text describes the valid ones.
//! - `read` accepts the output of `show`, except for secrets.
//!
//! Not covered:
//! - The list of settings (see [`mod@super::table`]), and conflicts between them.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use crate::kernel::units::Nanos;
use serde_json::{Value as Json, json};

/// The number of texts of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Exactly one text.
    One,
    /// One text or none. A flag without a value means `true`.
    Switch,
    /// Any number of texts.
    Many,
    /// A YAML block in `server.yaml`. In a flag or variable, the block is one text in JSON.
    Block,
}

/// A type of setting values.
pub trait Value: Sized {
    /// The number of texts of a setting's value.
    const SHAPE: Shape = Shape::One;
    /// All valid texts, if they are a closed list; otherwise empty.
    const CHOICES: &'static [&'static str] = &[];
    /// `true` if the value is a secret, which is not printed, not even in an error.
    const HIDDEN: bool = false;
    /// `true` for numbers and booleans. `server.yaml` may contain them in any YAML notation, such
    /// as `0x10` or `yes`. Values of other types are taken as written.
    const IS_SCALAR: bool = false;
    /// Returns the value of these texts, or `None` if they are invalid.
    fn read(texts: &[&str]) -> Option<Self>;
    /// Returns a description of the valid values as part of a sentence: `a port from 0 to 65535`.
    fn accepts() -> String;
    /// Returns the value as YAML, with secrets masked.
    fn show(&self) -> String;
    /// Returns `true` if the output of [`Value::show`] lacks a secret, so that it cannot be read
    /// back.
    fn hides_secret(&self) -> bool {
        false
    }
    /// Returns the JSON Schema of the value.
    fn schema() -> Json;
    /// Returns the reason why a text is invalid, if it is more specific than [`Value::accepts`].
    /// For a text of [`Shape::Block`], it contains the position in the block.
    #[must_use]
    fn why(_text: &str) -> Option<String> {
        None
    }
    /// Returns an invalid text for an error message, with secrets masked.
    #[must_use]
    fn masked(text: &str) -> String {
        text.to_owned()
    }
}

/// Returns the JSON Schema of a setting with [`Shape::Block`].
pub(super) fn block_schema<T: schemars::JsonSchema>() -> Json {
    let settings = schemars::generate::SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(fields) = schema.as_object_mut() {
        fields.retain(|field, _| field != "$schema" && field != "title");
    }
    schema
}

fn parse_one<T: FromStr>(texts: &[&str]) -> Option<T> {
    match texts {
        [text] => text.parse().ok(),
        _ => None,
    }
}

/// Parses a whole number. Digits may be grouped by `_`: `1_000_000`.
fn parse_whole_number<T: FromStr>(texts: &[&str]) -> Option<T> {
    match texts {
        [text] if text.starts_with(|c: char| c.is_ascii_digit()) => {
            text.replace('_', "").parse().ok()
        }
        _ => None,
    }
}

macro_rules! whole_numbers {
    ($($type:ty: $accepts:literal;)*) => { $(
        impl Value for $type {
            const IS_SCALAR: bool = true;
            fn read(texts: &[&str]) -> Option<Self> {
                parse_whole_number(texts)
            }
            fn accepts() -> String {
                $accepts.to_owned()
            }
            fn show(&self) -> String {
                self.to_string()
            }
            fn schema() -> Json {
                json!({"type": "integer", "minimum": 0, "maximum": <$type>::MAX})
            }
        }
    )* };
}

whole_numbers! {
    u16: "a whole number from 0 to 65535";
    u32: "a whole number from 0 to 4294967295";
    u64: "a whole number from 0";
}

/// A whole number of at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtLeastOne(NonZeroU32);

impl AtLeastOne {
    /// The number 1.
    pub const ONE: Self = Self(NonZeroU32::MIN);
    /// The number 4.
    pub const FOUR: Self = Self(NonZeroU32::MIN.saturating_add(3));

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> NonZeroU32 {
        self.0
    }
}

impl Value for AtLeastOne {
    const IS_SCALAR: bool = true;
    fn read(texts: &[&str]) -> Option<Self> {
        parse_whole_number(texts).and_then(NonZeroU32::new).map(Self)
    }
    fn accepts() -> String {
        "a whole number from 1 to 4294967295".to_owned()
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
    fn schema() -> Json {
        json!({"type": "integer", "minimum": 1, "maximum": u32::MAX})
    }
}

/// A text that may be part of a Redis key: printable ASCII without blanks. Braces are invalid,
/// because Redis Cluster would compute the slot only from the text inside them.
impl Value for String {
    fn read(texts: &[&str]) -> Option<Self> {
        let is_valid_byte = |byte: u8| byte.is_ascii_graphic() && !b"{}".contains(&byte);
        match texts {
            [text] if text.len() <= 64 && text.bytes().all(is_valid_byte) => {
                Some((*text).to_owned())
            }
            _ => None,
        }
    }
    fn accepts() -> String {
        "up to 64 printable ASCII characters without blanks and braces".to_owned()
    }
    fn show(&self) -> String {
        quoted(self)
    }
    fn schema() -> Json {
        json!({"type": "string", "maxLength": 64, "pattern": "^[!-z|~]*$"})
    }
}

impl Value for bool {
    const SHAPE: Shape = Shape::Switch;
    const IS_SCALAR: bool = true;
    const CHOICES: &'static [&'static str] = &["true", "false"];
    fn read(texts: &[&str]) -> Option<Self> {
        parse_one(texts)
    }
    fn accepts() -> String {
        "true or false".to_owned()
    }
    fn show(&self) -> String {
        self.to_string()
    }
    fn schema() -> Json {
        json!({"type": "boolean"})
    }
}

impl Value for IpAddr {
    fn read(texts: &[&str]) -> Option<Self> {
        parse_one(texts)
    }
    fn accepts() -> String {
        "an IP address such as 127.0.0.1, 0.0.0.0 or ::".to_owned()
    }
    fn show(&self) -> String {
        quoted(&self.to_string())
    }
    fn schema() -> Json {
        json!({"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]})
    }
}

impl Value for Vec<PathBuf> {
    const SHAPE: Shape = Shape::Many;
    fn read(texts: &[&str]) -> Option<Self> {
        texts.iter().map(|text| (!text.is_empty()).then(|| PathBuf::from(text))).collect()
    }
    fn accepts() -> String {
        "paths of files or directories".to_owned()
    }
    fn show(&self) -> String {
        let shown: Vec<_> = self.iter().map(|path| quoted(&path.to_string_lossy())).collect();
        format!("[{}]", shown.join(", "))
    }
    fn schema() -> Json {
        json!({"type": ["array", "string"], "items": {"type": "string", "minLength": 1}})
    }
}

impl Value for Nanos {
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [text] => parse_duration(text),
            _ => None,
        }
    }
    fn accepts() -> String {
        "a whole number with its unit: ns, us, ms, s, m, h or d; for example 250ms or 5s".to_owned()
    }
    fn show(&self) -> String {
        self.to_string()
    }
    fn schema() -> Json {
        json!({"type": "string", "pattern": "^([0-9]+(ns|us|ms|s|m|h|d)|0)$"})
    }
}

/// Parses a duration such as `250ms`. The text `0` needs no unit.
fn parse_duration(text: &str) -> Option<Nanos> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        "" if number == "0" => 1,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit).map(Nanos)
}

/// The name of an HTTP header, or an empty text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderName(String);

impl HeaderName {
    /// Returns the name if `name` is empty or a valid HTTP header name of at most 256 bytes.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let is_valid = name.len() <= 256 && name.bytes().all(is_token_char);
        is_valid.then(|| Self(name.to_owned()))
    }

    /// Returns the name in the case in which it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns `true` for a character of a header name (token, RFC 9110, section 5.6.2).
fn is_token_char(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

impl Value for HeaderName {
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [text] => Self::new(text),
            _ => None,
        }
    }
    fn accepts() -> String {
        "an HTTP header name, or nothing for an empty one".to_owned()
    }
    fn show(&self) -> String {
        quoted(&self.0)
    }
    fn schema() -> Json {
        json!({"type": "string", "maxLength": 256, "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]*$"})
    }
}

/// A secret that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    /// Returns the secret if `text` is printable ASCII without blanks, and not empty.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_valid = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_valid.then(|| Self(text.to_owned()))
    }

    /// The length of the shortest token or secret of a port, in characters: 16 random characters
    /// are at least 96 bits.
    pub const SHORTEST: usize = 16;

    /// Returns `true` if the secret has fewer than [`Self::SHORTEST`] characters.
    #[must_use]
    pub const fn is_short(&self) -> bool {
        self.0.len() < Self::SHORTEST
    }

    /// Returns the plain text of the secret.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns `true` if `offered` equals the secret. All bytes are compared, so that the duration
    /// does not reveal how many are right.
    #[must_use]
    pub fn matches(&self, offered: &[u8]) -> bool {
        let differing = self.0.bytes().zip(offered).fold(0, |sum, (a, b)| sum | (a ^ b));
        self.0.len() == offered.len() && std::hint::black_box(differing) == 0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Value for Option<SecretText> {
    const HIDDEN: bool = true;
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [""] => Some(None),
            [text] => SecretText::new(text).map(Some),
            _ => None,
        }
    }
    fn accepts() -> String {
        "printable ASCII without blanks, or nothing for none".to_owned()
    }
    fn show(&self) -> String {
        quoted(if self.is_some() { "(set, not shown)" } else { "" })
    }
    fn hides_secret(&self) -> bool {
        self.is_some()
    }
    fn schema() -> Json {
        json!({"type": "string", "pattern": "^[!-~]*$"})
    }
}

/// Returns `text` as a double-quoted scalar that is valid in both YAML and JSON.
pub(super) fn quoted(text: &str) -> String {
    Json::from(text).to_string()
}
