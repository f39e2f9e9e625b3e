//! The lease lists of one shard, by key.
//!
//! Guarantees:
//! - A list uses one place of the store, as a counter does.
//! - A list stays while a lease is valid; a sweep drops it once all records expire.
//!
//! Not covered:
//! - The lease rules ([`Book`]).

use super::counters::{Counters, Places as _};
use super::table::{Hashed, KeyHash, Table};
use crate::kernel::lease::book::Book;
use crate::kernel::lease::{Overshoot, Terms};
use crate::kernel::units::{Hits, Nanos};

#[derive(Debug, Default)]
pub(super) struct Books(Table<Listed>);

#[derive(Debug)]
struct Listed {
    hash: KeyHash,
    book: Book,
}

impl Hashed for Listed {
    fn hash(&self) -> KeyHash {
        self.hash
    }
}

/// A lease list that is taken out of its table for one message.
pub(super) struct Open {
    hash: KeyHash,
    pub(super) book: Book,
    /// The terms for this message. Without a place for the list they lend nothing.
    pub(super) terms: Terms,
    place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Old,
    New,
    None,
}

impl Books {
    /// Takes the list of `hash` out of the table, or creates one.
    /// Without a place the list is temporary and its terms lend nothing.
    pub(super) fn open(&mut self, hash: KeyHash, terms: &Terms, counters: &Counters) -> Open {
        let old = self.0.get_mut(hash).map(|listed| std::mem::take(&mut listed.book));
        let place = match &old {
            Some(_) => Place::Old,
            None if counters.take() => Place::New,
            None => Place::None,
        };
        let nothing = Terms { overshoot: Overshoot::AtMost(Hits(0)), ..*terms };
        let terms = if place == Place::None { nothing } else { *terms };
        Open { hash, book: old.unwrap_or_default(), terms, place }
    }

    /// Stores the list. Drops a new list that stayed empty, and frees its place.
    pub(super) fn close(&mut self, open: Open, now: Nanos, counters: &Counters) {
        let Open { hash, book, place, .. } = open;
        match place {
            Place::None => {}
            Place::Old => {
                if let Some(listed) = self.0.get_mut(hash) {
                    listed.book = book;
                }
            }
            Place::New if book.is_blank(now) => counters.give_back(1),
            Place::New => self.0.insert(Listed { hash, book }),
        }
    }

    /// Drops the lists in which every record has expired.
    pub(super) fn sweep(&mut self, now: Nanos) {
        self.0.retain(|listed| !listed.book.is_blank(now));
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }
}
