//! Batches of lease messages.

use sluicegate::kernel::decision::{Cost, StoreFailure};
use sluicegate::kernel::lease::{LeaseTerms, MessageNumber};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::redis::codec::lease::pack;

use super::{LeaseTrace, Lender, START, STEPS, borrows, hour};
use crate::differential::limits::Kind;
use crate::differential::model::charge;
use crate::differential::{PREFIX, traces};
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;

/// Each trace has about a thousand messages.
const TRACES: u64 = 15;

#[test]
fn batched_messages_of_mixed_limits_match_the_kernel() {
    let (redis, seed) = (Redis::start(), seed());
    let mut lender = Lender::new(&redis);
    for number in 0..traces(TRACES) {
        let mut dice = Dice::new(seed ^ number << 32);
        // Two of the limits have the same kind, and several messages of a batch are for one key.
        let kinds = [Kind::Gcra, Kind::Gcra, Kind::Fixed, Kind::Calendar, Kind::Sliding, Kind::Log];
        let mut generators = kinds.map(|kind| LeaseTrace::new(kind, Dice::new(dice.roll())));
        for step in 0..STEPS {
            let who = usize::try_from(dice.up_to(generators.len() as u64 - 1)).unwrap();
            generators[who].wait();
            let now = generators[who].now;
            let most = dice.pick(&[11, 11, 40]);
            for generator in &mut generators {
                generator.now = now;
            }
            let some = (0..=dice.up_to(most)).map(|_| {
                let at = usize::try_from(dice.up_to(generators.len() as u64 - 1)).unwrap();
                generators[at].step_now(kinds[at], &format!("{number} {at}"))
            });
            lender.assert_batch_matches(
                some,
                now,
                &format!("SLUICEGATE_SEED={seed}, {number}, {step}"),
            );
        }
    }
}

#[test]
fn batched_messages_of_one_limit_match_the_kernel() {
    let (redis, seed) = (Redis::start(), seed());
    let mut lender = Lender::new(&redis);
    let mut lent_to = 0;
    for number in 0..traces(TRACES) {
        let mut dice = Dice::new(seed ^ number << 32);
        let mut generators: Vec<_> =
            (0..8).map(|_| LeaseTrace::new(Kind::Gcra, Dice::new(dice.roll()))).collect();
        for step in 0..STEPS {
            generators[0].wait();
            let (now, limit) = (generators[0].now, generators[0].limit);
            for generator in &mut generators {
                generator.now = now;
            }
            let some = (0..=dice.up_to(11)).map(|_| {
                let at = usize::try_from(dice.up_to(generators.len() as u64 - 1)).unwrap();
                generators[at].limit = limit;
                generators[at].step_now(Kind::Gcra, &format!("{number} {at}"))
            });
            let context = format!("SLUICEGATE_SEED={seed}, {number}, {step}");
            let said = lender.assert_batch_matches(some, now, &context);
            let granted = |lent: &&LeaseOutcome| matches!(lent, LeaseOutcome::Applied(a) if a.granted != Hits(0));
            lent_to += said.iter().filter(granted).count();
        }
    }
    assert!(100 < lent_to, "{lent_to}");
}

#[test]
fn lease_tables_of_a_batch_have_separate_expiries() {
    let redis = Redis::start();
    let mut lender = Lender::new(&redis);
    let (limit, longer) = hour(Kind::Gcra);
    let shorter = LeaseTerms { duration: Nanos::from_secs(30), ..longer };
    let first = borrows(limit, shorter, 1, 1, 10);
    let key = charge("b", limit, Cost::Charge(Hits(0))).key;
    let second = LeaseMessage { key, ..borrows(limit, longer, 2, 1, 10) };
    let both = [first, second];
    lender.send_all(&both, Some(START));
    let mut expires = |message: &LeaseMessage| {
        let list = pack(message, PREFIX, None).keys[1].clone();
        lender.client.call(&[b"PEXPIRETIME".to_vec(), list]).int()
    };
    assert_eq!(expires(&both[1]) - expires(&both[0]), 2 * 30_000);
}

/// The foreign value is tested alone, and after other counters of the same limit in one batch.
#[test]
fn foreign_counter_in_a_batch_is_reported_unchanged() {
    let redis = Redis::start();
    let mut lender = Lender::new(&redis);
    let (limit, terms) = hour(Kind::Gcra);
    let of = |name: &str, number, hits, want| {
        let key = charge(name, limit, Cost::Charge(Hits(0))).key;
        LeaseMessage { key, ..borrows(limit, terms, number, hits, want) }
    };
    for (number, hits, want, returned) in [
        (2, 0, 10, 0),
        (2, 0, 0, 0),
        (2, 1, 0, 0),
        (2, 1, 10, 0),
        (2, 101, 0, 0),
        (2, 0, 10, 5),
        (1, 0, 10, 0),
        (1, 1, 10, 0),
    ] {
        lender.client.call(&["FLUSHALL"]);
        let first = [of("a", 1, 1, 10), of("b", 1, 1, 10), of("c", 1, 1, 10)];
        lender.send_all(&first, Some(START));
        let [counter, list] = pack(&first[2], PREFIX, None).keys;
        lender.client.call(&[b"DEL".to_vec(), counter.clone()]);
        lender.client.call(&[b"SADD".to_vec(), counter.clone(), b"x".to_vec()]);
        let dumps = |lender: &mut Lender| {
            [&counter, &list].map(|key| lender.client.call(&[b"DUMP".to_vec(), key.clone()]))
        };
        let before = dumps(&mut lender);
        let mut asked = of("c", number, hits, want);
        (asked.borrow.returned, asked.borrow.last_lease) = (Hits(returned), MessageNumber(1));
        let next = [of("a", 2, 0, 10), of("b", 2, 0, 10), asked];
        for others in [2, 0] {
            let mut said = lender.send_all(&next[2 - others..], Some(START));
            let its = said.pop().unwrap();
            assert_eq!(
                its,
                LeaseOutcome::Failed(StoreFailure::WrongType),
                "{number}, {hits}, {want}, {others}"
            );
            assert!(said.iter().all(|other| matches!(other, LeaseOutcome::Applied(_))));
            assert_eq!(dumps(&mut lender), before, "{number}, {hits}, {want}, {others}");
        }
    }
}
