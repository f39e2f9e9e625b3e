//! Releases that arrive before their acquire.

use std::time::Duration;

use sluicegate::clock::Clock;
use sluicegate::engine::{AdmissionOutcome, CheckError, DecisionPolicy, Engine};
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::concurrency::permit_registry::EarlyReleaseLimits;
use sluicegate::kernel::units::Nanos;
use std::sync::atomic::Ordering::Relaxed;

use super::{
    BOTH_LIMITS, ID, OTHER, QUEUED, acquire, advance, engine, in_flight, is_admitted, is_pending,
};
use crate::support::engine::{block_on, check_of, publish};
use crate::support::faulty_store::FaultyStore;

#[test]
fn early_release_is_remembered_while_its_acquire_waits() {
    let engine = engine(QUEUED);
    let check = check_of(&[("k", "v")]);
    block_on(async {
        let acquire_by_id = |id| Box::pin(engine.acquire((id, 0), &check, &check, None));
        assert!(is_admitted(&acquire_by_id(OTHER).await));
        let mut waits = acquire_by_id(ID);
        assert!(is_pending(waits.as_mut()));
        assert!(!engine.release(ID, None, RequestOutcome::Ignored, None));
        // 25 s are longer than the lifetime of an early release, but a queued acquire of its id
        // prolongs it.
        advance(&engine, 25_000);
        assert!(engine.release(OTHER, None, RequestOutcome::Success, None));
        assert!(is_admitted(&waits.await));
    });
    assert_eq!(in_flight(&engine), 0);
    assert_eq!(engine.early_releases().0, 0);
}

#[test]
fn an_early_release_leaves_no_permit_behind() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    engine.release(ID, None, RequestOutcome::Ignored, None);
    assert!(matches!(acquire(&engine, ID), Ok(AdmissionOutcome::Decided(..))));
    assert_eq!(in_flight(&engine), 0);
}

#[test]
fn early_release_beyond_the_bound_is_forgotten() {
    let bounds = EarlyReleaseLimits { per_source: 0, total: 0, lifetime: Nanos::SECOND };
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n").with_early_releases(bounds);
    engine.release(ID, None, RequestOutcome::Ignored, None);
    assert!(acquire(&engine, ID).is_ok());
    assert_eq!(in_flight(&engine), 1);
}

#[test]
fn releases_of_denied_acquires_are_not_remembered() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    let other = "fedcba9876543210";
    assert!(matches!(acquire(&engine, ID), Ok(AdmissionOutcome::Decided(..))));
    for _ in 0..2 {
        assert!(matches!(acquire(&engine, other), Ok(AdmissionOutcome::Rejected(..))));
    }
    assert!(!engine.release(other, None, RequestOutcome::Ignored, None));
    assert_eq!(engine.early_releases().0, 0);
    assert!(matches!(acquire(&engine, other), Ok(AdmissionOutcome::Rejected(..))));
    assert!(engine.release(ID, None, RequestOutcome::Success, None));
    assert!(
        matches!(acquire(&engine, other), Ok(AdmissionOutcome::Decided(..))),
        "it may ask again"
    );
    assert_eq!(in_flight(&engine), 1);
    assert!(engine.release(other, None, RequestOutcome::Success, None));
}

#[test]
fn releases_of_failed_acquires_are_not_remembered() {
    let clock = Clock::manual(Nanos::from_secs(1));
    let store = FaultyStore::new();
    store.is_disconnected.store(true, Relaxed);
    let engine = Engine::new(clock, store, DecisionPolicy::default());
    publish(&engine, "", BOTH_LIMITS);
    assert!(matches!(acquire(&engine, ID), Err(CheckError::StoreUnavailable(_))));
    assert_eq!(in_flight(&engine), 0);
    assert!(!engine.release(ID, None, RequestOutcome::Ignored, None));
    assert_eq!(engine.early_releases().0, 0);
    assert!(
        matches!(acquire(&engine, ID), Err(CheckError::StoreUnavailable(_))),
        "it may ask again"
    );
}

#[test]
fn releases_of_canceled_acquires_are_not_remembered() {
    let engine = engine("- key: k\n  concurrency: {limit: 1, queue: {size: 2, timeout: 1h}}\n");
    let check = check_of(&[("k", "v")]);
    let acquire_by_id = |id| Box::pin(engine.acquire((id, 0), &check, &check, None));
    block_on(async {
        assert!(is_admitted(&acquire_by_id(ID).await));
        let (mut canceled, mut released) =
            (acquire_by_id(OTHER), acquire_by_id("its-release-is-before"));
        assert!(is_pending(canceled.as_mut()) && is_pending(released.as_mut()));
        engine.release("its-release-is-before", None, RequestOutcome::Ignored, None);
        assert_eq!(engine.early_releases().0, 1);
        drop(released);
        assert_eq!(engine.early_releases().0, 0, "what it was remembered for is over");
        drop(canceled);
        assert!(!engine.release(OTHER, None, RequestOutcome::Ignored, None));
        assert_eq!(engine.early_releases().0, 0);
    });
    assert!(engine.release(ID, None, RequestOutcome::Success, None));
}

#[test]
fn release_during_a_queued_retry_counts_as_early() {
    let engine = engine("- key: k\n  concurrency: {limit: 1, queue: {size: 1, timeout: 1h}}\n");
    let check = check_of(&[("k", "v")]);
    let acquire_by_id = |id, patience| Box::pin(engine.acquire((id, 0), &check, &check, patience));
    block_on(async {
        assert!(is_admitted(&acquire_by_id(ID, None).await));
        assert!(matches!(
            acquire_by_id(OTHER, Some(Nanos(0))).await,
            Ok(AdmissionOutcome::Rejected(..))
        ));
        let mut waits = acquire_by_id(OTHER, None);
        assert!(is_pending(waits.as_mut()));
        engine.release(OTHER, None, RequestOutcome::Ignored, None);
        assert_eq!(engine.early_releases().0, 1);
        assert!(engine.release(ID, None, RequestOutcome::Success, None));
        assert!(is_admitted(&waits.await));
    });
    assert_eq!((in_flight(&engine), engine.early_releases().0), (0, 0));
}

#[test]
fn early_releases_use_the_configured_bounds() {
    let bounds = EarlyReleaseLimits { per_source: 3, total: 5, lifetime: Nanos::SECOND };
    let engine = engine("- key: k\n  concurrency: {limit: 1, max_duration: 3s}\n");
    let engine = engine.with_early_releases(bounds);
    assert_eq!(engine.early_releases(), (0, 5));
    let other = "fedcba9876543210";
    assert!(matches!(acquire(&engine, ID), Ok(AdmissionOutcome::Decided(..))));
    assert!(matches!(acquire(&engine, other), Ok(AdmissionOutcome::Rejected(..))));
    advance(&engine, 3_000);
    expire_id(&engine, ID);
    // The denial was remembered for only a second, so this release is of an unknown id.
    engine.release(other, None, RequestOutcome::Ignored, None);
    assert_eq!(engine.early_releases(), (1, 5));
}

/// Runs the engine's expiry until it has removed `id`.
fn expire_id(engine: &Engine, id: &str) {
    let forgotten = async {
        while engine.renewal_interval(id).is_some() {
            tokio::task::yield_now().await;
        }
    };
    let either = async {
        tokio::select! {
            () = engine.expire_forever() => panic!("it ended"),
            () = forgotten => {}
        }
    };
    let patience = Duration::from_secs(60);
    block_on(async { tokio::time::timeout(patience, either).await }).expect("it is known still");
}

#[test]
fn early_releases_are_bounded_per_source_without_eviction() {
    const MOST: usize = 50_000;
    let engine = engine("- key: k\n  concurrency: {limit: 9}\n");
    let source = |last| Some(std::net::IpAddr::from([192, 0, 2, last]));
    let early = |id: String, from| {
        engine.release(&id, source(from), RequestOutcome::Ignored, None);
        engine.early_releases().0
    };
    for number in 0..MOST {
        assert_eq!(early(format!("release-{number:016}"), 1), number + 1);
    }
    assert_eq!(early("one-more-of-the-same".into(), 1), MOST, "refused");
    assert_eq!(early(ID.into(), 2), MOST + 1, "another's are remembered");
    for id in ["release-0000000000000000", ID] {
        assert!(matches!(acquire(&engine, id), Ok(AdmissionOutcome::Decided(..))));
        assert_eq!(in_flight(&engine), 0, "{id} was over");
    }
    assert!(matches!(acquire(&engine, "one-more-of-the-same"), Ok(AdmissionOutcome::Decided(..))));
    assert_eq!(in_flight(&engine), 1, "forgotten, and max_duration frees it");
}

#[test]
fn unreleased_permits_are_bounded_by_the_limit_and_expire() {
    let engine = engine("- key: k\n  concurrency: {limit: 100000, max_duration: 30s}\n");
    let check = check_of(&[("k", "v")]);
    let held = block_on(async {
        let mut held = 0;
        for number in 0..101_000 {
            let id = format!("never-given-back-{number}");
            let admitted = engine.acquire((&id, 0), &check, &check, None).await;
            held += usize::from(matches!(admitted, Ok(AdmissionOutcome::Decided(..))));
        }
        held
    });
    assert_eq!((held, in_flight(&engine)), (100_000, 100_000));
    advance(&engine, 30_000);
    assert_eq!(in_flight(&engine), 0);
}
