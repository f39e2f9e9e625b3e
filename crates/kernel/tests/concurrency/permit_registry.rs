//! The registry of permit ids, with early releases.

use proptest::prelude::*;
use sluicegate_kernel::concurrency::permit_registry::{
    EarlyReleaseLimits, PermitRegistry, RegisterOutcome, ReleaseOutcome,
};
use sluicegate_kernel::units::Nanos;

const START: Nanos = Nanos::from_secs(1_000);
const FAR_FUTURE: Nanos = Nanos::from_secs(9_000);
const BOUNDS: EarlyReleaseLimits =
    EarlyReleaseLimits { per_source: 3, total: 5, lifetime: Nanos::from_secs(10) };

fn registry() -> PermitRegistry<u32, char, u32> {
    PermitRegistry::new(BOUNDS)
}

#[test]
fn an_early_release_ends_its_acquire_once() {
    let mut ids = registry();
    assert_eq!(ids.release(START, &7, &'a'), ReleaseOutcome::EarlyRelease);
    assert_eq!(ids.acquire(START, 7, FAR_FUTURE, 70), RegisterOutcome::AlreadyReleased(70));
    assert_eq!(
        ids.acquire(START, 7, FAR_FUTURE, 71),
        RegisterOutcome::Registered,
        "a tombstone answers once"
    );
    assert_eq!(ids.release(START, &7, &'a'), ReleaseOutcome::Released(71));
}

#[test]
fn an_id_is_registered_and_released_once() {
    let mut ids = registry();
    assert_eq!(ids.acquire(START, 7, FAR_FUTURE, 70), RegisterOutcome::Registered);
    assert_eq!(
        ids.acquire(START, 7, FAR_FUTURE, 71),
        RegisterOutcome::AlreadyRegistered(71),
        "an id is for one request"
    );
    assert_eq!(ids.release(START, &7, &'a'), ReleaseOutcome::Released(70));
    assert_eq!(ids.release(START, &7, &'a'), ReleaseOutcome::EarlyRelease);
    assert_eq!(ids.remove_overdue(FAR_FUTURE), None, "the deadline went with the release");
}

#[test]
fn claim_is_exclusive_and_does_not_block_a_release() {
    let mut ids = registry();
    assert!(ids.claim(7) && !ids.claim(7));
    assert!(ids.claim(8), "another id");
    assert_eq!(ids.release(START, &7, &'a'), ReleaseOutcome::EarlyRelease, "it holds nothing yet");
    assert_eq!(ids.acquire(START, 7, FAR_FUTURE, 70), RegisterOutcome::AlreadyReleased(70));
    ids.unclaim(&7);
    assert!(ids.claim(7));
}

#[test]
fn unreleased_id_expires_at_its_renewed_deadline() {
    let mut ids = registry();
    ids.acquire(START, 7, START.plus(Nanos(5)), 70);
    assert!(ids.renew(&7, START.plus(Nanos(9))));
    assert_eq!(ids.remove_overdue(START.plus(Nanos(8))), None);
    assert_eq!(ids.remove_overdue(START.plus(Nanos(9))), Some((7, 70)));
    assert!(ids.is_empty() && !ids.renew(&7, FAR_FUTURE));
}

#[test]
fn full_table_refuses_early_releases_and_evicts_none() {
    let mut ids = registry();
    for id in 0..3 {
        assert_eq!(ids.release(START, &id, &'a'), ReleaseOutcome::EarlyRelease);
    }
    assert_eq!(ids.release(START, &3, &'a'), ReleaseOutcome::TableFull, "its own bound");
    assert_eq!(
        ids.release(START, &1, &'a'),
        ReleaseOutcome::EarlyRelease,
        "said twice is said once"
    );
    assert_eq!(
        ids.release(START, &10, &'b'),
        ReleaseOutcome::EarlyRelease,
        "another source has its own"
    );
    assert_eq!(ids.release(START, &11, &'b'), ReleaseOutcome::EarlyRelease);
    assert_eq!(ids.release(START, &12, &'b'), ReleaseOutcome::TableFull, "the bound of all");
    ids.acquire(START, 99, FAR_FUTURE, 1);
    assert_eq!(
        ids.release(START, &99, &'a'),
        ReleaseOutcome::Released(1),
        "what is held is always known"
    );
    for id in 0..3 {
        assert_eq!(
            ids.acquire(START, id, FAR_FUTURE, 0),
            RegisterOutcome::AlreadyReleased(0),
            "nobody was evicted"
        );
    }
    assert_eq!(ids.release(START, &3, &'a'), ReleaseOutcome::EarlyRelease, "there is room again");
}

#[test]
fn early_release_expires_exactly_at_its_lifetime() {
    let mut ids = registry();
    ids.release(START, &7, &'a');
    ids.release(START, &8, &'a');
    let end = START.plus(BOUNDS.lifetime);
    assert_eq!(
        ids.acquire(Nanos(end.0 - 1), 7, FAR_FUTURE, 70),
        RegisterOutcome::AlreadyReleased(70)
    );
    assert_eq!(ids.acquire(end, 8, FAR_FUTURE, 80), RegisterOutcome::Registered);
    assert_eq!(ids.early_release_count(), 0);
}

proptest! {
    #[test]
    fn every_acquired_value_is_returned_exactly_once(
        events in proptest::collection::vec((0..4_u8, 0..6_u32, 0..9_u64), 1..300),
    ) {
        let (mut ids, mut now, mut next) = (registry(), START, 0);
        let (mut acquired, mut returned) = (Vec::new(), Vec::new());
        for (kind, id, by) in events {
            match kind {
                0 => {
                    acquired.push(next);
                    match ids.acquire(now, id, now.plus(Nanos::from_secs(by)), next) {
                        RegisterOutcome::Registered => {}
                        RegisterOutcome::AlreadyReleased(value) | RegisterOutcome::AlreadyRegistered(value) => returned.push(value),
                    }
                    next += 1;
                }
                1 => if let ReleaseOutcome::Released(value) = ids.release(now, &id, &'a') {
                    returned.push(value);
                },
                2 => drop(ids.renew(&id, now.plus(Nanos::from_secs(by)))),
                _ => {
                    now = now.plus(Nanos::from_secs(by));
                    while let Some((_, value)) = ids.remove_overdue(now) { returned.push(value) }
                }
            }
            prop_assert!(ids.early_release_count() <= 3, "one source");
        }
        while let Some((_, value)) = ids.remove_overdue(FAR_FUTURE) { returned.push(value) }
        returned.sort_unstable();
        prop_assert_eq!(acquired, returned);
    }
}
