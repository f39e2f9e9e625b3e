//! Fixes for words of other rate limiters, such as `window` or `max_value`.
//!
//! Guarantees:
//! - A fix names lines that are valid at the place that it names.
//! - A field that the block already has is never suggested again.
//!
//! Not covered:
//! - Misspelled fields (see [`FieldName::nearest`]).

mod argument;
mod table;
#[cfg(test)]
mod tests;

use super::field_name::FieldName;
use super::limits_block::LimitsBlock;
use argument::Argument;
use table::{ForeignWord, Meaning};

/// The fields of a whole limit, for a fix in a descriptor that has none.
const WHOLE_LIMIT: [(FieldName, &str); 2] =
    [(FieldName::Unit, "minute"), (FieldName::RequestsPerUnit, "100")];

/// The place of a word: its block, the fields beside it, and the text of its value.
pub(super) struct WordPlace<'a> {
    pub(super) block: LimitsBlock,
    pub(super) siblings: Vec<FieldName>,
    /// The fields of the limit of this descriptor: of `rate_limit`, or of the first of
    /// `rate_limits`.
    pub(super) limit_fields: Vec<FieldName>,
    pub(super) value: Option<&'a str>,
}

impl WordPlace<'_> {
    fn has(&self, field: FieldName) -> bool {
        self.siblings.contains(&field)
    }

    fn has_rate_limit(&self) -> bool {
        self.has(FieldName::RateLimit) || self.has(FieldName::RateLimits)
    }

    /// Returns `true` for a descriptor that only limits requests in flight, and in its blocks.
    pub(super) fn is_about_concurrency(&self) -> bool {
        match self.block {
            LimitsBlock::Descriptor => self.has(FieldName::Concurrency) && !self.has_rate_limit(),
            LimitsBlock::Concurrency
            | LimitsBlock::Adaptive
            | LimitsBlock::Queue
            | LimitsBlock::Reject => true,
            _ => false,
        }
    }
}

/// Returns the fix for a word of another product at this place, or `None` if no product uses it
/// there.
pub(super) fn fix_for(word: &str, place: &WordPlace<'_>) -> Option<String> {
    let word = normalized(word);
    let rows = table::FOREIGN_WORDS.iter().filter(|row| row.words.contains(&word.as_str()));
    rows.filter(|row| row.is_meant_at(place)).find_map(|row| row.fix(place))
}

/// Returns a word in lower case, without `_`, `-`, `.` and blanks, as in the table.
fn normalized(word: &str) -> String {
    let is_mark = |letter: &char| matches!(letter, '_' | '-' | '.' | ' ');
    word.chars().take(64).filter(|letter| !is_mark(letter)).flat_map(char::to_lowercase).collect()
}

type FieldLine = (FieldName, String);

impl ForeignWord {
    fn is_meant_at(&self, place: &WordPlace<'_>) -> bool {
        let is_rate_place = matches!(
            place.block,
            LimitsBlock::File
                | LimitsBlock::Defaults
                | LimitsBlock::Descriptor
                | LimitsBlock::RateLimit
        );
        match self.meaning {
            Meaning::Fields(LimitsBlock::Concurrency | LimitsBlock::Adaptive, _) => {
                place.is_about_concurrency()
            }
            Meaning::Fields(LimitsBlock::RateLimit, _) | Meaning::Rate => {
                is_rate_place && !place.is_about_concurrency()
            }
            Meaning::Fields(LimitsBlock::Calendar, _) => place.block == LimitsBlock::Calendar,
            Meaning::Fields(..)
            | Meaning::Setting(_)
            | Meaning::Envoy(_)
            | Meaning::Needless(_) => is_rate_place,
        }
    }

    fn fix(&self, place: &WordPlace<'_>) -> Option<String> {
        match self.meaning {
            Meaning::Setting(name) => Some(format!("use the setting `{name}` of the service")),
            Meaning::Envoy(field) => Some(format!("remove it: Envoy's filter has {field}")),
            Meaning::Needless(reason) => Some(format!("remove it: {reason}")),
            Meaning::Rate => {
                let (count, unit) = argument::parse_rate(place.value);
                let fields = vec![(FieldName::Unit, unit), (FieldName::RequestsPerUnit, count)];
                fix_with(LimitsBlock::RateLimit, fields, place)
            }
            Meaning::Fields(home, fields) => {
                let write = |(field, argument): &(FieldName, Argument)| {
                    (*field, argument.text(place.value))
                };
                fix_with(home, fields.iter().map(write).collect(), place)
            }
        }
    }
}

/// Returns the fix that writes these fields of block `home`.
fn fix_with(home: LimitsBlock, fields: Vec<FieldLine>, place: &WordPlace<'_>) -> Option<String> {
    use LimitsBlock as Block;
    match (home, place.block) {
        (Block::Descriptor, Block::Descriptor)
            if place.has(FieldName::RateLimits) && fields[0].0 == FieldName::RateLimit =>
        {
            Some("remove it: `rate_limits` has this meaning".to_owned())
        }
        (home, block) if home == block => Some(write_lines(fields, &place.siblings, "")),
        (Block::RateLimit, Block::Descriptor) if place.has(FieldName::RateLimit) => {
            Some(write_lines(fields, &place.limit_fields, " in `rate_limit`"))
        }
        (Block::RateLimit, Block::Descriptor) if place.has(FieldName::RateLimits) => {
            Some(write_lines(fields, &place.limit_fields, " in an item of `rate_limits`"))
        }
        (Block::RateLimit, Block::Descriptor) => Some(format!("write `{}`", whole_limit(fields))),
        (Block::RateLimit, Block::Defaults) => {
            let has_default =
                |(field, _): &FieldLine| Block::Defaults.field_names().contains(field);
            Some(if fields.iter().all(has_default) {
                write_lines(fields, &place.siblings, "")
            } else {
                format!("write `{}` in a descriptor", whole_limit(fields))
            })
        }
        (Block::RateLimit, Block::File) => Some(in_descriptors(&whole_limit(fields), place)),
        (Block::Descriptor, Block::File) => Some(in_descriptors(&join(&fields), place)),
        (Block::Descriptor, Block::RateLimit) if fields[0].0 == FieldName::RateLimit => {
            Some("remove it: this block is one limit".to_owned())
        }
        (Block::Descriptor, Block::RateLimit) => {
            Some(format!("write `{}` beside `rate_limit`", join(&fields)))
        }
        (Block::File, _) => Some(format!("write `{}` at the top of the file", join(&fields))),
        (Block::Adaptive, Block::Concurrency) if !place.has(FieldName::Adaptive) => {
            Some(format!("write `adaptive: {{{}}}`", join(&fields)))
        }
        (home @ (Block::Adaptive | Block::Concurrency), _) => {
            Some(format!("write `{}` in {}", join(&fields), home.title()))
        }
        _ => None,
    }
}

/// Returns the fix that writes the fields that `present` lacks at `into`.
fn write_lines(mut fields: Vec<FieldLine>, present: &[FieldName], into: &str) -> String {
    let meant = fields.last().map_or("", |(field, _)| field.as_str());
    fields.retain(|(field, _)| !present.contains(field));
    // The block's own period may differ, so the words of the fix do not repeat it.
    let has_period = present.contains(&FieldName::Per);
    fields.retain(|(field, _)| *field != FieldName::Unit || !has_period);
    if fields.is_empty() {
        return format!("remove it: `{meant}` has this meaning");
    }
    let is_instead = present.contains(&FieldName::Unit)
        && fields.iter().any(|(field, _)| *field == FieldName::Per);
    let lines: Vec<_> =
        fields.iter().map(|(field, text)| format!("`{}: {text}`", field.as_str())).collect();
    let instead = if is_instead { " instead of `unit`" } else { "" };
    format!("write {}{into}{instead}", lines.join(" and "))
}

fn in_descriptors(line: &str, place: &WordPlace<'_>) -> String {
    if place.has(FieldName::Descriptors) {
        return format!("write `{line}` in a descriptor");
    }
    let key = if line.starts_with("key:") { "" } else { "key: api_key, " };
    format!("write `descriptors: [{{{key}{line}}}]`")
}

/// Returns a whole `rate_limit` with these fields, and examples for the others that it needs.
fn whole_limit(fields: Vec<FieldLine>) -> String {
    let has_period =
        fields.iter().any(|(field, _)| matches!(field, FieldName::Unit | FieldName::Per));
    let mut all: Vec<FieldLine> = WHOLE_LIMIT
        .into_iter()
        .filter(|(field, _)| *field != FieldName::Unit || !has_period)
        .filter(|(field, _)| !fields.iter().any(|(written, _)| written == field))
        .map(|(field, text)| (field, text.to_owned()))
        .collect();
    all.extend(fields);
    format!("rate_limit: {{{}}}", join(&all))
}

fn join(fields: &[FieldLine]) -> String {
    let lines: Vec<_> =
        fields.iter().map(|(field, text)| format!("{}: {text}", field.as_str())).collect();
    lines.join(", ")
}
