//! Tests that snapshots replace the journal, and that the file stays small.

use super::{NEW_YEAR, execute, hits, open, remaining, strategies, sync};

const COUNTERS: u64 = 3_000;
const BATCHES: u64 = 300;

#[test]
fn the_file_stays_small_and_complete_over_many_batches() {
    // 900,000 changes of 47 bytes are 42 MB; the journal may have 4 MiB, and the snapshots have 141 KB.
    let [gcra, ..] = strategies(1_000);
    let directory = tempfile::tempdir().unwrap();
    let mut file = open(directory.path(), NEW_YEAR);
    for batch in 1..=BATCHES {
        for counter in 0..COUNTERS {
            execute(&file.store, NEW_YEAR, &hits(&counter.to_string(), gcra, 1));
        }
        sync(&mut file, NEW_YEAR);
        if batch % 97 == 0 {
            drop(file);
            file = open(directory.path(), NEW_YEAR);
        }
    }
    let size = std::fs::metadata(directory.path().join("counters.redb")).unwrap().len();
    assert!(size < 24 << 20, "{size} bytes");
    drop(file);
    let file = open(directory.path(), NEW_YEAR);
    for counter in 0..COUNTERS {
        let left = remaining(&file.store, NEW_YEAR, &counter.to_string(), gcra);
        assert_eq!(left, Some(1_000 - BATCHES), "counter {counter}");
    }
}
