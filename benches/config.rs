//! Reading limits and finding one: 10 descriptors against 100,000.
//!
//! `cargo bench --bench config`. The bounds: 100,000 descriptors load in a second, and a lookup
//! among them costs at most 1.5 times one among 10. Both lookups go through as many different
//! question texts in random order, so that what a question's own text costs is in both.
//!
//! The bound is for both ways of asking: `often` asks 1,000 of the descriptors, as traffic does, and
//! `anywhere` all of them evenly, so that each lookup waits for a place that is not at hand.
#![allow(missing_docs, clippy::unwrap_used)]

use divan::{AllocProfiler, Bencher, black_box};
use sluicegate::config::{Config, load};
use sluicegate::kernel::units::Revision;

/// Over the allocator that the service has: where a table's pages are is part of what a lookup costs.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOC: AllocProfiler<tikv_jemallocator::Jemalloc> =
    AllocProfiler::new(tikv_jemallocator::Jemalloc);

#[cfg(not(target_os = "linux"))]
#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

const SIZES: [usize; 2] = [10, 100_000];
/// Question texts that take turns.
const QUESTIONS: usize = 100_000;

fn main() {
    divan::main();
}

fn text(size: usize) -> String {
    let rule = |at: usize| {
        format!(
            "- {{key: api_key, value: customer-{at:06}, rate_limit: {{unit: minute, requests_per_unit: {}}}}}\n",
            at + 1
        )
    };
    format!("domain: shop\ndescriptors:\n{}", (0..size).map(rule).collect::<String>())
}

fn config(text: &str) -> Config {
    load([("shop.yaml", text.as_bytes())], Revision(1), false).unwrap().0
}

/// Values in a random order that repeats every time.
fn questions(among: usize) -> Vec<String> {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed >> 16).unwrap() % among
    };
    (0..QUESTIONS).map(|_| format!("customer-{:06}", next())).collect()
}

fn lookup(bencher: Bencher, size: usize, among: usize) {
    let config = config(&text(size));
    let tree = &config.domains["shop"].tree;
    let questions = questions(among);
    let mut turn = 0;
    bencher.bench_local(|| {
        turn = (turn + 1) % QUESTIONS;
        let entry = ("api_key", &*questions[turn]);
        // The rule itself is not read: what is done with it is another bench's.
        std::ptr::from_ref(tree.lookup([black_box(entry)]).unwrap().rule)
    });
}

#[divan::bench(args = SIZES, sample_size = 20_000, sample_count = 50)]
fn lookup_anywhere(bencher: Bencher, size: usize) {
    lookup(bencher, size, size);
}

#[divan::bench(args = SIZES, sample_size = 20_000, sample_count = 50)]
fn lookup_often(bencher: Bencher, size: usize) {
    lookup(bencher, size, size.min(1_000));
}

#[divan::bench(args = SIZES, sample_count = 10)]
fn load_file(bencher: Bencher, size: usize) {
    let text = text(size);
    bencher.bench_local(|| config(black_box(&text)));
}

#[divan::bench(args = SIZES, sample_count = 10)]
fn resolve_only(bencher: Bencher, size: usize) {
    let (file, source, _) =
        sluicegate::config::raw::read("shop.yaml", text(size).as_bytes()).unwrap();
    let files = [(file, source)];
    bencher.bench_local(|| {
        sluicegate::config::resolve::resolve(black_box(&files), Revision(1), false)
    });
}
