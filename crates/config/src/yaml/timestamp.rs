//! Recognizes YAML timestamps, to validate scalars with the tag `!!timestamp`.
//!
//! Guarantees:
//! - Valid: a date, or a date, a blank and a time.
//! - Valid: a date, `T` or `t`, a time and a time zone.
//! - The month, day, hour, minute and second may have only one digit.
//!
//! Not covered:
//! - The instant of a timestamp: the scalar stays a text.

/// Returns `true` if `text` is a date that exists, optionally with a time.
pub(super) fn is_timestamp(text: &str) -> bool {
    let (date, time) = text.split_once(['T', 't', ' ']).unwrap_or((text, ""));
    let blank = text[date.len()..].starts_with(' ');
    let clock = match (text.len() == date.len(), blank) {
        (true, _) => return is_date(date),
        (false, true) => Some(time),
        (false, false) => strip_zone(time),
    };
    is_date(date) && clock.is_some_and(is_time)
}

fn is_date(text: &str) -> bool {
    let mut parts = text.split('-');
    let year = parts.next().filter(|year| year.len() == 4).and_then(|year| parse_digits(year, 4));
    let (month, day) = (parts.next(), parts.next());
    let parse_short_number = |part: Option<&str>| part.and_then(|part| parse_digits(part, 2));
    let exists = match (year, parse_short_number(month), parse_short_number(day)) {
        (Some(year), Some(month), Some(day)) => jiff::civil::Date::new(
            i16::try_from(year).unwrap_or(0),
            i8::try_from(month).unwrap_or(0),
            i8::try_from(day).unwrap_or(0),
        )
        .is_ok(),
        _ => false,
    };
    exists && parts.next().is_none()
}

fn strip_zone(time: &str) -> Option<&str> {
    if let Some(clock) = time.strip_suffix('Z') {
        return Some(clock);
    }
    let (clock, zone) = time.split_at_checked(time.rfind(['+', '-'])?)?;
    let (hours, minutes) = zone[1..].split_once(':')?;
    let two =
        |part: &str, max: u32| part.len() == 2 && parse_digits(part, 2).is_some_and(|n| n <= max);
    (two(hours, 24) && two(minutes, 59)).then_some(clock)
}

fn is_time(text: &str) -> bool {
    let (whole, fraction) = text.split_once(['.', ',']).unwrap_or((text, "0"));
    let mut numbers = whole.split(':').map(|part| parse_digits(part, 2));
    let [hour, minute, second] = [numbers.next(), numbers.next(), numbers.next()];
    let below = |part: Option<Option<u32>>, end: u32| part.flatten().is_some_and(|n| n < end);
    let digits = !fraction.is_empty() && fraction.bytes().all(|b| b.is_ascii_digit());
    below(hour, 24) && below(minute, 60) && below(second, 60) && digits && numbers.next().is_none()
}

fn parse_digits(text: &str, max_digits: usize) -> Option<u32> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    if digits && text.len() <= max_digits { text.parse().ok() } else { None }
}
