//! Permits of strict limits survive the way to Sluicegate and back.

use proptest::prelude::{Strategy, any, prop, prop_assert_eq, prop_oneof, proptest};

use sluicegate_concurrency::store::permits::{PermitTiming, StrictAcquire};

use super::*;

/// The process of the proxy.
const PROCESS: u64 = 7;

fn ids() -> impl Strategy<Value = PermitId> {
    any::<u64>().prop_map(|number| PermitId(PROCESS, number))
}

fn buckets() -> impl Strategy<Value = Box<[u8]>> {
    prop::collection::vec(any::<u8>(), 1..40).prop_map(Into::into)
}

fn timing() -> PermitTiming {
    PermitTiming { grace: Nanos(1), max_silence: Nanos(1), max_lifetime: Nanos(1) }
}

fn reports() -> impl Strategy<Value = PermitReport> {
    let in_use = prop::collection::vec((ids(), (0_u64..1 << 40).prop_map(Nanos)), 0..5);
    let limit = (buckets(), in_use, prop::collection::vec(ids(), 0..5)).prop_map(
        |(bucket, in_use, released)| LimitPermits { bucket, in_use, released, is_claimed: true },
    );
    prop::collection::vec(limit, 0..4).prop_map(|limits| PermitReport {
        times: timing(),
        to_all_nodes: false,
        limits,
    })
}

fn outcomes() -> impl Strategy<Value = AcquireOutcome> {
    prop_oneof![
        proptest::prelude::Just(AcquireOutcome::Acquired),
        proptest::prelude::Just(AcquireOutcome::LimitReached),
        (1_u64..1 << 40).prop_map(|closed_for| AcquireOutcome::Closed(nanos(closed_for))),
    ]
}

proptest! {
    #[test]
    fn a_request_arrives_without_the_parameters_of_its_limit(bucket in buckets(), id in ids()) {
        let (limit, lifetime) = (Share(9), Nanos(9));
        let permit = StrictAcquire { id, limit, lifetime, timing: timing() };
        let message = permit_request_message(&StrictPermitRequest { bucket: bucket.clone(), permit });
        prop_assert_eq!(permit_request(&message), Some((bucket, id.1)));
    }

    #[test]
    fn reports_survive_the_way_to_the_store(report in reports()) {
        prop_assert_eq!(permit_report(&permit_report_message(&report), PROCESS), Some(report.limits));
    }

    #[test]
    fn replies_survive_the_way_to_the_proxy(result in outcomes(), held in any::<u64>()) {
        let reply = Ok(StrictPermitReply { result, held: Share(held) });
        prop_assert_eq!(permit_result(&permit_result_message(&reply)), Some(reply));
        let changes = PermitCorrections { restored: held / 2, freed: held / 3 };
        let replies =
            vec![Ok(LimitPermitsReply { changes, held: Share(held) }), Err(StoreFailure::TimedOut)];
        let message = permit_report_result_message(&replies);
        prop_assert_eq!(permit_report_result(&message, 2), Some(replies));
        prop_assert_eq!(permit_report_result(&message, 1), None);
    }
}

#[test]
fn a_report_with_too_many_permits_is_refused() {
    let limit = |permits| LimitPermits {
        bucket: [1][..].into(),
        in_use: Vec::new(),
        released: (0..permits).map(|number| PermitId(1, number)).collect(),
        is_claimed: false,
    };
    let report = |permits| PermitReport {
        times: timing(),
        to_all_nodes: false,
        limits: vec![limit(permits)],
    };
    let most = MAX_PERMITS_PER_REPORT.try_into().unwrap();
    assert!(permit_report(&permit_report_message(&report(most)), PROCESS).is_some());
    assert_eq!(permit_report(&permit_report_message(&report(most + 1)), PROCESS), None);
}

#[test]
fn a_pause_of_grants_is_rounded_up() {
    let closed = AcquireOutcome::Closed(Nanos(1));
    let message = permit_result_message(&Ok(StrictPermitReply { result: closed, held: Share(0) }));
    let Some(permit_acquire_result::Result::Applied(reply)) = message.result else { panic!() };
    assert_eq!(reply.closed_for_us, 1);
}
