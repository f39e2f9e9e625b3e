//! Percent-encodes and decodes parts of URLs.
//!
//! Guarantees:
//! - Decoding an encoded text gives the same text.

/// Percent-encodes `text`, except letters, digits, `-._~` and the characters in `plain`.
#[must_use]
pub fn encode_percent(text: &str, plain: &str) -> String {
    let encode = |byte: u8| match char::from(byte) {
        c if c.is_ascii_alphanumeric() || "-._~".contains(c) => c.to_string(),
        c if byte.is_ascii() && plain.contains(c) => c.to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// Decodes `%` escapes: `%41` becomes `A`.
pub(super) fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    let nibble = |byte: Option<u8>| char::from(byte?).to_digit(16);
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let code = nibble(bytes.next())? * 16 + nibble(bytes.next())?;
            plain.push(u8::try_from(code).ok()?);
        } else {
            plain.push(byte);
        }
    }
    String::from_utf8(plain).ok()
}
