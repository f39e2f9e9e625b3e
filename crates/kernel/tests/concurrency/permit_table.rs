//! The store's permits of one strict limit.

use std::collections::BTreeMap;

use sluicegate_kernel::concurrency::permit_table::{
    AcquireGate, AcquireOutcome, PermitCorrections, PermitId, PermitTable, PermitTiming,
    StrictAcquire,
};
use sluicegate_kernel::units::{Nanos, Share};

use crate::dice::{Dice, seed};

const START: Nanos = Nanos::from_secs(1_000_000);
const LIFETIME: Nanos = Nanos::from_secs(3);
const OPEN: Nanos = Nanos(0);
const TIMES: PermitTiming = PermitTiming {
    grace: Nanos::from_secs(4),
    max_silence: Nanos::from_secs(2),
    max_lifetime: Nanos::from_secs(60),
};

fn acquire_request(number: u64, limit: u64) -> StrictAcquire {
    StrictAcquire {
        id: PermitId(1, number),
        limit: Share(limit),
        lifetime: LIFETIME,
        timing: TIMES,
    }
}

#[test]
fn acquires_succeed_exactly_while_below_the_limit() {
    let seed = seed();
    let mut dice = Dice::new(seed);
    for trace in 0..200 {
        let limit = 1 + dice.up_to(9);
        let (mut permits, mut now, mut number) = (PermitTable::default(), START, 0);
        // The expected permits, with their deadlines.
        let mut held: BTreeMap<PermitId, Nanos> = BTreeMap::new();
        for step in 0..300 {
            let place = format!("SLUICEGATE_SEED={seed}, trace {trace}, step {step}");
            now = now.plus(Nanos(dice.up_to(400) * Nanos::MILLI.0));
            held.retain(|_, until| now < *until);
            let some: Vec<PermitId> = held.keys().copied().filter(|_| dice.once_in(3)).collect();
            match dice.up_to(3) {
                0 => {
                    let told: Vec<_> = some.iter().map(|id| (*id, LIFETIME)).collect();
                    let found = permits.apply_report(now, &told, &[]);
                    assert_eq!(found, PermitCorrections::default(), "{place}: all are known");
                    held.extend(told.iter().map(|(id, keep)| (*id, now.plus(*keep))));
                }
                1 => {
                    let found = permits.apply_report(now, &[], &some);
                    assert_eq!(found.freed, some.len() as u64, "{place}");
                    held.retain(|id, _| !some.contains(id));
                }
                _ => {
                    number += 1;
                    let ask = acquire_request(number, limit);
                    let room = (held.len() as u64) < limit;
                    let wanted =
                        if room { AcquireOutcome::Acquired } else { AcquireOutcome::LimitReached };
                    assert_eq!(permits.acquire(now, OPEN, &ask), wanted, "{place}");
                    if room {
                        held.insert(ask.id, now.plus(LIFETIME));
                    }
                }
            }
            assert_eq!(permits.count(), Share(held.len() as u64), "{place}");
            assert_eq!(permits.last_deadline(), held.values().max().copied(), "{place}");
        }
    }
}

#[test]
fn repeated_acquire_counts_once_at_the_limit() {
    let mut permits = PermitTable::default();
    assert_eq!(permits.acquire(START, OPEN, &acquire_request(0, 1)), AcquireOutcome::Acquired);
    assert_eq!(permits.acquire(START, OPEN, &acquire_request(0, 1)), AcquireOutcome::Acquired);
    assert_eq!(permits.acquire(START, LIFETIME, &acquire_request(0, 1)), AcquireOutcome::Acquired);
    assert_eq!(permits.count(), Share(1));
    permits.apply_report(START, &[], &[PermitId(1, 0)]);
    assert_eq!(permits.count(), Share(0), "and given back once");
}

#[test]
fn unreported_permit_expires_exactly_at_its_deadline() {
    let mut permits = PermitTable::default();
    permits.acquire(START, OPEN, &acquire_request(0, 1));
    let before = Nanos(START.plus(LIFETIME).0 - 1);
    assert_eq!(permits.acquire(before, OPEN, &acquire_request(1, 1)), AcquireOutcome::LimitReached);
    assert_eq!(
        permits.acquire(START.plus(LIFETIME), OPEN, &acquire_request(1, 1)),
        AcquireOutcome::Acquired
    );
}

#[test]
fn reports_restore_lost_permits_above_the_limit() {
    let mut permits = PermitTable::default();
    let told = [0, 1, 2].map(|number| (PermitId(1, number), LIFETIME));
    assert_eq!(
        permits.apply_report(START, &told, &[]),
        PermitCorrections { restored: 3, freed: 0 }
    );
    for over in 0..2 {
        assert_eq!(
            permits.acquire(START, OPEN, &acquire_request(9, 2)),
            AcquireOutcome::LimitReached
        );
        permits.apply_report(START, &[], &[PermitId(1, over)]);
    }
    assert_eq!(permits.acquire(START, OPEN, &acquire_request(9, 2)), AcquireOutcome::Acquired);
}

#[test]
fn permit_reported_active_and_released_is_released() {
    let mut permits = PermitTable::default();
    let found = permits.apply_report(START, &[(PermitId(1, 0), LIFETIME)], &[PermitId(1, 0)]);
    assert_eq!((found, permits.count()), (PermitCorrections { restored: 1, freed: 1 }, Share(0)));
}

#[test]
fn store_without_state_stays_closed_for_the_grace_period() {
    let mut life = AcquireGate::closed(START, TIMES.grace);
    let mut permits = PermitTable::default();
    let mut now = START;
    while now < START.plus(TIMES.grace) {
        let left = life.closed_for(now, &TIMES);
        assert_eq!(left, START.plus(TIMES.grace).since(now));
        assert_eq!(
            permits.acquire(now, left, &acquire_request(0, 1)),
            AcquireOutcome::Closed(left)
        );
        life.record_report(now);
        now = now.plus(Nanos(500 * Nanos::MILLI.0));
    }
    assert_eq!(life.closed_for(now, &TIMES), OPEN);
}

#[test]
fn store_pauses_grants_before_an_unreported_permit_can_expire() {
    let mut life = AcquireGate::closed(START, OPEN);
    life.record_report(START);
    assert_eq!(life.closed_for(START.plus(Nanos(TIMES.max_silence.0 - 1)), &TIMES), OPEN);
    // A permit that was reported a second before `START` expires three seconds later.
    let ends = Nanos(START.0 - Nanos::SECOND.0).plus(LIFETIME);
    assert_eq!(life.closed_for(ends, &TIMES), TIMES.grace);
    life.record_report(ends.plus(Nanos::SECOND));
    let later = ends.plus(Nanos::SECOND);
    assert_eq!(life.closed_for(later, &TIMES), Nanos(TIMES.grace.0 - Nanos::SECOND.0));
    let mut settled = AcquireGate::open();
    assert_eq!(settled.closed_for(START, &TIMES), OPEN);
}

#[test]
fn clock_step_back_prolongs_neither_grace_nor_permits() {
    let mut life = AcquireGate::closed(START, TIMES.grace);
    let back = Nanos(START.0 - Nanos::from_secs(3_600).0);
    assert_eq!(life.closed_for(back, &TIMES), TIMES.grace);
    assert_eq!(life.closed_for(back.plus(TIMES.grace), &TIMES), OPEN);
    let mut permits = PermitTable::default();
    permits.acquire(START, OPEN, &acquire_request(0, 1));
    assert_eq!(permits.acquire(back, OPEN, &acquire_request(1, 1)), AcquireOutcome::LimitReached);
    let clamped = back.plus(TIMES.max_lifetime);
    assert_eq!(permits.last_deadline(), Some(clamped), "no longer than any is told");
    assert_eq!(permits.acquire(clamped, OPEN, &acquire_request(1, 1)), AcquireOutcome::Acquired);
}
