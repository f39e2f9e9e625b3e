//! Reports this replica's permits of strict limits to the store.
//!
//! Guarantees:
//! - Rounds never overlap, so a released permit is never reported as in use afterwards.
//! - All permits in use are reported once per heartbeat, and when the replica leaves.
//! - Releases are reported as soon as possible, in as few calls as possible.
//! - An unconfirmed release is reported again until the permit's deadline.
//! - A release that a delayed acquire may undo is repeated for three heartbeats.
//! - Every list is bounded.
//!
//! Not covered:
//! - The permits themselves: see [`super::bucket`].
//!
//! Cost: a round costs its due permits. Releases that wait for a later report cost nothing.

use std::collections::vec_deque::Drain;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use siphasher::sip::SipHasher24;
use tokio::sync::{Mutex as Turn, Notify};
use tokio::time::{MissedTickBehavior, interval};

use super::bucket::Bucket;
use super::strict::{Line, Seen};
use super::{Admission, Name};
use crate::backend::permits::{AllHeard, Heard, Id, MOST_TOLD, Round, Times, Told};
use crate::backend::{Backend, Reply};
use crate::clock::Clock;
use crate::kernel::units::Nanos;
use crate::telemetry::event::StrictEvent;

/// The heartbeats after which the store releases an unreported permit.
const BEATS: u64 = 3;
/// The heartbeats without any report after which the store stops granting permits. One less
/// than the lifetime of a permit, because replicas report at different times in a heartbeat.
const SILENT_BEATS: u64 = 2;
/// The longest time to reconnect to a store that is available again, in addition to the heartbeats.
const CONNECTING: Nanos = Nanos::SECOND;
/// The largest number of unreported releases. Further permits end by their deadlines.
const MOST_ENDED: usize = 65_536;

#[derive(Debug)]
pub(super) struct Teller {
    /// Identifies this process. Unique in the fleet.
    life: u64,
    numbers: AtomicU64,
    beat: Nanos,
    active: Mutex<HashMap<Name, Arc<Bucket>>>,
    ended: Mutex<Endings>,
    wake: Notify,
    /// `true` if there are strict limits. The store must
    /// then learn of this replica before the first acquire.
    expects: AtomicBool,
    told: Mutex<Last>,
    turn: Turn<()>,
}

/// A released permit that the store may still count.
#[derive(Debug)]
pub(super) struct Ended {
    /// Shared with the bucket, because many releases may wait and a name may be long.
    pub(super) bucket: Arc<[u8]>,
    pub(super) line: Arc<Line>,
    pub(super) id: Id,
    /// The instant of the next report.
    pub(super) due: Nanos,
    /// The deadline of the permit in the store.
    pub(super) until: Nanos,
    /// A pending call may acquire the permit again.
    pub(super) repeats: bool,
}

/// The unreported releases, at most [`MOST_ENDED`].
#[derive(Debug, Default)]
struct Endings {
    /// Not reported yet.
    fresh: VecDeque<Ended>,
    /// To be reported again, in the order of `due`.
    again: VecDeque<Ended>,
}

impl Endings {
    fn add(&mut self, one: Ended) {
        if !self.is_full() {
            self.fresh.push_back(one);
        }
    }

    /// Callers pass increasing `due` instants.
    fn add_again(&mut self, one: Ended) {
        if !self.is_full() {
            self.again.push_back(one);
        }
    }

    fn is_full(&self) -> bool {
        MOST_ENDED <= self.fresh.len() + self.again.len()
    }

    /// Takes the due releases. Stops at the first that is
    /// not due, because every release waits for this lock.
    fn take_due(&mut self, now: Nanos) -> Vec<Ended> {
        let both = [&mut self.fresh, &mut self.again];
        both.into_iter().flat_map(|list| first_due(list, now)).collect()
    }
}

fn first_due(list: &mut VecDeque<Ended>, now: Nanos) -> Drain<'_, Ended> {
    let due = list.iter().take_while(|one| one.due <= now).count();
    list.drain(..due)
}

#[derive(Debug, Default)]
struct Last {
    beat: Option<Nanos>,
    failed: Option<Nanos>,
    is_failing: bool,
}

impl Teller {
    pub(super) fn new(member: u64, life: u64, beat: Nanos) -> Self {
        let name = [member.to_le_bytes(), life.to_le_bytes()].concat();
        Self {
            life: SipHasher24::new().hash(&name),
            numbers: AtomicU64::new(0),
            beat,
            active: Mutex::default(),
            ended: Mutex::default(),
            wake: Notify::new(),
            expects: AtomicBool::new(false),
            told: Mutex::default(),
            turn: Turn::default(),
        }
    }

    pub(super) const fn beat(&self) -> Nanos {
        self.beat
    }

    /// Returns the time for which the store keeps an unreported permit.
    pub(super) const fn deadline(&self) -> Nanos {
        Nanos(self.beat.0.saturating_mul(BEATS))
    }

    /// Returns the times that all replicas with the same
    /// heartbeat use for a limit with this `max_duration`.
    pub(super) fn times(&self, max_duration: Nanos) -> Times {
        Times {
            grace: self.deadline().plus(CONNECTING),
            silence: Nanos(self.beat.0.saturating_mul(SILENT_BEATS)),
            longest: self.kept(Some(max_duration)).max(self.deadline()),
        }
    }

    /// Returns the time for which the store keeps a permit with the local deadline `keep`.
    /// One heartbeat longer, because a renewal is reported with the next heartbeat.
    pub(super) fn kept(&self, keep: Option<Nanos>) -> Nanos {
        keep.map_or(self.deadline(), |keep| keep.plus(self.beat))
    }

    pub(super) fn next_id(&self) -> Id {
        Id(self.life, self.numbers.fetch_add(1, Relaxed))
    }

    /// Returns a number below `sides`, for jitter.
    pub(super) fn dice(&self, sides: u64) -> u64 {
        let Id(life, number) = self.next_id();
        SipHasher24::new().hash(&(life ^ number).to_le_bytes()) % sides.max(1)
    }

    /// Switches reports without permits on or off. They are needed if there are strict limits.
    pub(super) fn expects(&self, some: bool) {
        self.expects.store(some, Relaxed);
    }

    pub(super) fn activate(&self, name: &[u8], bucket: &Arc<Bucket>) {
        self.active.lock().insert(name.into(), Arc::clone(bucket));
    }

    pub(super) fn rest(&self, name: &[u8]) {
        self.active.lock().remove(name);
    }

    /// Queues a released permit for the next report.
    pub(super) fn over(&self, now: Nanos, one: Ended) {
        let failed = self.told.lock().failed;
        let lately = failed.is_some_and(|failed| now.since(failed) < self.deadline());
        let repeats = one.repeats || lately;
        let until = if repeats { one.until.max(now.plus(self.deadline())) } else { one.until };
        self.ended.lock().add(Ended { until, repeats, ..one });
        self.wake.notify_one();
    }

    /// Returns `true` if a heartbeat is due, and starts it.
    fn begins_a_beat(&self, now: Nanos) -> bool {
        let mut last = self.told.lock();
        let is_due = last.beat.is_none_or(|at| self.beat <= now.since(at));
        if is_due {
            last.beat = Some(now);
        }
        is_due
    }

    fn buckets(&self) -> Vec<(Name, Arc<Bucket>)> {
        let active = self.active.lock();
        active.iter().map(|(name, bucket)| (name.clone(), Arc::clone(bucket))).collect()
    }

    /// Returns snapshots of at most `most` limits in use, by name.
    pub(super) fn seen(&self, most: usize) -> Vec<(Name, Seen)> {
        let mut all = self.buckets();
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let seen = |(name, bucket): (Name, Arc<Bucket>)| Some((name, bucket.seen()?));
        all.into_iter().filter_map(seen).take(most).collect()
    }
}

impl Admission {
    /// Sends reports forever. Without a fleet, does nothing and never returns.
    pub(super) async fn tell_on(&self, backend: &dyn Backend) {
        let Some(fleet) = self.fleet() else { return std::future::pending().await };
        let teller = fleet.teller();
        let period = std::time::Duration::from_nanos(teller.beat.0.div_ceil(20).max(1));
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = teller.wake.notified() => {}
            }
            self.tell_once(backend).await;
        }
    }

    /// Sends everything that is due now, and applies the replies.
    pub(super) async fn tell_once(&self, backend: &dyn Backend) {
        self.tell_due(backend, false).await;
    }

    /// Sends the final report: all permits in use and all releases.
    pub(super) async fn tell_at_last(&self, backend: &dyn Backend) {
        self.tell_due(backend, true).await;
    }

    async fn tell_due(&self, backend: &dyn Backend, is_last: bool) {
        let Some(fleet) = self.fleet() else { return };
        let teller = fleet.teller();
        let _turn = teller.turn.lock().await;
        let now = self.clock.steady();
        let is_beat = teller.begins_a_beat(now) || is_last;
        let mut said = Said::default();
        if is_beat {
            for (name, bucket) in teller.buckets() {
                if is_last {
                    bucket.all_go_on(&self.clock);
                }
                said.holds(name, bucket.tells(&self.clock), bucket);
            }
        }
        let due = teller.ended.lock().take_due(now);
        said.ended(due);
        let everywhere = is_beat && teller.expects.load(Relaxed);
        for round in rounds(std::mem::take(&mut said.told), teller.times(Nanos(0)), everywhere) {
            let heard = match backend.tell(now, &round) {
                Reply::Now(heard) => heard,
                Reply::Later(heard) => heard.await,
            };
            teller.hear(&self.clock, &mut said, round, heard);
        }
    }
}

#[derive(Default)]
struct Said {
    told: BTreeMap<Name, Told>,
    buckets: HashMap<Name, Arc<Bucket>>,
    ended: HashMap<Id, Ended>,
}

impl Said {
    fn holds(&mut self, name: Name, held: Vec<(Id, Nanos)>, bucket: Arc<Bucket>) {
        if !held.is_empty() {
            self.of(&name).held = held;
            self.buckets.insert(name, bucket);
        }
    }

    fn ended(&mut self, ended: Vec<Ended>) {
        for one in ended {
            self.of(&one.bucket).over.push(one.id);
            self.ended.insert(one.id, one);
        }
    }

    fn of(&mut self, name: &[u8]) -> &mut Told {
        let nothing = || Told { bucket: name.into(), held: Vec::new(), over: Vec::new() };
        self.told.entry(name.into()).or_insert_with(nothing)
    }
}

/// Packs the report into as few calls as possible. With
/// `everywhere` there is at least one call, even without permits.
fn rounds(told: BTreeMap<Name, Told>, times: Times, everywhere: bool) -> Vec<Round> {
    let empty = |everywhere| Round { times, everywhere, told: Vec::new() };
    let mut rounds: Vec<Round> = everywhere.then(|| empty(true)).into_iter().collect();
    for piece in told.into_values().flat_map(pieces) {
        let size = piece.held.len() + piece.over.len();
        match rounds.last_mut() {
            Some(round) if round.permits() + size <= MOST_TOLD => round.told.push(piece),
            _ => rounds.push(Round { told: vec![piece], ..empty(false) }),
        }
    }
    rounds
}

/// Splits the report of one limit into pieces that fit a call.
fn pieces(told: Told) -> Vec<Told> {
    let Told { bucket, held, over } = told;
    if held.len() + over.len() <= MOST_TOLD {
        return vec![Told { bucket, held, over }];
    }
    let of = |held: &[_], over: &[_]| Told {
        bucket: bucket.clone(),
        held: held.to_vec(),
        over: over.to_vec(),
    };
    let held = held.chunks(MOST_TOLD).map(|held| of(held, &[]));
    held.chain(over.chunks(MOST_TOLD).map(|over| of(&[], over))).collect()
}

impl Teller {
    fn hear(&self, clock: &Clock, said: &mut Said, round: Round, heard: AllHeard) {
        let now = clock.steady();
        self.note(now, &heard);
        for (told, heard) in round.told.into_iter().zip(heard) {
            if let Some(bucket) = said.buckets.get(&told.bucket) {
                bucket.heard(heard);
            }
            count(&told, heard.ok());
            for one in told.over.iter().filter_map(|id| said.ended.remove(id)) {
                self.was_told(now, one, heard.is_ok());
            }
        }
    }

    fn was_told(&self, now: Nanos, one: Ended, is_heard: bool) {
        if is_heard {
            one.line.moves();
        }
        if now < one.until && (one.repeats || !is_heard) {
            // A call without a reply may still be executed later.
            let until = if is_heard { one.until.min(now.plus(self.deadline())) } else { one.until };
            // Always one heartbeat from now, so the list stays sorted.
            let due = now.plus(self.beat);
            self.ended.lock().add_again(Ended { due, until, repeats: true, ..one });
        }
    }

    fn note(&self, now: Nanos, heard: &AllHeard) {
        let mut last = self.told.lock();
        match heard.iter().find_map(|heard| heard.err()) {
            Some(cause) => {
                // Retries a quarter of a heartbeat later: an available
                // store that gets no reports stops granting permits.
                let sooner = Nanos(now.0.saturating_sub(self.beat.0 / 4 * 3));
                last.beat = last.beat.map(|at| at.min(sooner));
                if !std::mem::replace(&mut last.is_failing, true) {
                    let cause = cause.as_str();
                    tracing::warn!(cause, "permits could not be told to the store");
                }
                last.failed = Some(now);
            }
            None if !heard.is_empty() => last.is_failing = false,
            None => {}
        }
    }
}

fn count(told: &Told, heard: Option<Heard>) {
    let Some(heard) = heard else { return };
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    StrictEvent::Renewed.emit(number(told.held.len()));
    StrictEvent::PutBack.emit(heard.found.put_back);
    StrictEvent::Released.emit(heard.found.freed);
}
