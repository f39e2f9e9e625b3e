//! The typed values of scalars in YAML 1.1, as in envoyproxy/ratelimit's parser.
//!
//! Guarantees:
//! - `true` and `false` have eleven spellings each, such as `yes` and `Off`.
//! - Integers may have `_`, a sign, the prefix `0x`, `0b` or `0o`, or a leading zero (octal).
//! - Numbers in base 60, such as `1:30`, are text.
//! - A number with a leading zero and the digit 8 or 9 is a float.
//! - Dates such as `2024-01-31` are text.
//!
//! Not covered:
//! - Tags on mappings and lists, which have no effect.

use super::timestamp::is_timestamp;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ScalarValue {
    /// An empty text, `~` or `null`.
    Null,
    Bool(bool),
    Int(i64),
    /// An integer above `i64::MAX`.
    Unsigned(u64),
    Float(f64),
    Text,
    /// The decoded bytes of a scalar with the tag `!!binary`.
    Binary(Vec<u8>),
}

const STANDARD_TAG_PREFIX: &str = "tag:yaml.org,2002:";

/// Returns the typed value of a scalar with this text, tag and style.
///
/// # Errors
///
/// Returns the short name of a standard tag, such as `!!int`, if the tag does not fit the text.
pub(super) fn parse_scalar(
    text: &str,
    tag: &str,
    plain: bool,
) -> Result<ScalarValue, &'static str> {
    let Some(standard) = tag.strip_prefix(STANDARD_TAG_PREFIX) else {
        let is_untyped = plain && tag.is_empty();
        return Ok(if is_untyped { plain_value(text) } else { ScalarValue::Text });
    };
    match (standard, plain_value(text)) {
        ("binary", _) => decode_base64(text).map(ScalarValue::Binary).ok_or("!!binary"),
        ("timestamp", _) => is_timestamp(text).then_some(ScalarValue::Text).ok_or("!!timestamp"),
        ("bool", value @ ScalarValue::Bool(_))
        | ("null", value @ ScalarValue::Null)
        | ("int", value @ (ScalarValue::Int(_) | ScalarValue::Unsigned(_)))
        | ("float", value @ ScalarValue::Float(_)) => Ok(value),
        ("float", ScalarValue::Int(value)) => Ok(ScalarValue::Float(int_to_float(value))),
        ("bool", _) => Err("!!bool"),
        ("null", _) => Err("!!null"),
        ("int", _) => Err("!!int"),
        ("float", _) => Err("!!float"),
        _ => Ok(ScalarValue::Text),
    }
}

#[expect(clippy::cast_precision_loss, reason = "that is what the tag asks for")]
fn int_to_float(value: i64) -> f64 {
    value as f64
}

fn plain_value(text: &str) -> ScalarValue {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => ScalarValue::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            ScalarValue::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            ScalarValue::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" => ScalarValue::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => ScalarValue::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => ScalarValue::Float(f64::NEG_INFINITY),
        _ => parse_number(text).unwrap_or(ScalarValue::Text),
    }
}

fn parse_number(text: &str) -> Option<ScalarValue> {
    match text.as_bytes().first()? {
        b'.' => parse_fraction(text),
        b'+' | b'-' | b'0'..=b'9' => {
            let digits = text.replace('_', "");
            parse_integer(&digits)
                .or_else(|| parse_decimal(&digits))
                .or_else(|| parse_signed_binary(&digits))
        }
        _ => None,
    }
}

fn parse_integer(text: &str) -> Option<ScalarValue> {
    let unsigned = text.strip_prefix(['+', '-']);
    let (radix, digits) = split_radix(unsigned.unwrap_or(text));
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if text.starts_with('-') {
        return 0_i64.checked_sub_unsigned(magnitude).map(ScalarValue::Int);
    }
    match i64::try_from(magnitude) {
        Ok(value) => Some(ScalarValue::Int(value)),
        Err(_) => unsigned.is_none().then_some(ScalarValue::Unsigned(magnitude)),
    }
}

/// Parses a binary integer with a sign after its prefix, such as `0b-1`. Other integers may have a
/// sign only at the start.
fn parse_signed_binary(text: &str) -> Option<ScalarValue> {
    let digits = text.strip_prefix("0b")?;
    i64::from_str_radix(digits, 2).ok().map(ScalarValue::Int)
}

fn split_radix(text: &str) -> (u32, &str) {
    match text.as_bytes() {
        [b'0', b'x' | b'X', _, ..] => (16, &text[2..]),
        [b'0', b'b' | b'B', _, ..] => (2, &text[2..]),
        [b'0', b'o' | b'O', _, ..] => (8, &text[2..]),
        [b'0', _, ..] => (8, &text[1..]),
        _ => (10, text),
    }
}

/// Parses a finite decimal number: `[-+]? (digits [. digits?] | . digits) ([eE] [-+]? digits)?`.
fn parse_decimal(text: &str) -> Option<ScalarValue> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let has_number_shape =
        digits(whole) && digits(fraction) && digits(exponent) && !exponent.is_empty();
    if !has_number_shape || mantissa.len() <= mantissa.matches('.').count() {
        return None;
    }
    text.parse().ok().filter(|value: &f64| value.is_finite()).map(ScalarValue::Float)
}

/// Parses a number that starts with its decimal point, such as `.5`. `_` is valid only between
/// digits.
fn parse_fraction(text: &str) -> Option<ScalarValue> {
    let digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let parts = text.match_indices('_').all(|(at, _)| digit(at.wrapping_sub(1)) && digit(at + 1));
    if parts { parse_decimal(&text.replace('_', "")) } else { None }
}

/// Decodes standard base64 with padding. Line ends are allowed at any position.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let coded: Vec<u8> = text.bytes().filter(|b| !matches!(b, b'\r' | b'\n')).collect();
    let (quads, rest) = coded.as_chunks::<4>();
    let (last, full) = quads.split_last().map_or((None, quads), |(last, full)| (Some(last), full));
    let mut bytes = Vec::with_capacity(coded.len());
    for quad in full {
        bytes.extend(decode_quad(*quad)?);
    }
    if let Some(quad) = last {
        let padding = quad.iter().rev().take_while(|b| **b == b'=').count();
        let whole = quad.map(|b| if b == b'=' { b'A' } else { b });
        let padded_in_place = quad[..4_usize.checked_sub(padding)?].iter().all(|b| *b != b'=');
        if 2 < padding || !padded_in_place {
            return None;
        }
        bytes.extend(&decode_quad(whole)?[..3_usize.checked_sub(padding)?]);
    }
    rest.is_empty().then_some(bytes)
}

fn decode_quad(quad: [u8; 4]) -> Option<[u8; 3]> {
    let mut bits = 0_u32;
    for byte in quad {
        bits = bits << 6 | u32::from(decode_sextet(byte)?);
    }
    let [_, a, b, c] = bits.to_be_bytes();
    Some([a, b, c])
}

fn decode_sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}
