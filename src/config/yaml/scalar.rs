//! The values of scalars in YAML 1.1, as in envoyproxy/ratelimit.
//!
//! Guarantees:
//! - Each boolean has eleven spellings.
//! - Integers may have `_`, a sign, `0x`, `0b`, `0o` or a leading zero (octal).
//! - Base 60 is not supported.
//! - A number with a leading zero and an 8 or 9 is a float.
//! - Dates are text.
//!
//! Not covered:
//! - Tags on mappings and lists, which have no effect.

use super::timestamp::is_timestamp;

#[derive(Clone, Debug, PartialEq)]
pub(in crate::config) enum Value {
    /// An empty text, `~` or `null`.
    Null,
    Bool(bool),
    Int(i64),
    /// An integer above `i64::MAX`.
    Big(u64),
    Float(f64),
    Text,
    /// Decoded `!!binary`.
    Binary(Vec<u8>),
}

const STANDARD: &str = "tag:yaml.org,2002:";

/// Returns the value of a scalar.
///
/// # Errors
///
/// Returns the tag's short name if it is a standard tag that does not fit the text.
pub(super) fn value(text: &str, tag: &str, plain: bool) -> Result<Value, &'static str> {
    let Some(standard) = tag.strip_prefix(STANDARD) else {
        let by_looks = plain && tag.is_empty();
        return Ok(if by_looks { by_its_looks(text) } else { Value::Text });
    };
    match (standard, by_its_looks(text)) {
        ("binary", _) => base64(text).map(Value::Binary).ok_or("!!binary"),
        ("timestamp", _) => is_timestamp(text).then_some(Value::Text).ok_or("!!timestamp"),
        ("bool", value @ Value::Bool(_))
        | ("null", value @ Value::Null)
        | ("int", value @ (Value::Int(_) | Value::Big(_)))
        | ("float", value @ Value::Float(_)) => Ok(value),
        ("float", Value::Int(value)) => Ok(Value::Float(float(value))),
        ("bool", _) => Err("!!bool"),
        ("null", _) => Err("!!null"),
        ("int", _) => Err("!!int"),
        ("float", _) => Err("!!float"),
        _ => Ok(Value::Text),
    }
}

#[expect(clippy::cast_precision_loss, reason = "that is what the tag asks for")]
fn float(value: i64) -> f64 {
    value as f64
}

fn by_its_looks(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Value::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Value::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" => Value::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Value::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Value::Float(f64::NEG_INFINITY),
        _ => number(text).unwrap_or(Value::Text),
    }
}

fn number(text: &str) -> Option<Value> {
    match text.as_bytes().first()? {
        b'.' => fraction(text),
        b'+' | b'-' | b'0'..=b'9' => {
            let digits = text.replace('_', "");
            integer(&digits).or_else(|| decimal(&digits)).or_else(|| signed_binary(&digits))
        }
        _ => None,
    }
}

fn integer(text: &str) -> Option<Value> {
    let unsigned = text.strip_prefix(['+', '-']);
    let (radix, digits) = radix(unsigned.unwrap_or(text));
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if text.starts_with('-') {
        return 0_i64.checked_sub_unsigned(magnitude).map(Value::Int);
    }
    match i64::try_from(magnitude) {
        Ok(value) => Some(Value::Int(value)),
        Err(_) => unsigned.is_none().then_some(Value::Big(magnitude)),
    }
}

/// Parses `0b-1` and `0b+1`. Only binary integers may have the sign after the prefix.
fn signed_binary(text: &str) -> Option<Value> {
    let digits = text.strip_prefix("0b")?;
    i64::from_str_radix(digits, 2).ok().map(Value::Int)
}

fn radix(text: &str) -> (u32, &str) {
    match text.as_bytes() {
        [b'0', b'x' | b'X', _, ..] => (16, &text[2..]),
        [b'0', b'b' | b'B', _, ..] => (2, &text[2..]),
        [b'0', b'o' | b'O', _, ..] => (8, &text[2..]),
        [b'0', _, ..] => (8, &text[1..]),
        _ => (10, text),
    }
}

/// Parses `[-+]? (digits [. digits?] | . digits) ([eE] [-+]? digits)?` if it is finite.
fn decimal(text: &str) -> Option<Value> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let shaped = digits(whole) && digits(part) && digits(exponent) && !exponent.is_empty();
    if !shaped || mantissa.len() <= mantissa.matches('.').count() {
        return None;
    }
    text.parse().ok().filter(|value: &f64| value.is_finite()).map(Value::Float)
}

/// Parses a number that starts with its decimal point. `_` is valid only between digits.
fn fraction(text: &str) -> Option<Value> {
    let digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let parts = text.match_indices('_').all(|(at, _)| digit(at.wrapping_sub(1)) && digit(at + 1));
    if parts { decimal(&text.replace('_', "")) } else { None }
}

/// Decodes standard base64 with padding. Line ends may be anywhere.
fn base64(text: &str) -> Option<Vec<u8>> {
    let coded: Vec<u8> = text.bytes().filter(|b| !matches!(b, b'\r' | b'\n')).collect();
    let (quads, rest) = coded.as_chunks::<4>();
    let (last, full) = quads.split_last().map_or((None, quads), |(last, full)| (Some(last), full));
    let mut bytes = Vec::with_capacity(coded.len());
    for quad in full {
        bytes.extend(triple(*quad)?);
    }
    if let Some(quad) = last {
        let padding = quad.iter().rev().take_while(|b| **b == b'=').count();
        let whole = quad.map(|b| if b == b'=' { b'A' } else { b });
        let padded_in_place = quad[..4_usize.checked_sub(padding)?].iter().all(|b| *b != b'=');
        if 2 < padding || !padded_in_place {
            return None;
        }
        bytes.extend(&triple(whole)?[..3_usize.checked_sub(padding)?]);
    }
    rest.is_empty().then_some(bytes)
}

fn triple(quad: [u8; 4]) -> Option<[u8; 3]> {
    let mut bits = 0_u32;
    for byte in quad {
        bits = bits << 6 | u32::from(sextet(byte)?);
    }
    let [_, a, b, c] = bits.to_be_bytes();
    Some([a, b, c])
}

fn sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}
