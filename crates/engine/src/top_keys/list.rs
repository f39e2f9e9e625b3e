//! Collects the rows with the most hits from the sets of all rules.
//!
//! Guarantees:
//! - A list has at most the requested number of rows; only these rows are copied.
//! - The total counts the hits of all keys, also of those without a row.

use serde::{Deserialize, Serialize};

use crate::kernel::top_keys::{TopRow, TopWindow};
use crate::kernel::units::Hits;

/// A selection of top keys.
#[derive(Clone, Copy, Debug)]
pub struct TopKeysQuery<'q> {
    /// The window over which hits are counted.
    pub window: TopWindow,
    /// Only rules of this domain.
    pub domain: Option<&'q str>,
    /// Only the rule with this path.
    pub path: Option<&'q str>,
    /// The largest number of rows in each list.
    pub max: usize,
}

impl TopKeysQuery<'_> {
    pub(super) fn selects(&self, (domain, path): (&str, &str)) -> bool {
        self.domain.is_none_or(|wanted| wanted == domain)
            && self.path.is_none_or(|wanted| wanted == path)
    }
}

/// The keys with the most hits, and with the most denied hits.
#[derive(Clone, Debug)]
pub struct TopKeysPage {
    /// The keys with the most hits.
    pub all: TopKeyList,
    /// The keys with the most denied hits, including those that shadow mode allowed.
    pub denied: TopKeyList,
}

/// Keys by their hits, the most first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopKeyList {
    /// The hits of all keys in the window, also of those that `rows` omits.
    pub total: u64,
    /// The keys with the most hits.
    pub rows: Vec<TopKeyRow>,
}

/// A key with its hits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopKeyRow {
    /// The domain of the rule.
    pub domain: Box<str>,
    /// The path of the rule.
    pub path: Box<str>,
    /// The text of the key, or hashes of its values.
    pub descriptor: Box<str>,
    /// The estimated hits in the window.
    pub hits: u64,
    /// The part of `hits` that may belong to other keys.
    pub error: u64,
}

impl TopKeyList {
    /// Appends the rows of another replica. [`Self::sum_rows`] then adds those of equal keys.
    pub(crate) fn append(&mut self, other: &Self) {
        self.total = self.total.saturating_add(other.total);
        self.rows.extend_from_slice(&other.rows);
    }

    /// Adds the hits of rows with the same key, and keeps the `max` rows with the most hits.
    pub(crate) fn sum_rows(&mut self, max: usize) {
        self.rows.sort_by(|a, b| a.key().cmp(&b.key()));
        self.rows.dedup_by(|row, first| {
            let is_same_key = row.key() == first.key();
            if is_same_key {
                first.hits = first.hits.saturating_add(row.hits);
                first.error = first.error.saturating_add(row.error);
            }
            is_same_key
        });
        sort(&mut self.rows);
        self.rows.truncate(max);
    }
}

impl TopKeyRow {
    fn key(&self) -> (&str, &str, &str) {
        (&self.domain, &self.path, &self.descriptor)
    }
}

/// The rows with the most hits so far, in no order.
pub(super) struct TopKeyCollector {
    max: usize,
    total: u64,
    rows: Vec<TopKeyRow>,
}

impl TopKeyCollector {
    pub(super) const fn new(max: usize) -> Self {
        Self { max, total: 0, rows: Vec::new() }
    }

    pub(super) fn add(&mut self, (domain, path): (&str, &str), row: TopRow<'_>) {
        let Hits(hits) = row.hits;
        self.total = self.total.saturating_add(hits);
        let is_full = self.max <= self.rows.len();
        let fewest = self.rows.iter_mut().min_by_key(|row| row.hits).filter(|_| is_full);
        if fewest.as_ref().is_some_and(|fewest| hits <= fewest.hits) || self.max == 0 {
            return;
        }
        let (domain, path, descriptor) = (domain.into(), path.into(), row.text.into());
        let row = TopKeyRow { domain, path, descriptor, hits, error: row.error.0 };
        match fewest {
            Some(fewest) => *fewest = row,
            None => self.rows.push(row),
        }
    }

    pub(super) fn sorted(mut self) -> TopKeyList {
        sort(&mut self.rows);
        TopKeyList { total: self.total, rows: self.rows }
    }
}

fn sort(rows: &mut [TopKeyRow]) {
    rows.sort_by(|a, b| b.hits.cmp(&a.hits).then_with(|| a.descriptor.cmp(&b.descriptor)));
}
