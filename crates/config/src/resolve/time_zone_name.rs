//! Fixes for names that are not IANA time zones.
//!
//! Guarantees:
//! - Each suggested name is an IANA time zone.
//! - A name without `/` never gets a name with similar letters: that is another place.

use jiff::tz::TimeZone;

use crate::settings::nearest;

/// Abbreviations and countries, and zones that use them.
const ABBREVIATIONS: &[(&str, &[&str])] = &[
    ("acst", &["Australia/Adelaide"]),
    ("aedt", &["Australia/Sydney"]),
    ("aest", &["Australia/Sydney", "Australia/Brisbane"]),
    ("akst", &["America/Anchorage"]),
    ("art", &["America/Argentina/Buenos_Aires"]),
    ("ast", &["America/Halifax", "Asia/Riyadh"]),
    ("awst", &["Australia/Perth"]),
    ("brt", &["America/Sao_Paulo"]),
    ("bst", &["Europe/London", "Asia/Dhaka"]),
    ("cat", &["Africa/Harare"]),
    ("cdt", &["America/Chicago"]),
    ("cest", &["Europe/Berlin"]),
    ("central", &["America/Chicago"]),
    ("china", &["Asia/Shanghai"]),
    ("cst", &["America/Chicago", "Asia/Shanghai"]),
    ("eastern", &["America/New_York"]),
    ("eat", &["Africa/Nairobi"]),
    ("edt", &["America/New_York"]),
    ("eest", &["Europe/Helsinki"]),
    ("gst", &["Asia/Dubai"]),
    ("hkt", &["Asia/Hong_Kong"]),
    ("ict", &["Asia/Bangkok"]),
    ("india", &["Asia/Kolkata"]),
    ("ist", &["Asia/Kolkata", "Europe/Dublin", "Asia/Jerusalem"]),
    ("jst", &["Asia/Tokyo"]),
    ("kst", &["Asia/Seoul"]),
    ("mdt", &["America/Denver"]),
    ("mountain", &["America/Denver"]),
    ("msk", &["Europe/Moscow"]),
    ("myt", &["Asia/Kuala_Lumpur"]),
    ("ndt", &["America/St_Johns"]),
    ("npt", &["Asia/Kathmandu"]),
    ("nst", &["America/St_Johns"]),
    ("nzdt", &["Pacific/Auckland"]),
    ("nzst", &["Pacific/Auckland"]),
    ("pacific", &["America/Los_Angeles"]),
    ("pdt", &["America/Los_Angeles"]),
    ("pht", &["Asia/Manila"]),
    ("pkt", &["Asia/Karachi"]),
    ("pst", &["America/Los_Angeles", "Asia/Manila"]),
    ("sast", &["Africa/Johannesburg"]),
    ("sgt", &["Asia/Singapore"]),
    ("sst", &["Asia/Singapore", "Pacific/Pago_Pago"]),
    ("tokyo", &["Asia/Tokyo"]),
    ("trt", &["Europe/Istanbul"]),
    ("wat", &["Africa/Lagos"]),
    ("west", &["Europe/Lisbon"]),
    ("wib", &["Asia/Jakarta"]),
];

/// Offsets from UTC in minutes that are not whole hours, and a zone that has each.
const ODD_OFFSETS: &[(i32, &str)] = &[
    (-570, "Pacific/Marquesas"),
    (-210, "America/St_Johns"),
    (210, "Asia/Tehran"),
    (270, "Asia/Kabul"),
    (330, "Asia/Kolkata"),
    (345, "Asia/Kathmandu"),
    (390, "Asia/Yangon"),
    (525, "Australia/Eucla"),
    (570, "Australia/Darwin"),
    (630, "Australia/Lord_Howe"),
    (765, "Pacific/Chatham"),
];

/// Returns the fix for a name that is not a time zone.
pub(super) fn fix_for(name: &str) -> String {
    let name = name.trim();
    if TimeZone::get(name).is_ok_and(|_| !name.is_empty()) {
        return format!("write `{name}`");
    }
    if let Some(minutes) = parse_offset(name) {
        return fix_for_offset(minutes);
    }
    let words = name.to_lowercase();
    let first = words.split([' ', '_', '-']).next().unwrap_or_default();
    if let Some((_, zones)) = ABBREVIATIONS.iter().find(|(known, _)| *known == first) {
        let zones: Vec<_> = zones.iter().map(|zone| format!("`{zone}`")).collect();
        let reason = if 5 < first.len() { "" } else { "abbreviations are ambiguous; " };
        return format!("{reason}use an IANA name, such as {}", zones.join(" or "));
    }
    match zone_like(name) {
        Some(zone) => format!("did you mean `{zone}`?"),
        None => "use an IANA time zone name, such as `Europe/Berlin`".to_owned(),
    }
}

/// Returns the zone of a city, or the zone whose name is similar if `name` has a region.
fn zone_like(name: &str) -> Option<String> {
    let name = name.replace(' ', "_");
    let zones: Vec<_> = jiff::tz::db().available().map(|zone| zone.as_str().to_owned()).collect();
    if name.contains('/') {
        return nearest(&name, zones.iter().map(String::as_str)).map(str::to_owned);
    }
    let is_city = |zone: &&String| {
        zone.rsplit_once('/').is_some_and(|(_, city)| city.eq_ignore_ascii_case(&name))
    };
    zones.iter().filter(is_city).min_by_key(|zone| zone.len()).cloned()
}

/// Returns the minutes of an offset such as `GMT+2`, `UTC+05:30`, `+0800` or `-3`.
fn parse_offset(name: &str) -> Option<i32> {
    let upper = name.to_uppercase();
    let rest = ["UTC", "GMT", "ETC/GMT", "ETC/UTC", "Z"]
        .iter()
        .find_map(|prefix| upper.strip_prefix(prefix))
        .unwrap_or(&upper)
        .trim_start();
    let (sign, digits) = match rest.chars().next()? {
        '+' => (1, &rest[1..]),
        '-' => (-1, &rest[1..]),
        '\u{2212}' => (-1, &rest['\u{2212}'.len_utf8()..]),
        _ => return None,
    };
    let digits = digits.trim();
    let (hours, minutes) = match digits.split_once([':', '.']) {
        Some(parts) => parts,
        None if digits.len() == 4 && digits.is_ascii() => digits.split_at(2),
        None => (digits, "0"),
    };
    let number = |text: &str| {
        let is_number = (1..=2).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit());
        is_number.then(|| text.parse::<i32>().ok()).flatten()
    };
    Some(sign * (number(hours)? * 60 + number(minutes).filter(|minutes| *minutes < 60)?))
}

/// Returns the fix for an offset. The names `Etc/GMT…` have the inverted sign of POSIX.
fn fix_for_offset(minutes: i32) -> String {
    let odd = ODD_OFFSETS.iter().find(|(offset, _)| *offset == minutes);
    match (minutes, odd) {
        (0, _) => "write `UTC`".to_owned(),
        (_, Some((_, zone))) => format!("use an IANA name, such as `{zone}`"),
        (-720..=840, None) if minutes % 60 == 0 => format!(
            "use an IANA name, such as `Europe/Berlin`; this offset is `Etc/GMT{:+}`, with the \
             inverted sign",
            -minutes / 60
        ),
        _ => "use an IANA time zone name, such as `Europe/Berlin`".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::{ABBREVIATIONS, fix_for, parse_offset};

    /// The texts between backticks.
    fn names(fix: &str) -> Vec<&str> {
        fix.split('`').skip(1).step_by(2).collect()
    }

    #[test]
    fn every_suggested_zone_exists() {
        let offsets = (-900..=900).step_by(15).map(|minutes: i32| {
            format!(
                "UTC{}{:02}:{:02}",
                if minutes < 0 { '-' } else { '+' },
                minutes.abs() / 60,
                minutes.abs() % 60
            )
        });
        let words = ABBREVIATIONS.iter().map(|(word, _)| (*word).to_owned());
        for name in offsets.chain(words) {
            let fix = fix_for(&name);
            for zone in names(&fix) {
                assert!(TimeZone::get(zone).is_ok(), "{name}: {fix}");
            }
        }
    }

    #[test]
    fn a_zone_for_an_offset_has_this_offset() {
        let noon = jiff::Timestamp::from_second(1_700_000_000).unwrap();
        for minutes in (-720..=840).step_by(60) {
            let name = format!("GMT{:+}", minutes / 60);
            let fix = fix_for(&name);
            let zone = TimeZone::get(names(&fix).last().unwrap()).unwrap();
            assert_eq!(zone.to_offset(noon).seconds(), minutes * 60, "{name}: {fix}");
        }
    }

    #[test]
    fn an_offset_is_read_in_every_common_form() {
        for (text, minutes) in
            [("GMT+2", 120), ("UTC+8", 480), ("+05:30", 330), ("-0330", -210), ("UTC -5", -300)]
        {
            assert_eq!(parse_offset(text), Some(minutes), "{text}");
        }
        for text in ["GMT", "Europe/Berlin", "+", "+1:99", "+123", "5"] {
            assert_eq!(parse_offset(text), None, "{text}");
        }
    }

    #[test]
    fn a_name_without_a_region_gets_no_zone_of_similar_letters() {
        for (name, wanted) in
            [("CST", "Asia/Shanghai"), ("Kolkata", "Asia/Kolkata"), ("berlin", "Europe/Berlin")]
        {
            assert!(fix_for(name).contains(wanted), "{name}: {}", fix_for(name));
        }
        assert_eq!(names(&fix_for("XST")), ["Europe/Berlin"]);
        assert_eq!(fix_for("Europe/Berln"), "did you mean `Europe/Berlin`?");
    }
}
