//! Tests of the store's time: downtime counts, and a clock that is set back grants no hits.

use sluicegate::kernel::units::Nanos;
use sluicegate::store::file::SavedTime;

use super::{NEW_YEAR, execute, hits, open, remaining, strategies, sync, time};

const HALF_MINUTE: Nanos = Nanos::from_secs(30);
const HOUR: Nanos = Nanos::from_secs(3_600);

#[test]
fn downtime_frees_hits_like_uptime() {
    // A full GCRA limit of 10 per minute frees 5 hits in half a minute.
    let [gcra, ..] = strategies(10);
    let directory = tempfile::tempdir().unwrap();
    let mut file = open(directory.path(), NEW_YEAR);
    execute(&file.store, NEW_YEAR, &hits("a", gcra, 10));
    sync(&mut file, NEW_YEAR);
    drop(file);
    let file = open(directory.path(), NEW_YEAR.plus(HALF_MINUTE));
    assert_eq!(file.earliest, NEW_YEAR.plus(HALF_MINUTE));
    assert_eq!(remaining(&file.store, file.earliest, "a", gcra), Some(5));
}

#[test]
fn a_clock_set_back_while_down_grants_no_hits() {
    for strategy in strategies(10) {
        let directory = tempfile::tempdir().unwrap();
        let mut file = open(directory.path(), NEW_YEAR);
        execute(&file.store, NEW_YEAR, &hits("a", strategy, 10));
        sync(&mut file, NEW_YEAR);
        drop(file);
        let wall = NEW_YEAR.since(HOUR);
        let mut file = open(directory.path(), wall);
        assert_eq!((file.earliest, file.clock_set_back), (NEW_YEAR, HOUR), "{strategy:?}");
        assert_eq!(remaining(&file.store, file.earliest, "a", strategy), Some(0), "{strategy:?}");
        // The store's time goes on from there, in this process and in the next one.
        let now = NEW_YEAR.plus(HALF_MINUTE);
        let later = SavedTime { store: now, wall: wall.plus(HALF_MINUTE) };
        execute(&file.store, now, &hits("b", strategy, 1));
        file.writer.write_changes(&|| later).unwrap();
        drop(file);
        let file = open(directory.path(), wall.plus(HOUR));
        assert_eq!(file.earliest, NEW_YEAR.plus(HOUR), "{strategy:?}");
        assert_eq!(remaining(&file.store, file.earliest, "a", strategy), Some(10), "{strategy:?}");
    }
}

#[test]
fn the_clock_starts_at_the_saved_time_of_the_store() {
    let now = sluicegate::clock::Clock::system().now();
    let ahead = sluicegate::clock::Clock::system_from(now.plus(HOUR));
    let reading = ahead.now();
    assert!(now.plus(HOUR) <= reading && reading < now.plus(HOUR).plus(HALF_MINUTE));
    assert!(ahead.wall() < now.plus(HALF_MINUTE));
    assert!(sluicegate::clock::Clock::system_from(now.since(HOUR)).now() >= now);
    assert_eq!(time(NEW_YEAR).store_time_at(NEW_YEAR.plus(HOUR)), NEW_YEAR.plus(HOUR));
}
