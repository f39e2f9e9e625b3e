//! Renders the metrics page once for each OTLP export, and shares the text among all metric
//! families.
//!
//! Guarantees:
//! - Each export renders the metrics page once, even if exports read the families in different
//!   orders.
//! - A metric family never reads the same rendered page twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

/// A function that renders the metrics page in Prometheus' text format.
pub type RenderPage = Arc<dyn Fn() -> String + Send + Sync>;

pub(super) struct PageCache {
    render: RenderPage,
    last: Mutex<CachedPage>,
}

struct CachedPage {
    /// The number of this rendered page, from 1. 0 before the first page is rendered.
    number: u64,
    text: Arc<str>,
}

/// The reader of the metrics page for one metric family.
pub(super) struct PageReader {
    shared: Arc<PageCache>,
    /// The number of the last page that this reader returned. 0 before the first page.
    last_seen: AtomicU64,
}

impl PageCache {
    pub(super) fn new(make: RenderPage) -> Self {
        Self { render: make, last: Mutex::new(CachedPage { number: 0, text: Arc::default() }) }
    }
}

impl PageReader {
    pub(super) fn new(shared: &Arc<PageCache>) -> Self {
        Self { shared: Arc::clone(shared), last_seen: AtomicU64::new(0) }
    }

    /// Returns a metrics page that is newer than the last returned one. The first reader of an
    /// export renders the page.
    pub(super) fn next_page(&self) -> Arc<str> {
        let mut last = self.shared.last.lock();
        if last.number == self.last_seen.load(Relaxed) {
            *last = CachedPage { number: last.number + 1, text: (self.shared.render)().into() };
        }
        self.last_seen.store(last.number, Relaxed);
        Arc::clone(&last.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_readers_of_one_export_share_one_page() {
        let made = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&made);
        let page = move || (counted.fetch_add(1, Relaxed) + 1).to_string();
        let shared = Arc::new(PageCache::new(Arc::new(page)));
        let (a, b) = (PageReader::new(&shared), PageReader::new(&shared));
        assert_eq!([a.next_page(), b.next_page()].map(|text| text.to_string()), ["1", "1"]);
        assert_eq!([b.next_page(), a.next_page()].map(|text| text.to_string()), ["2", "2"]);
        assert_eq!(made.load(Relaxed), 2);
        // A reader that missed a page returns the newest one without rendering another.
        assert_eq!(
            [a.next_page(), a.next_page(), b.next_page()].map(|text| text.to_string()),
            ["3", "4", "4"]
        );
    }
}
