//! A row as a source sends it, before its plan and columns are looked up.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::Amount;
use crate::kernel::units::Nanos;
use smallvec::SmallVec;

/// The longest id, in bytes.
pub const MAX_ID_BYTES: usize = 256;

/// A row as a source sends it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawRow<'r> {
    /// The id.
    pub id: Cow<'r, str>,
    /// The name of the plan.
    pub plan: Option<Cow<'r, str>>,
    /// The own amounts by column.
    pub amounts: SmallVec<[(Cow<'r, str>, Amount); 2]>,
    /// The end of the own amounts, since the Unix epoch. Then the amounts of the plan apply.
    pub until: Option<Nanos>,
    /// `true` if the id is to be removed.
    pub deleted: bool,
}

/// A row that is rejected. The last good row of its id stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{row}: {problem}")]
pub struct BadRow {
    /// The id of the row for people, or its position if the id cannot be read.
    pub row: Box<str>,
    /// The problem, without control characters.
    pub problem: Box<str>,
    /// The id; `None` if it cannot be read.
    #[serde(skip)]
    pub(crate) id: Option<Box<str>>,
}

/// The longest text of a report, in characters.
const MAX_SHOWN: usize = 200;

impl BadRow {
    pub(crate) fn of_id(id: &str, problem: &str) -> Self {
        Self { id: Some(id.into()), ..Self::at(id, problem) }
    }

    pub(crate) fn at(place: &str, problem: &str) -> Self {
        Self { row: printable(place), problem: printable(problem), id: None }
    }
}

/// Returns a text that neither adds a line to a log nor changes a terminal.
fn printable(text: &str) -> Box<str> {
    let shown = text.chars().take(MAX_SHOWN).flat_map(|character| {
        let is_plain = !character.is_control();
        let escaped = (!is_plain).then(|| character.escape_default());
        is_plain.then_some(character).into_iter().chain(escaped.into_iter().flatten())
    });
    shown.collect::<String>().into()
}

impl<'r> RawRow<'r> {
    /// Returns the row of a JSON object such as `{"id": "acme", "plan": "gold", "api": 9000}`.
    ///
    /// # Errors
    /// The text is not such an object, or a field has an invalid value.
    pub fn from_json(text: &'r str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// Sets the field or column `name` to a text. An empty text means no value.
    pub(crate) fn set(&mut self, name: &'r str, text: Cow<'r, str>) -> Result<(), String> {
        let invalid = |problem: &dyn fmt::Display| format!("`{name}`: `{text}` {problem}");
        if text.is_empty() && name != "id" {
            return Ok(());
        }
        match name {
            "id" => self.id = text,
            "plan" => self.plan = Some(text),
            "until" => {
                self.until = parse_until(&text).map_err(|()| invalid(&UNTIL_PROBLEM))?;
            }
            "deleted" => {
                self.deleted = match &*text {
                    "true" | "t" | "1" => true,
                    "false" | "f" | "0" => false,
                    _ => return Err(invalid(&"is neither `true` nor `false`")),
                }
            }
            column => {
                let amount = text.parse::<Amount>().map_err(|error| invalid(&error))?;
                self.amounts.push((Cow::Borrowed(column), amount));
            }
        }
        Ok(())
    }

    /// Returns an error unless the id can be the id of a row.
    pub(crate) fn check_id(&self) -> Result<(), String> {
        match self.id.len() {
            0 => Err("the row has no `id`".to_owned()),
            1..=MAX_ID_BYTES => Ok(()),
            _ => Err(format!("the id is longer than {MAX_ID_BYTES} bytes")),
        }
    }
}

const UNTIL_PROBLEM: &str = "is not an instant such as `2026-12-31T23:59:59Z`";

/// Reads an instant with its offset from UTC, as RFC 3339 or PostgreSQL write it. An instant after
/// the year 2553 is no end.
fn parse_until(text: &str) -> Result<Option<Nanos>, ()> {
    if text == "infinity" || text.starts_with("9999-12-3") {
        return Ok(None);
    }
    let instant = text.parse::<Timestamp>().map_err(drop)?;
    Ok(u64::try_from(instant.as_nanosecond().max(0)).ok().map(Nanos))
}

/// Returns an instant as text that [`RawRow::from_json`] reads.
pub(crate) fn until_text(until: Nanos) -> String {
    let instant = Timestamp::from_nanosecond(i128::from(until.0));
    instant.unwrap_or(Timestamp::MAX).to_string()
}

impl<'de> Deserialize<'de> for RawRow<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RowVisitor)
    }
}

struct RowVisitor;

impl<'de> Visitor<'de> for RowVisitor {
    type Value = RawRow<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object such as {\"id\": \"acme\", \"plan\": \"gold\"}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawRow<'de>, A::Error> {
        let mut row = RawRow::default();
        while let Some(name) = map.next_key::<Text<'de>>()? {
            let Text(Some(name)) = name else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let Text(Some(text)) = map.next_value()? else { continue };
            match name {
                Cow::Borrowed(name) => row.set(name, text),
                // A name with an escape, which no table has.
                Cow::Owned(name) => Err(format!("`{name}` is not a column")),
            }
            .map_err(A::Error::custom)?;
        }
        Ok(row)
    }
}

/// A scalar as text; `None` for null.
struct Text<'de>(Option<Cow<'de, str>>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, a text, `true`, `false` or `null`")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Some(Cow::Borrowed(text))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text(Some(Cow::Owned(text.to_owned()))))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Text<'de>, E> {
        Ok(Text(Some(Cow::Owned(number.to_string()))))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Text<'de>, E> {
        Ok(Text(Some(Cow::Owned(number.to_string()))))
    }

    /// A database writes a whole number of a decimal type as `60.00`.
    fn visit_f64<E: Error>(self, number: f64) -> Result<Text<'de>, E> {
        Ok(Text(Some(Cow::Owned(number.to_string()))))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Text<'de>, E> {
        Ok(Text(Some(Cow::Borrowed(if value { "true" } else { "false" }))))
    }

    fn visit_unit<E: Error>(self) -> Result<Text<'de>, E> {
        Ok(Text(None))
    }
}
