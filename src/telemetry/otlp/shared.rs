//! Renders one metrics page for each export and shares it among all families.
//!
//! Guarantees:
//! - Each export renders the page once, in any order of the families.
//! - A family never reads the same page twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::Page;

pub(super) struct Shared {
    make: Page,
    last: Mutex<Last>,
}

struct Last {
    /// The number of the page, from 1. 0 before the first.
    number: u64,
    text: Arc<str>,
}

/// The reader of one family.
pub(super) struct Reader {
    shared: Arc<Shared>,
    /// The number of the last page that this reader returned, 0 before the first.
    seen: AtomicU64,
}

impl Shared {
    pub(super) fn new(make: Page) -> Self {
        Self { make, last: Mutex::new(Last { number: 0, text: Arc::default() }) }
    }
}

impl Reader {
    pub(super) fn of(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), seen: AtomicU64::new(0) }
    }

    /// Returns a page that is newer than the last one. The first reader of an export renders it.
    pub(super) fn next(&self) -> Arc<str> {
        let mut last = self.shared.last.lock();
        if last.number == self.seen.load(Relaxed) {
            *last = Last { number: last.number + 1, text: (self.shared.make)().into() };
        }
        self.seen.store(last.number, Relaxed);
        Arc::clone(&last.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_readers_share_one_page_per_round() {
        let made = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&made);
        let page = move || (counted.fetch_add(1, Relaxed) + 1).to_string();
        let shared = Arc::new(Shared::new(Arc::new(page)));
        let (a, b) = (Reader::of(&shared), Reader::of(&shared));
        assert_eq!([a.next(), b.next()].map(|text| text.to_string()), ["1", "1"]);
        assert_eq!([b.next(), a.next()].map(|text| text.to_string()), ["2", "2"]);
        assert_eq!(made.load(Relaxed), 2);
        // A reader that missed a page returns the newest one without rendering another.
        assert_eq!([a.next(), a.next(), b.next()].map(|text| text.to_string()), ["3", "4", "4"]);
    }
}
