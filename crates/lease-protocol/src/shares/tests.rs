//! Share rounds and their replies survive the way to Sluicegate and back.

use proptest::prelude::{Just, Strategy, any, prop, prop_assert_eq, prop_oneof, proptest};
use sluicegate_kernel::concurrency::ClassParts;
use sluicegate_kernel::coordinator::aggregate::VoteAggregate;
use sluicegate_kernel::coordinator::demand_curve::CustomerDemand;
use sluicegate_kernel::coordinator::incarnation::IncarnationRecord;
use sluicegate_kernel::coordinator::{CoordinatorConfig, ShareTiming};

use super::*;

fn numbers() -> impl Strategy<Value = u64> {
    prop_oneof![0..9_u64, 0..NUMBER_BOUND]
}

fn configs() -> impl Strategy<Value = CoordinatorConfig> {
    let durations = prop::array::uniform4(1_u64..1 << 40);
    let limits = (1_u64..100, 100_u64..200, 200_u64..1 << 24);
    let aggregate = prop_oneof![Just(VoteAggregate::Median), Just(VoteAggregate::Min)];
    (durations, limits, aggregate).prop_map(|(durations, (min, start, max), aggregate)| {
        let [heartbeat, share_lifetime, margin, max_duration] = durations.map(Nanos);
        let timing = ShareTiming { heartbeat, share_lifetime, margin, max_duration };
        let [min, start, max] = [min, start, max].map(Share);
        CoordinatorConfig { timing, min, start, max, aggregate, classes: ClassParts::ONE }
    })
}

fn any_curve(seed: u64, count: u64) -> DemandCurve {
    let customer = |number: u64| CustomerDemand {
        class: u8::try_from(number % 3).unwrap(),
        demand: u32::try_from(seed.wrapping_mul(number) % (1 << 20)).unwrap(),
        weight: 1,
    };
    DemandCurve::of_customers(&mut (0..count % 40).map(customer).collect())
}

fn grants_in_use() -> impl Strategy<Value = GrantInUse> {
    prop::array::uniform4(numbers()).prop_map(|[incarnation, generation, share, limit]| {
        GrantInUse {
            coordinator_incarnation: Incarnation(incarnation),
            generation: Generation(generation),
            share: Share(share & MAX_REQUESTS),
            limit: Share(limit & MAX_REQUESTS),
        }
    })
}

fn reports(replica: ReplicaId) -> impl Strategy<Value = ShareReport> {
    let bucket = prop::collection::vec(any::<u8>(), 1..40);
    let vote = prop::option::of(0..=LimitFactor::TWICE.0);
    let grant = prop::option::of(grants_in_use());
    let numbers = prop::array::uniform4(numbers());
    (bucket, configs(), numbers, grant, vote, any::<bool>()).prop_map(
        move |(
            bucket,
            law,
            [incarnation, number, in_flight, demand],
            grant_in_use,
            vote,
            is_leaving,
        )| {
            let heartbeat = Heartbeat {
                replica,
                incarnation: Incarnation(incarnation),
                number,
                grant_in_use,
                in_flight: Share(in_flight & MAX_REQUESTS),
                demand: Share(demand & MAX_REQUESTS),
                curve: any_curve(demand, in_flight),
                vote: vote.map(LimitFactor),
                is_leaving,
                is_claimed: false,
            };
            ShareReport { bucket: bucket.into(), law, heartbeat }
        },
    )
}

fn rounds() -> impl Strategy<Value = ShareRound> {
    (numbers(), numbers(), prop::option::of(numbers()), prop::option::of(0..NUMBER_BOUND / 1_000))
        .prop_flat_map(|(replica, incarnation, coordinator, last_reply)| {
            let replica = ReplicaId(replica);
            let record = IncarnationRecord {
                replica,
                incarnation: Incarnation(incarnation),
                coordinator_incarnation: coordinator.map(Incarnation),
            };
            let reports = prop::collection::vec(reports(replica), 0..4);
            (Just(record), Just(last_reply), numbers(), any::<bool>(), reports)
        })
        .prop_map(|(record, last_reply, longest_use, is_leaving, reports)| ShareRound {
            record,
            last_reply_at: last_reply.map(nanos),
            longest_use: Nanos(longest_use),
            is_leaving,
            reports,
        })
}

/// A reply of kind `kind` to each report.
fn reply(round: &ShareRound, kind: usize, number: u64) -> ShareRoundReply {
    let reply = |report: &ShareReport| {
        let grant = Grant {
            replica: report.heartbeat.replica,
            incarnation: report.heartbeat.incarnation,
            heartbeat_number: report.heartbeat.number,
            coordinator_incarnation: Incarnation(number),
            generation: Generation(number / 2),
            share: Share(number / 3),
            fair_share: Share(number / 4),
            limit: Share(number / 5),
            replicas: number / 6,
            is_recovering: number.is_multiple_of(2),
        };
        match kind {
            0 => None,
            1 => Some(HeartbeatReply::Grant(grant)),
            2 => Some(HeartbeatReply::Left),
            3 => Some(HeartbeatReply::Stale),
            4 => Some(HeartbeatReply::Superseded),
            5 => Some(HeartbeatReply::StateLost),
            _ => Some(HeartbeatReply::TooManyReplicas),
        }
    };
    ShareRoundReply {
        incarnation: Incarnation(number),
        store_time: nanos(number / 1_000),
        replies: round.reports.iter().map(reply).collect(),
    }
}

proptest! {
    #[test]
    fn a_round_arrives_without_the_parameters_of_limits(round in rounds(), replica in numbers()) {
        let replica = ReplicaId(replica);
        let claimed = |report: &ShareReport| {
            let nothing = |grant| GrantInUse { share: Share(0), limit: Share(0), ..grant };
            let grant_in_use = report.heartbeat.grant_in_use.map(nothing);
            let heartbeat =
                Heartbeat { replica, grant_in_use, is_claimed: true, ..report.heartbeat };
            (report.bucket.clone(), heartbeat)
        };
        let wanted = ClaimedRound {
            coordinator_incarnation: round.record.coordinator_incarnation,
            is_leaving: round.is_leaving,
            reports: round.reports.iter().map(claimed).collect(),
        };
        prop_assert_eq!(share_round(&share_round_message(&round), replica), Some(wanted));
    }

    #[test]
    fn replies_survive_the_way_to_the_proxy(
        round in rounds(), kind in 0_usize..7, number in 0..NUMBER_BOUND
    ) {
        let reply = Ok(reply(&round, kind, number));
        let message = share_round_result_message(&reply);
        prop_assert_eq!(share_round_result(&message, &round), Some(reply));
    }
}

/// A round with one report.
fn round() -> api::ShareRound {
    let report = api::ShareReport { bucket: vec![1], ..Default::default() };
    api::ShareRound { reports: vec![report], ..Default::default() }
}

#[test]
fn rounds_that_a_store_cannot_represent_are_refused() {
    let grant = api::GrantInUse { coordinator_incarnation: 1, generation: NUMBER_BOUND };
    let broken: [fn(&mut api::ShareRound, api::GrantInUse); 13] = [
        |round, _| round.coordinator_incarnation = Some(NUMBER_BOUND),
        |round, _| round.reports = vec![round.reports[0].clone(); MAX_REPORTS_PER_ROUND + 1],
        |round, _| round.reports[0].bucket = vec![1; crate::concurrency::MAX_BUCKET_BYTES + 1],
        |round, _| round.reports[0].incarnation = NUMBER_BOUND,
        |round, _| round.reports[0].in_flight = MAX_REQUESTS + 1,
        |round, _| round.reports[0].demand = u64::MAX,
        |round, _| round.reports[0].vote = Some(LimitFactor::TWICE.0 + 1),
        |round, grant| round.reports[0].grant_in_use = Some(grant),
        |round, _| round.reports[0].curve = vec![point(0, 1, 1); 2],
        |round, _| round.reports[0].curve = (1..=17).map(|level| point(0, level, 1)).collect(),
        |round, _| round.reports[0].curve = vec![point(0, 1, 2), point(0, 2, 1)],
        |round, _| round.reports[0].curve = vec![point(8, 1, 1)],
        |round, _| round.reports[0].curve = vec![point(0, 0, 1)],
    ];
    assert!(share_round(&round(), ReplicaId(1)).is_some());
    for (index, change) in broken.iter().enumerate() {
        let mut round = round();
        change(&mut round, grant);
        assert_eq!(share_round(&round, ReplicaId(1)), None, "{index}");
    }
}

const fn point(class: u32, level: u32, demand: u32) -> api::DemandPoint {
    api::DemandPoint { class, level, demand }
}

/// A round of a store with one report.
fn stored_round() -> ShareRound {
    let (bucket, heartbeat) = share_round(&round(), ReplicaId(1)).unwrap().reports.pop().unwrap();
    let [heartbeat_interval, share_lifetime, margin, max_duration] = [1, 5, 1, 60].map(Nanos);
    let timing =
        ShareTiming { heartbeat: heartbeat_interval, share_lifetime, margin, max_duration };
    let [min, start, max] = [1, 10, 10].map(Share);
    let law = CoordinatorConfig::new(timing, min, start, max).unwrap();
    let record = IncarnationRecord {
        replica: ReplicaId(1),
        incarnation: Incarnation(1),
        coordinator_incarnation: None,
    };
    ShareRound {
        record,
        last_reply_at: None,
        longest_use: Nanos(1),
        is_leaving: false,
        reports: vec![ShareReport { bucket, law, heartbeat }],
    }
}

#[test]
fn a_reply_with_another_number_of_replies_is_refused() {
    let (round, reply) = (stored_round(), api::ShareRoundReply::default());
    let wire = api::ShareRoundResult { result: Some(share_round_result::Result::Applied(reply)) };
    assert_eq!(share_round_result(&wire, &round), None);
}

#[test]
fn a_store_time_is_rounded_down() {
    // A time in the future would look like lost state.
    let mut reply = reply(&stored_round(), 2, 0);
    reply.store_time = Nanos(1_999);
    let message = share_round_result_message(&Ok(reply));
    let Some(share_round_result::Result::Applied(reply)) = message.result else { panic!() };
    assert_eq!(reply.store_time_us, 1);
}
