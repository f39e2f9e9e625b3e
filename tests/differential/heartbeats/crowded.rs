//! A ceiling with more seats than the script writes with one command, and with as many as there may be.
//!
//! All seats are written for each that comes, so a fleet of that size does not come here one by one: kernel and store begin with the
//! same seats, in the store as `heartbeat.lua` lays them out, and every field of every seat is compared after each heartbeat.

use std::collections::BTreeMap;

use sluicegate::backend::heartbeat::{Beat, Round};
use sluicegate::backend::redis::codec::heartbeat::{lives, state};
use sluicegate::kernel::coordinator::aggregate::{Level, Ratio};
use sluicegate::kernel::coordinator::coordinator::MOST_SEATS;
use sluicegate::kernel::coordinator::life::Record;
use sluicegate::kernel::coordinator::message::Holding;
use sluicegate::kernel::coordinator::seat::{Granted, Seat};
use sluicegate::kernel::coordinator::{Coordinator, Heartbeat, Law, Life, Reply};
use sluicegate::kernel::units::{Generation, Incarnation, MemberId, Nanos, Share};

use super::{START, Speaker, bucket, joins, terms};
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;
use crate::support::resp::Value;

const LIFE: Life = Life { incarnation: Incarnation(7), born: Nanos(0), settled: true };
/// So many bytes of the head tell what the kernel knows as well; the wants begin after so many.
const KNOWN: usize = 50;
const HEAD: usize = 122;

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

/// One more than its ratio, and 0 for none.
fn ballot(vote: Option<Ratio>) -> [u8; 4] {
    int(vote.map_or(0, |Ratio(ratio)| u64::from(ratio) + 1))
}

fn name(seat: &Seat) -> Vec<u8> {
    [double(seat.member.0), double(seat.life.0)].concat()
}

/// The SEAT of the one in that place, counted from 1.
fn field(place: u64, seat: &Seat) -> Vec<u8> {
    let seen = [seat.held.share, seat.granted.share, seat.in_flight, seat.told].map(|it| int(it.0));
    let generations = [seat.held, seat.granted].map(|granted| double(granted.generation.0));
    let instants = [seat.since, seat.rests, seat.lasts].map(instant);
    [
        &int(place)[..],
        &double(seat.member.0),
        &instant(seat.until),
        &seen.concat(),
        &double(seat.life.0),
        &double(seat.number),
        &generations.concat(),
        &instants.concat(),
        &ballot(seat.vote),
    ]
    .concat()
}

fn seats(of: &Coordinator) -> Fields {
    (1..).zip(&of.seats).map(|(place, seat)| (name(seat), field(place, seat))).collect()
}

/// What the kernel knows as well of what the head tells.
fn known(of: &Coordinator) -> Vec<u8> {
    let votes = of.seats.iter().filter(|seat| seat.vote.is_some()).count();
    [
        &int(of.seats.len() as u64)[..],
        &double(of.incarnation.0),
        &instant(of.latest),
        &double(of.generation.0),
        &double(of.level.unwrap().0),
        &u16::from(of.recovered).to_le_bytes(),
        &instant(of.counted),
        &int(votes as u64),
    ]
    .concat()
}

fn wants(of: &Coordinator) -> Vec<u8> {
    of.seats.iter().flat_map(|seat| int(seat.wanted.0)).collect()
}

/// That of one whose term goes on for longer than this lasts, or of whom nothing is left but what it admitted.
fn seat(dice: &mut Dice, number: u64, ceiling: u64) -> Seat {
    let granted = |dice: &mut Dice| Granted {
        generation: Generation(1 + dice.up_to(98)),
        share: Share(1 + dice.up_to(2)),
    };
    let is_silent = dice.once_in(50);
    let passed = |dice: &mut Dice| Nanos(dice.up_to(1_000_000) * Nanos::MICRO.0);
    let until =
        if is_silent { Nanos(START.0 - passed(dice).0) } else { terms(10).term.plus(START) };
    Seat {
        member: MemberId(2 * number),
        life: Incarnation(1 + dice.up_to(5)),
        number: 1 + dice.up_to(9),
        held: granted(dice),
        granted: granted(dice),
        told: Share(dice.pick(&[ceiling, ceiling / 2, ceiling + 1])),
        in_flight: Share(dice.up_to(3)),
        wanted: Share(dice.up_to(4)),
        vote: dice.once_in(3).then(|| Ratio(u32::try_from(dice.up_to(3 << 16)).unwrap())),
        until,
        rests: START.plus(passed(dice)),
        lasts: Nanos::from_secs(dice.pick(&[1, 10, 60])),
        since: Nanos(START.0 - passed(dice).0),
    }
}

/// One ceiling in the kernel and in the store.
struct Crowd<'s> {
    speaker: &'s mut Speaker,
    coordinator: Coordinator,
    law: Law,
    now: Nanos,
}

impl<'s> Crowd<'s> {
    fn new(speaker: &'s mut Speaker, dice: &mut Dice, count: u64, ceiling: u64) -> Self {
        let law = Law::new(terms(10), Share(1), Share(ceiling), Share(1 << 24)).unwrap();
        let coordinator = Coordinator {
            incarnation: LIFE.incarnation,
            latest: START,
            generation: Generation(99),
            level: Some(Level(Level::of(Share(ceiling)).0 + dice.up_to(1_023))),
            recovered: false,
            counted: START,
            seats: (1..=count).map(|number| seat(dice, number, ceiling)).collect(),
        };
        let mut crowd = Self { speaker, coordinator, law, now: START };
        crowd.put_down();
        crowd
    }

    fn key() -> Vec<u8> {
        state(&bucket(0), b"test:")
    }

    fn tell(&mut self, parts: &[&[u8]]) -> Value {
        self.speaker.client.call(&parts.iter().map(|part| part.to_vec()).collect::<Vec<_>>())
    }

    /// Has the store begin with what the kernel has: a life that is settled, and a head whose sums hold no longer.
    fn put_down(&mut self) {
        let (lives, key) = (lives(b"test:"), Self::key());
        let life = [7, 0, 1, 0].map(double).concat();
        self.tell(&[b"HSET", &lives, b"life", &life, b"store", b"a"]);
        self.tell(&[b"DEL", &key]);
        let head = [known(&self.coordinator), vec![0; HEAD - KNOWN], wants(&self.coordinator)];
        self.tell(&[b"HSET", &key, b"head", &head.concat()]);
        for (name, field) in seats(&self.coordinator) {
            self.speaker.client.queue(&[&b"HSET"[..], &key, &name, &field]);
        }
        self.speaker.client.flush();
        for _ in 0..self.coordinator.seats.len() {
            assert_eq!(self.speaker.client.receive(), Value::Int(1));
        }
    }

    /// What both answer, and that both know the same after it.
    fn hears(&mut self, said: Heartbeat) -> Reply {
        let record = Record { member: said.member, life: said.life, under: None };
        let beats = vec![Beat { bucket: bucket(0), law: self.law, said }];
        let round = Round { record, beats, ..joins(1) };
        let heard = self.speaker.say_at(&round, Some(self.now));
        let reply = self.coordinator.on_heartbeat(self.now, &LIFE, &self.law, &said);
        let count = self.coordinator.seats.len();
        assert_eq!(heard.replies, [Some(reply)], "{count} seats: {said:?}");
        self.is_alike();
        reply
    }

    fn is_alike(&mut self) {
        let told = self.tell(&[b"HGETALL", &Self::key()]);
        let bytes = |value: &Value| match value {
            Value::Text(bytes) => bytes.clone(),
            other => panic!("{other:?}"),
        };
        let pairs = told.array().chunks(2).map(|pair| (bytes(&pair[0]), bytes(&pair[1])));
        let mut stored: Fields = pairs.collect();
        let head = stored.remove(&b"head"[..]).unwrap();
        assert_eq!(head[..KNOWN], known(&self.coordinator));
        assert!(head[HEAD..] == wants(&self.coordinator), "what {} want", stored.len());
        let wanted = seats(&self.coordinator);
        let differs = wanted.iter().find(|(name, field)| stored.get(*name) != Some(*field));
        assert_eq!((stored.len(), differs), (wanted.len(), None));
    }

    /// One that speaks for the first time.
    fn joins(&mut self, member: u64) -> Reply {
        let said = joins(member).beats[0].said;
        self.hears(Heartbeat { life: Incarnation(9), ..said })
    }

    /// What the one in that place says next.
    fn next_of(&self, at: usize) -> Heartbeat {
        let seat = &self.coordinator.seats[at];
        let Granted { generation, share } = seat.granted;
        let (coordinator, ceiling) = (LIFE.incarnation, self.coordinator.ceiling());
        Heartbeat {
            member: seat.member,
            life: seat.life,
            number: seat.number + 1,
            holds: Some(Holding { coordinator, generation, share, ceiling }),
            in_flight: Share(0),
            wanted: Share(3),
            vote: None,
            leaves: false,
        }
    }
}

/// Somebody comes to so many, somebody speaks, a vote is counted, the last leaves, and others come first and last; what the first
/// of them was answered.
fn is_walked_alike(crowd: &mut Crowd<'_>) -> Reply {
    let count = crowd.coordinator.seats.len();
    let first = crowd.joins(count as u64 / 2 * 2 + 1);
    crowd.now = START.plus(Nanos::SECOND);
    crowd.hears(crowd.next_of(count / 3));
    crowd.now = START.plus(Nanos::from_secs(2));
    crowd.hears(Heartbeat { vote: Some(Ratio::TWICE), ..crowd.next_of(count / 2) });
    assert_eq!(crowd.coordinator.counted, crowd.now);
    assert!(crowd.coordinator.seats.iter().all(|seat| seat.vote.is_none()));
    for _ in 0..2 {
        let leaves = crowd.next_of(crowd.coordinator.seats.len() - 1);
        assert_eq!(crowd.hears(Heartbeat { leaves: true, ..leaves }), Reply::Left);
    }
    for member in [1, 1 << 40] {
        assert!(matches!(crowd.joins(member), Reply::Grant(_)));
    }
    first
}

/// The head is written with 999 of them, and as many as 1,000 with each command after that.
#[test]
fn a_ceiling_of_very_many_seats_is_kept_as_the_kernel_does_and_one_more_than_there_may_be_is_refused()
 {
    let (redis, seed) = (Redis::start(), seed());
    println!("seed {seed}");
    let (mut speaker, mut dice) = (Speaker::new(&redis), Dice::new(seed));
    for with_one_more in [999, 1_000, 1_001, 1_999, 2_000, MOST_SEATS, MOST_SEATS + 1] {
        // Some wait for their turn; not all have what they want; there is enough.
        for ceiling in [64, 5_000, 100_000] {
            let count = with_one_more as u64 - 1;
            let mut crowd = Crowd::new(&mut speaker, &mut dice, count, ceiling);
            let reply = is_walked_alike(&mut crowd);
            assert_eq!(reply == Reply::Full, MOST_SEATS < with_one_more, "{with_one_more} seats");
        }
    }
}
