//! Validates the blocks `classes` and `fair` of a concurrency limit.
//!
//! Guarantees:
//! - A class never has a larger part of the limit than a class before it.
//!
//! Not covered:
//! - The key of an entry: the check may have it in any descriptor, so no rule needs to name it.

use super::budget_block::parse_percent;
use super::concurrency_block::{ConcurrencyReader, RequesterFields};
use super::findings::FileSpan;
use super::from_table::parse_column;
use crate::concurrency::{ConcurrencyMode, DEFAULT_FAIR_KEYS, FAIR_KEYS, RequesterRule};
use crate::diagnostic::{Code, Span, Spanned};
use crate::kernel::concurrency::{ClassParts, MAX_CLASSES, RequesterKeys};
use crate::raw;
use crate::table_column::TableColumn;

/// The key and the names of the classes, with their parts.
struct Classes {
    key: Box<str>,
    names: Box<[Box<str>]>,
    parts: ClassParts,
}

/// The key of the customer, and the fields beside it.
struct Fair {
    key: Box<str>,
    weight: Option<TableColumn>,
    max_keys: u32,
}

const CLASSES_EXAMPLE: &str =
    "write for example `classes: {by: tier, up_to: {critical: 100%, batch: 50%}}`";

const FAIR_EXAMPLE: &str = "write for example `fair: {by: customer, weight: customers.weight}`";

impl ConcurrencyReader<'_, '_, '_> {
    /// Returns the meaning of both blocks, or `None` if one is invalid.
    pub(super) fn requesters(&mut self, mode: Option<ConcurrencyMode>) -> Option<RequesterFields> {
        let raw = self.raw;
        let classes = raw.classes.as_ref().map(|block| self.classes(block));
        let fair = raw.fair.as_ref().map(|block| self.fair(block));
        if mode == Some(ConcurrencyMode::Strict) {
            self.deny_strict();
        }
        let classes = classes.map_or(Some(None), |read| read.map(Some))?;
        let fair = fair.map_or(Some(None), |read| read.map(Some))?;
        let is_set = classes.is_some() || fair.is_some();
        let (class, class_names, parts) = classes
            .map_or((None, Box::default(), ClassParts::ONE), |classes| {
                (Some(classes.key), classes.names, classes.parts)
            });
        let fair_keys = fair.as_ref().map(|fair| fair.max_keys);
        let (customer, weight) = fair.map_or((None, None), |fair| (Some(fair.key), fair.weight));
        let keys = RequesterKeys { class, class_names, customer };
        let rule = is_set.then(|| Box::new(RequesterRule { keys, weight }));
        Some(RequesterFields { classes: parts, fair_keys, rule })
    }

    fn deny_strict(&mut self) {
        let classes = self.raw.classes.as_ref().map(|block| ("classes", block.span));
        let weight = self.raw.fair.as_ref().and_then(|block| block.weight.as_ref());
        let weight = weight.map(|weight| ("weight", weight.span));
        for (name, span) in classes.into_iter().chain(weight) {
            let message = format!("`{name}` cannot be combined with `mode: strict`");
            let fix = format!("use `mode: shared`, or remove `{name}`");
            self.error(Code::Contradiction, span, message, &fix);
        }
    }

    fn classes(&mut self, raw: &raw::Classes) -> Option<Classes> {
        let key = self.entry_key(raw.by.as_ref(), (raw.span, raw.is_incomplete), CLASSES_EXAMPLE);
        let Some(up_to) = raw.up_to.as_ref().filter(|map| !map.value.entries.is_empty()) else {
            if !raw.is_incomplete {
                let message = "`classes` needs the parts of its classes (`up_to`)".to_owned();
                self.error(Code::OutOfRange, raw.span, message, CLASSES_EXAMPLE);
            }
            return None;
        };
        if up_to.value.is_incomplete {
            return None;
        }
        // First, because the search for equal names takes quadratic time.
        let count = up_to.value.entries.len();
        if usize::from(MAX_CLASSES) < count {
            let message = format!("`up_to` has {count} classes");
            let fix = format!("use at most {MAX_CLASSES} classes");
            self.error(Code::OutOfRange, up_to.span, message, &fix);
            return None;
        }
        let mut percents = Vec::new();
        let mut names: Vec<Box<str>> = Vec::new();
        for (name, part) in &up_to.value.entries {
            if names.iter().any(|known| **known == *name.value) {
                let message = format!("`up_to` has the class `{}` twice", name.value);
                self.error(Code::OutOfRange, name.span, message, "remove one of them");
                return None;
            }
            percents.push(self.class_percent(name, part, percents.last().copied())?);
            names.push((*name.value).into());
        }
        Some(Classes { key: key?, names: names.into(), parts: ClassParts::new(&percents)? })
    }

    /// Returns the part of a class. `before` is the percentage of the preceding class.
    fn class_percent(
        &mut self,
        name: &Spanned<String>,
        part: &Spanned<String>,
        before: Option<u8>,
    ) -> Option<u8> {
        let (name, text) = (&name.value, &part.value);
        let percent = parse_percent(text);
        let most = before.unwrap_or(100);
        let (problem, fix) = match percent {
            None => {
                let problem = "is not a percentage from `1%` to `100%`".to_owned();
                let meant = parse_percent(&format!("{text}%")).unwrap_or(most);
                (problem, format!("write for example `{name}: {meant}%`"))
            }
            Some(percent) if before.is_none() && percent < 100 => {
                let problem = "is not `100%`: no class could use the rest".to_owned();
                (problem, format!("write `{name}: 100%`, or put another class before it"))
            }
            Some(percent) if most < percent => {
                let problem = format!("is more than the class before it has: `{most}%`");
                (problem, "list the classes by their parts, the largest first".to_owned())
            }
            Some(percent) => return Some(percent),
        };
        self.error(Code::OutOfRange, part.span, format!("`{name}: {text}` {problem}"), &fix);
        None
    }

    fn fair(&mut self, raw: &raw::Fair) -> Option<Fair> {
        let key = self.entry_key(raw.by.as_ref(), (raw.span, raw.is_incomplete), FAIR_EXAMPLE);
        if self.raw.queue.is_none() && !self.raw.is_incomplete {
            let message = "`fair` needs a `queue`: it chooses among waiting requests".to_owned();
            let fix = "add for example `queue: {size: 200, timeout: 500ms}`";
            self.error(Code::Contradiction, raw.span, message, fix);
        }
        let max_keys = match &raw.max_keys {
            Some(keys) if !FAIR_KEYS.contains(&keys.value) => {
                let message = format!("`max_keys: {}` is out of range", keys.value);
                let fix = format!("use {} to {}", FAIR_KEYS.start(), FAIR_KEYS.end());
                self.error(Code::OutOfRange, keys.span, message, &fix);
                None
            }
            keys => Some(keys.as_ref().map_or(DEFAULT_FAIR_KEYS, |keys| keys.value)),
        };
        let weight = raw.weight.as_ref().map(|word| {
            let at = FileSpan { file: self.file, span: word.span };
            parse_column("weight", word, at, self.findings)
        });
        let weight = weight.map_or(Some(None), |read| read.map(Some))?;
        Some(Fair { key: key?, weight, max_keys: max_keys? })
    }

    /// Returns the key in `by`.
    fn entry_key(
        &mut self,
        by: Option<&Spanned<String>>,
        (block, is_incomplete): (Span, bool),
        example: &str,
    ) -> Option<Box<str>> {
        match by {
            Some(by) if !by.value.is_empty() => return Some((*by.value).into()),
            None if is_incomplete => {}
            _ => {
                let message = "`by` is missing: the key of the entry to read".to_owned();
                self.error(Code::OutOfRange, by.map_or(block, |by| by.span), message, example);
            }
        }
        None
    }
}
