//! Compares the Lua script of share rounds with the coordinator in fleets up to the maximum size.
//!
//! Each join rewrites all share states, so joining one by one would be slow. Instead, the tests
//! write the kernel's share states to the store, in the layout of `heartbeat.lua`.
//!
//! Guarantees:
//! - After each heartbeat, every field of every share state is compared.

use std::collections::BTreeMap;

use sluicegate::kernel::coordinator::aggregate::{FractionalLimit, LimitFactor};
use sluicegate::kernel::coordinator::coordinator::MAX_SHARE_STATES;
use sluicegate::kernel::coordinator::demand_curve::DemandPoint;
use sluicegate::kernel::coordinator::incarnation::IncarnationRecord;
use sluicegate::kernel::coordinator::message::GrantInUse;
use sluicegate::kernel::coordinator::share_state::{GrantRecord, ShareState};
use sluicegate::kernel::coordinator::{
    Coordinator, CoordinatorConfig, CoordinatorIncarnation, DemandCurve, Heartbeat, HeartbeatReply,
    RunningSums,
};
use sluicegate::kernel::units::{Generation, Incarnation, Nanos, ReplicaId, Share};
use sluicegate::store::heartbeat::{ShareReport, ShareRound};
use sluicegate::store::redis::codec::heartbeat::{incarnation_key, state_key};

use super::{Reporter, START, any_curve, bucket, join_round, terms};
use crate::differential::traces;
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;
use crate::support::resp::Value;

const LIFE: CoordinatorIncarnation =
    CoordinatorIncarnation { incarnation: Incarnation(7), started_at: Nanos(0), is_settled: true };
/// The parts of the stored head: values that the kernel has, too, up to `KNOWN`; the expiry; the
/// running sums from `SUMS`; the demands from `HEAD`.
const KNOWN: usize = 58;
const SUMS: usize = 66;
const HEAD: usize = 130;

type Fields = BTreeMap<Vec<u8>, Vec<u8>>;

#[allow(clippy::cast_precision_loss, reason = "below 2^53")]
fn double(number: u64) -> [u8; 8] {
    (number as f64).to_le_bytes()
}

fn instant(at: Nanos) -> [u8; 8] {
    double(at.0 / Nanos::MICRO.0)
}

fn int(number: u64) -> [u8; 4] {
    u32::try_from(number).unwrap().to_le_bytes()
}

/// A vote as the script stores it: the ratio plus one, or 0 without a vote.
fn vote_bytes(vote: Option<LimitFactor>) -> [u8; 4] {
    int(vote.map_or(0, |LimitFactor(ratio)| u64::from(ratio) + 1))
}

fn name(seat: &ShareState) -> Vec<u8> {
    [double(seat.replica.0), double(seat.incarnation.0)].concat()
}

fn point_bytes(point: DemandPoint) -> [u8; 8] {
    (u64::from(point.place) | u64::from(point.demand) << 32).to_le_bytes()
}

/// A share state as the script stores it (`SEAT`), at index `index`, counted from 1.
fn field(index: u64, share_state: &ShareState) -> Vec<u8> {
    let seen = [
        share_state.confirmed.share,
        share_state.granted.share,
        share_state.in_flight,
        share_state.replied_limit,
    ]
    .map(|it| int(it.0));
    let generations =
        [share_state.confirmed, share_state.granted].map(|granted| double(granted.generation.0));
    let instants =
        [share_state.changed_at, share_state.earlier_requests_end, share_state.max_duration]
            .map(instant);
    [
        &int(index)[..],
        &double(share_state.replica.0),
        &instant(share_state.expires_at),
        &seen.concat(),
        &double(share_state.incarnation.0),
        &double(share_state.number),
        &generations.concat(),
        &instants.concat(),
        &vote_bytes(share_state.vote),
        &share_state.curve.points().iter().copied().flat_map(point_bytes).collect::<Vec<_>>(),
    ]
    .concat()
}

fn share_state_fields(coordinator: &Coordinator) -> Fields {
    (1..)
        .zip(&coordinator.share_states)
        .map(|(place, seat)| (name(seat), field(place, seat)))
        .collect()
}

fn counted_votes(coordinator: &Coordinator) -> u64 {
    coordinator.share_states.iter().filter(|seat| seat.vote.is_some()).count() as u64
}

/// The first part of the stored head, from the kernel's values.
fn head_start(coordinator: &Coordinator) -> Vec<u8> {
    assert_eq!(coordinator.vote_count, counted_votes(coordinator));
    [
        &int(coordinator.share_states.len() as u64)[..],
        &double(coordinator.incarnation.0),
        &instant(coordinator.latest_time),
        &double(coordinator.generation.0),
        &double(coordinator.limit.unwrap().0),
        &u16::from(coordinator.is_recovered).to_le_bytes(),
        &instant(coordinator.counted_at),
        &int(coordinator.vote_count),
        &instant(coordinator.entitled_at),
    ]
    .concat()
}

/// The last part of the stored head: the running sums.
fn sums_bytes(sums: &RunningSums) -> Vec<u8> {
    let counts = [sums.with_demand, sums.short, sums.without_share, sums.expiring];
    [
        &instant(sums.valid_until)[..],
        &instant(sums.next_expiry),
        &int(sums.limit.0),
        &[sums.exposure, sums.need, sums.used].map(|sum| double(sum.0)).concat(),
        &counts.map(int).concat(),
        &int(sums.fill_level.0),
    ]
    .concat()
}

fn demand_bytes(coordinator: &Coordinator) -> Vec<u8> {
    coordinator.share_states.iter().flat_map(|seat| int(seat.demand.0)).collect()
}

/// A random share state. The share outlives the test, or it has expired and only requests are in
/// flight.
fn random_share_state(dice: &mut Dice, number: u64, limit: u64) -> ShareState {
    let granted = |dice: &mut Dice| GrantRecord {
        generation: Generation(1 + dice.up_to(98)),
        share: Share(1 + dice.up_to(2)),
    };
    let is_silent = dice.once_in(50);
    let passed = |dice: &mut Dice| Nanos(dice.up_to(1_000_000) * Nanos::MICRO.0);
    let until = if is_silent {
        Nanos(START.0 - passed(dice).0)
    } else {
        terms(10).share_lifetime.plus(START)
    };
    ShareState {
        replica: ReplicaId(2 * number),
        incarnation: Incarnation(1 + dice.up_to(5)),
        number: 1 + dice.up_to(9),
        confirmed: granted(dice),
        granted: granted(dice),
        replied_limit: Share(dice.pick(&[limit, limit / 2, limit + 1])),
        in_flight: Share(dice.up_to(3)),
        demand: Share(dice.up_to(4)),
        curve: if dice.once_in(2) { any_curve(dice) } else { DemandCurve::EMPTY },
        vote: dice.once_in(3).then(|| LimitFactor(u32::try_from(dice.up_to(3 << 16)).unwrap())),
        expires_at: until,
        earlier_requests_end: START.plus(passed(dice)),
        max_duration: Nanos::from_secs(dice.pick(&[1, 10, 60])),
        changed_at: Nanos(START.0 - passed(dice).0),
    }
}

struct Crowd<'s> {
    reporter: &'s mut Reporter,
    coordinator: Coordinator,
    law: CoordinatorConfig,
    now: Nanos,
}

impl<'s> Crowd<'s> {
    fn new(reporter: &'s mut Reporter, dice: &mut Dice, count: u64, ceiling: u64) -> Self {
        let law =
            CoordinatorConfig::new(terms(10), Share(1), Share(ceiling), Share(1 << 24)).unwrap();
        let mut coordinator = Coordinator {
            incarnation: LIFE.incarnation,
            latest_time: START,
            generation: Generation(99),
            limit: Some(FractionalLimit(
                FractionalLimit::from_share(Share(ceiling)).0 + dice.up_to(1_023),
            )),
            is_recovered: false,
            counted_at: START,
            entitled_at: START,
            share_states: (1..=count)
                .map(|number| random_share_state(dice, number, ceiling))
                .collect(),
            ..Coordinator::default()
        };
        coordinator.vote_count = counted_votes(&coordinator);
        let mut crowd = Self { reporter, coordinator, law, now: START };
        crowd.write_to_store();
        crowd
    }

    fn key() -> Vec<u8> {
        state_key(&bucket(0), b"test:")
    }

    fn call(&mut self, parts: &[&[u8]]) -> Value {
        self.reporter.client.call(&parts.iter().map(|part| part.to_vec()).collect::<Vec<_>>())
    }

    /// Writes the kernel's state to the store: an incarnation after its recovery, and a head whose
    /// sums the script must compute again.
    fn write_to_store(&mut self) {
        let (lives, key) = (incarnation_key(b"test:"), Self::key());
        let life = [7, 0, 1, 0].map(double).concat();
        self.call(&[b"HSET", &lives, b"incarnation", &life, b"store", b"a"]);
        self.call(&[b"DEL", &key]);
        let head =
            [head_start(&self.coordinator), vec![0; HEAD - KNOWN], demand_bytes(&self.coordinator)];
        self.call(&[b"HSET", &key, b"head", &head.concat()]);
        for (name, field) in share_state_fields(&self.coordinator) {
            self.reporter.client.queue(&[&b"HSET"[..], &key, &name, &field]);
        }
        self.reporter.client.flush();
        for _ in 0..self.coordinator.share_states.len() {
            assert_eq!(self.reporter.client.receive(), Value::Int(1));
        }
    }

    /// Sends a heartbeat to the store and to the kernel. Asserts equal replies and equal states.
    fn send(&mut self, heartbeat: Heartbeat) -> HeartbeatReply {
        let record = IncarnationRecord {
            replica: heartbeat.replica,
            incarnation: heartbeat.incarnation,
            coordinator_incarnation: None,
        };
        let beats = vec![ShareReport { bucket: bucket(0), law: self.law, heartbeat }];
        let round = ShareRound { record, reports: beats, ..join_round(1) };
        let heard = self.reporter.send_at(&round, Some(self.now));
        let reply = self.coordinator.apply_heartbeat(self.now, &LIFE, &self.law, &heartbeat);
        let count = self.coordinator.share_states.len();
        assert_eq!(heard.replies, [Some(reply)], "{count} seats: {heartbeat:?}");
        self.assert_same_state();
        reply
    }

    fn assert_same_state(&mut self) {
        let told = self.call(&[b"HGETALL", &Self::key()]);
        let bytes = |value: &Value| match value {
            Value::Text(bytes) => bytes.clone(),
            other => panic!("{other:?}"),
        };
        let pairs = told.array().chunks(2).map(|pair| (bytes(&pair[0]), bytes(&pair[1])));
        let mut stored: Fields = pairs.collect();
        let head = stored.remove(&b"head"[..]).unwrap();
        assert_eq!(head[..KNOWN], head_start(&self.coordinator));
        assert_eq!(head[SUMS..HEAD], sums_bytes(&self.coordinator.sums));
        assert!(head[HEAD..] == demand_bytes(&self.coordinator), "what {} want", stored.len());
        let wanted = share_state_fields(&self.coordinator);
        let differs = wanted.iter().find(|(name, field)| stored.get(*name) != Some(*field));
        assert_eq!((stored.len(), differs), (wanted.len(), None));
    }

    fn join(&mut self, member: u64) -> HeartbeatReply {
        let said = join_round(member).reports[0].heartbeat;
        self.send(Heartbeat { incarnation: Incarnation(9), ..said })
    }

    fn next_heartbeat(&self, at: usize) -> Heartbeat {
        let seat = &self.coordinator.share_states[at];
        let GrantRecord { generation, share } = seat.granted;
        let (coordinator, ceiling) = (LIFE.incarnation, self.coordinator.limit());
        Heartbeat {
            replica: seat.replica,
            incarnation: seat.incarnation,
            number: seat.number + 1,
            grant_in_use: Some(GrantInUse {
                coordinator_incarnation: coordinator,
                generation,
                share,
                limit: ceiling,
            }),
            in_flight: Share(0),
            demand: Share(3),
            curve: DemandCurve::EMPTY,
            vote: None,
            is_leaving: false,
            is_claimed: false,
        }
    }
}

/// A replica joins, another reports, a vote is counted, the last two leave, and two join with the
/// lowest and the highest id. Compares each step. Returns the reply to the first join.
fn assert_same_walk(crowd: &mut Crowd<'_>) -> HeartbeatReply {
    let count = crowd.coordinator.share_states.len();
    let first = crowd.join(count as u64 / 2 * 2 + 1);
    crowd.now = START.plus(Nanos::SECOND);
    crowd.send(crowd.next_heartbeat(count / 3));
    let point = DemandPoint::new(0, 1 << 12, 1 << 9).unwrap();
    let curve = DemandCurve::new(&[point]).unwrap();
    crowd.send(Heartbeat { curve, ..crowd.next_heartbeat(count / 4) });
    crowd.now = START.plus(Nanos::from_secs(2));
    crowd.send(Heartbeat { vote: Some(LimitFactor::TWICE), ..crowd.next_heartbeat(count / 2) });
    assert_eq!(crowd.coordinator.counted_at, crowd.now);
    assert!(crowd.coordinator.share_states.iter().all(|seat| seat.vote.is_none()));
    for _ in 0..2 {
        let leaves = crowd.next_heartbeat(crowd.coordinator.share_states.len() - 1);
        assert_eq!(crowd.send(Heartbeat { is_leaving: true, ..leaves }), HeartbeatReply::Left);
    }
    for member in [1, 1 << 40] {
        assert!(matches!(crowd.join(member), HeartbeatReply::Grant(_)));
    }
    first
}

/// Limits below the number of replicas, below the total demand, and above it.
const LIMITS: [u64; 3] = [64, 5_000, 100_000];

/// In large fleets, the script writes 999 share states with the head, and 1,000 with each further
/// command.
#[test]
fn largest_fleet_matches_the_kernel_and_one_more_replica_is_rejected() {
    let (redis, seed) = (Redis::start(), seed());
    println!("seed {seed}");
    let (mut reporter, mut dice) = (Reporter::new(&redis), Dice::new(seed));
    let sizes = [999, 1_000, 1_001, 1_999, 2_000, MAX_SHARE_STATES, MAX_SHARE_STATES + 1];
    // One limit for each size, in turn; all limits in long runs.
    let (first, limits) = (seed % 3, usize::try_from(traces(1).min(3)).unwrap());
    for (turn, with_one_more) in (usize::try_from(first).unwrap()..).zip(sizes) {
        for ceiling in LIMITS.into_iter().cycle().skip(turn).take(limits) {
            let count = with_one_more as u64 - 1;
            let mut crowd = Crowd::new(&mut reporter, &mut dice, count, ceiling);
            let reply = assert_same_walk(&mut crowd);
            assert_eq!(
                reply == HeartbeatReply::TooManyReplicas,
                MAX_SHARE_STATES < with_one_more,
                "{with_one_more} seats"
            );
        }
    }
}
