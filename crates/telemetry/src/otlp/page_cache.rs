//! Renders the metrics page once for each OTLP export, for all metric families.
//!
//! Guarantees:
//! - A metric family never reads the same rendered page twice.
//! - Exports may read the families in different orders.

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
    /// The number of the page, from 1. 0 before the first page.
    number: u64,
    text: Arc<str>,
}

/// The reader of the metrics page for one metric family.
pub(super) struct PageReader {
    cache: Arc<PageCache>,
    /// The number of the last returned page. 0 before the first page.
    last_returned: AtomicU64,
}

impl PageCache {
    pub(super) fn new(render: RenderPage) -> Self {
        Self { render, last: Mutex::new(CachedPage { number: 0, text: Arc::default() }) }
    }
}

impl PageReader {
    pub(super) fn new(cache: &Arc<PageCache>) -> Self {
        Self { cache: Arc::clone(cache), last_returned: AtomicU64::new(0) }
    }

    /// Returns a page that is newer than the last returned page, and renders it if necessary.
    pub(super) fn next_page(&self) -> Arc<str> {
        let mut last = self.cache.last.lock();
        if last.number == self.last_returned.load(Relaxed) {
            *last = CachedPage { number: last.number + 1, text: (self.cache.render)().into() };
        }
        self.last_returned.store(last.number, Relaxed);
        Arc::clone(&last.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_readers_of_one_export_share_one_page() {
        let rendered = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&rendered);
        let render = move || (counter.fetch_add(1, Relaxed) + 1).to_string();
        let cache = Arc::new(PageCache::new(Arc::new(render)));
        let (a, b) = (PageReader::new(&cache), PageReader::new(&cache));
        assert_eq!([a.next_page(), b.next_page()].map(|text| text.to_string()), ["1", "1"]);
        assert_eq!([b.next_page(), a.next_page()].map(|text| text.to_string()), ["2", "2"]);
        assert_eq!(rendered.load(Relaxed), 2);
        // A reader that missed a page returns the newest one without rendering another.
        assert_eq!(
            [a.next_page(), a.next_page(), b.next_page()].map(|text| text.to_string()),
            ["3", "4", "4"]
        );
    }
}
