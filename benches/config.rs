//! Loads limits and looks up a descriptor, with 10 and with 100,000 descriptors.
//!
//! `cargo bench --bench config`. Bounds:
//! - 100,000 descriptors load within a second.
//! - A lookup among 100,000 costs at most 1.5 times a lookup among 10.
//!
//! Both lookups use equally many descriptor values in random order, so both include the cost of
//! reading the value. The second bound covers two access patterns. `often` uses 1,000 of the
//! descriptors, as traffic does. `anywhere` uses all of them evenly, so each lookup misses the CPU
//! cache.
#![allow(missing_docs, clippy::unwrap_used)]

use divan::{AllocProfiler, Bencher, black_box};
use sluicegate::config::{Config, load};
use sluicegate::kernel::units::Revision;

/// Wraps the service's allocator, because page placement affects the cost of a lookup.
#[cfg(all(target_os = "linux", feature = "jemalloc"))]
#[global_allocator]
static ALLOC: AllocProfiler<tikv_jemallocator::Jemalloc> =
    AllocProfiler::new(tikv_jemallocator::Jemalloc);

#[cfg(not(all(target_os = "linux", feature = "jemalloc")))]
#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

const SIZES: [usize; 2] = [10, 100_000];
/// Number of descriptor values, used in turn.
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

/// Descriptor values in a reproducible random order.
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
        // Does not read the rule: other benches measure its use.
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
