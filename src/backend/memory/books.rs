//! Who holds leases of which of a shard's keys.
//!
//! Guarantees: a list takes a place of the live count, as a counter does; while a key has leases
//! that may be spent its list stays, and once all are forgotten it is dropped.
//! Leaves out: what is lent ([`Book`]).

use super::counters::{Counters, Places as _};
use super::table::{Hashed, KeyHash, Table};
use crate::kernel::lease::book::Book;
use crate::kernel::lease::{Overshoot, Terms};
use crate::kernel::units::{Hits, Nanos};

/// The lists of one shard.
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

/// A list in hand.
pub(super) struct Open {
    hash: KeyHash,
    pub(super) book: Book,
    /// What may be lent.
    pub(super) terms: Terms,
    place: Place,
}

/// Where a list in hand belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Old,
    New,
    None,
}

impl Books {
    /// Takes the list of `hash` in hand, a new one where there is none; where there is no place for
    /// that, one that is thrown away, under terms that lend nothing.
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

    /// Puts a list back.
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

    /// Drops the lists that have forgotten everybody.
    pub(super) fn sweep(&mut self, now: Nanos) {
        self.0.retain(|listed| !listed.book.is_blank(now));
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }
}
