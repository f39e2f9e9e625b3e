//! Classes and fair parts over a fleet: the shares follow what one process would give the customers.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | a report has no curve | all |
//! | denied requests are not counted | `a_flood_of_batch_leaves_the_permits_to_critical` |
//! | the parts of the classes are not sent | the same |

use futures_util::future::poll_immediate;
use sluicegate::kernel::decision::Check;
use sluicegate::kernel::units::Nanos;

use crate::support::engine::{block_on, check_of};
use crate::support::faulty_store::FaultyStore;
use crate::support::replica::Replica;

const CLASSES: &str = "limit: 100, mode: shared, \
                       classes: {by: tier, up_to: {critical: 100%, batch: 50%}}";
const FAIR: &str = "limit: 100, mode: shared, queue: {size: 1000, timeout: 1m}, \
                    fair: {by: customer, max_keys: 100}";

/// Customers of one replica: an entry, and the number of requests at a time.
type Load<'l> = &'l [(&'static str, &'static str, usize)];

/// Runs requests of 50 ms at two replicas for some seconds, and returns their shares.
fn shares_under(limit: &str, loads: [Load<'_>; 2]) -> [u64; 2] {
    let store = FaultyStore::new();
    let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, limit));
    for _ in 0..5 * 20 {
        for replica in &mut fleet {
            replica.advance(Nanos(50 * Nanos::MILLI.0));
            let ended = replica.permits.len();
            replica.finish(ended);
        }
        for (replica, load) in fleet.iter_mut().zip(loads) {
            for &(key, value, count) in load {
                let check: Check<'_> = check_of(&[("k", "v"), (key, value)]);
                for _ in 0..count {
                    // A request that would wait is canceled at once.
                    let asked = block_on(poll_immediate(replica.engine.admit(&check, None)));
                    if let Some(Ok(admitted)) = asked {
                        replica.keep(admitted);
                    }
                }
            }
        }
        fleet.iter().for_each(Replica::report);
    }
    fleet.each_ref().map(|replica| replica.snapshot().share.0)
}

#[test]
fn a_flood_of_batch_leaves_the_permits_to_critical() {
    let (batch, critical) = ([("tier", "batch", 300)], [("tier", "critical", 100)]);
    let [flood, protected] = shares_under(CLASSES, [&batch, &critical]);
    assert!(95 <= protected, "{flood} and {protected}: one process would give it 100");
    // Of 100, `batch` may use the 20 between 30 and 50, and needs a share of 40 for them.
    let [flood, protected] = shares_under(CLASSES, [&batch, &[("tier", "critical", 30)]]);
    assert!((40..=70).contains(&flood) && 30 <= protected, "{flood} and {protected}");
}

#[test]
fn a_hog_gets_one_part_of_the_fleet() {
    let hog = [("customer", "hog", 300)];
    let others = ["1", "2", "3", "4", "5", "6", "7", "8", "9"].map(|name| ("customer", name, 10));
    let [hog, others] = shares_under(FAIR, [&hog, &others]);
    assert!(hog <= 15 && 85 <= others, "{hog} and {others}: one process would give 10 and 90");
}
