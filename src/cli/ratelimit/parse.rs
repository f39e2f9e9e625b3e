//! Parses environment variables like envoyproxy/ratelimit, by the rules of Go and its `envconfig`
//! library: accepts and refuses the same texts, except hexadecimal floats.

/// The type of an environment variable of envoyproxy/ratelimit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariableKind {
    /// Any text.
    Text,
    /// A Boolean: `1 t T true TRUE True 0 f F false FALSE False`.
    Bool,
    /// An integer, optionally with a prefix for base 2, 8 or 16, and `_` between digits.
    Int,
    /// A floating-point number, with `_` between digits.
    Float,
    /// A sum of numbers with units, such as `1h30m`.
    Duration,
    /// A list: `a,b`.
    List,
    /// Names and their texts: `a:b,c:d`.
    Map,
}

impl VariableKind {
    /// Describes the accepted texts, for an error message.
    #[must_use]
    pub const fn accepts(self) -> &'static str {
        match self {
            Self::Text => "any text",
            Self::Bool => "true or false (1, t, T, TRUE, True, 0, f, F, FALSE, False)",
            Self::Int => "a whole number",
            Self::Float => "a number",
            Self::Duration => "a duration with a unit, such as 10s, 150us or 1h30m",
            Self::List => "a comma-separated list",
            Self::Map => "comma-separated name:text pairs, with one colon in each",
        }
    }
}

/// The parsed value of an environment variable of envoyproxy/ratelimit.
#[derive(Clone, Debug, PartialEq)]
pub enum VariableValue {
    /// A value of type [`VariableKind::Text`].
    Text(String),
    /// A value of type [`VariableKind::Bool`].
    Bool(bool),
    /// A value of type [`VariableKind::Int`].
    Int(i64),
    /// A value of type [`VariableKind::Float`].
    Float(f32),
    /// A value of type [`VariableKind::Duration`], in nanoseconds.
    Duration(i64),
    /// A value of type [`VariableKind::List`].
    List(Vec<String>),
    /// A value of type [`VariableKind::Map`].
    Map(Vec<(String, String)>),
}

/// Parses `text`, or returns `None` if envoyproxy/ratelimit would refuse it.
#[must_use]
pub fn parse_variable(kind: VariableKind, text: &str) -> Option<VariableValue> {
    Some(match kind {
        VariableKind::Text => VariableValue::Text(text.to_owned()),
        VariableKind::Bool => VariableValue::Bool(parse_bool(text)?),
        VariableKind::Int => VariableValue::Int(parse_int(text)?),
        VariableKind::Float => VariableValue::Float(parse_float(text)?),
        VariableKind::Duration => VariableValue::Duration(parse_duration(text)?),
        VariableKind::List => VariableValue::List(split_list(text).map(str::to_owned).collect()),
        VariableKind::Map => {
            VariableValue::Map(split_list(text).map(parse_pair).collect::<Option<_>>()?)
        }
    })
}

fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Parses an integer: a sign, a base prefix (`0` alone means octal) and digits, with `_` after the
/// prefix or between digits.
fn parse_int(text: &str) -> Option<i64> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = rest.to_ascii_lowercase();
    let (base, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, &lower[..]),
    };
    // Only digits after a base prefix may start with `_`.
    let is_valid = base != 10 || !digits.starts_with('_');
    let digits = remove_underscores(digits).filter(|_| is_valid)?;
    if digits.starts_with(['+', '-']) {
        return None;
    }
    i64::from_str_radix(&format!("{sign}{digits}"), base).ok()
}

/// Removes single underscores between digits. Returns `None` for other underscores.
fn remove_underscores(digits: &str) -> Option<String> {
    let is_valid = !digits.contains("__") && !digits.ends_with('_');
    is_valid.then(|| digits.replace('_', ""))
}

fn parse_float(text: &str) -> Option<f32> {
    let parts: Vec<_> = text.split('_').collect();
    let digit = |c: char| c.is_ascii_digit();
    let between = |pair: &[&str]| pair[0].ends_with(digit) && pair[1].starts_with(digit);
    parts.windows(2).all(between).then(|| parts.concat())?.parse().ok()
}

/// The units of a Go duration, with their length in nanoseconds.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// The number of decimal places of a duration to read. Others are below a nanosecond.
const MAX_FRACTION_DIGITS: usize = 18;

fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total = 0_u128;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let (part, after) = parse_part(rest)?;
        total = total.checked_add(part)?;
        rest = after;
    }
    let total = i64::try_from(total).ok()?;
    Some(if negative { -total } else { total })
}

/// Parses the first number and its unit, such as `1h` in `1h30m`. Returns nanoseconds and the rest
/// of `text`.
fn parse_part(text: &str) -> Option<(u128, &str)> {
    let (whole, rest) = split_digits(text);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), split_digits);
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(end);
    let unit = UNITS.iter().find(|(name, _)| *name == unit)?.1;
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = &fraction[..fraction.len().min(MAX_FRACTION_DIGITS)];
    let decimals = u32::try_from(fraction.len()).ok()?;
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let nanos = whole.checked_mul(unit)?.checked_add(part * unit / 10_u128.pow(decimals))?;
    Some((nanos, rest))
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn split_list(text: &str) -> impl Iterator<Item = &str> {
    let blank = text.trim().is_empty();
    text.split(',').filter(move |_| !blank)
}

fn parse_pair(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once(':')?;
    (!value.contains(':')).then(|| (name.to_owned(), value.to_owned()))
}
