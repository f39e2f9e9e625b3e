//! What one replica tells the store of the permits that it holds of strict ceilings.
//!
//! Guarantees: one round after the other, so that what was told over is not told held after it; once a beat, and
//! when it leaves, all that is held, and as soon as may be what is over, in as few calls as carry it. What the store was not heard
//! to take back is told again, until its deadline has done it; so is, for three beats, what a call that
//! came late might bring back. No list grows without a bound.
//! Cost: of telling, what is due; how much more waits to be told again costs nothing.
//! Leaves out: what is held ([`super::bucket`]).

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

/// Beats after which a store takes back what it is not told of.
const BEATS: u64 = 3;
/// Beats without a word of anybody after which a store doubts: one less than a permit lasts, because replicas tell
/// at different times in a beat.
const SILENT_BEATS: u64 = 2;
/// What it takes at most to be connected to a store again that is back, over and above the beats.
const CONNECTING: Nanos = Nanos::SECOND;
/// The most permits that wait to be told over; the deadlines take back what is above.
const MOST_ENDED: usize = 65_536;

/// The voice of one life of one replica about permits.
#[derive(Debug)]
pub(super) struct Teller {
    /// This life: no two of a fleet share one.
    life: u64,
    numbers: AtomicU64,
    beat: Nanos,
    active: Mutex<HashMap<Name, Arc<Bucket>>>,
    ended: Mutex<Endings>,
    wake: Notify,
    /// There are strict ceilings: that the store has forgotten is worth to be known before one is asked for.
    expects: AtomicBool,
    told: Mutex<Last>,
    turn: Turn<()>,
}

/// A permit that is over, and that the store may know of.
#[derive(Debug)]
pub(super) struct Ended {
    /// Shared with its bucket: many wait, and a name may be long.
    pub(super) bucket: Arc<[u8]>,
    pub(super) line: Arc<Line>,
    pub(super) id: Id,
    /// When it is to be told.
    pub(super) due: Nanos,
    /// When the store has taken it back by itself.
    pub(super) until: Nanos,
    /// A call that is under way may bring it back.
    pub(super) repeats: bool,
}

/// Permits that wait to be told over, at most [`MOST_ENDED`].
#[derive(Debug, Default)]
struct Endings {
    /// Not told yet.
    fresh: VecDeque<Ended>,
    /// To be told again, in the order in which they are due.
    again: VecDeque<Ended>,
}

impl Endings {
    fn add(&mut self, one: Ended) {
        if !self.is_full() {
            self.fresh.push_back(one);
        }
    }

    /// Each is due no sooner than the one before.
    fn add_again(&mut self, one: Ended) {
        if !self.is_full() {
            self.again.push_back(one);
        }
    }

    fn is_full(&self) -> bool {
        MOST_ENDED <= self.fresh.len() + self.again.len()
    }

    /// Takes those that are due, and looks at no more than the first of the others: whoever ends a request waits
    /// for this.
    fn take_due(&mut self, now: Nanos) -> Vec<Ended> {
        let both = [&mut self.fresh, &mut self.again];
        both.into_iter().flat_map(|list| first_due(list, now)).collect()
    }
}

fn first_due(list: &mut VecDeque<Ended>, now: Nanos) -> Drain<'_, Ended> {
    let due = list.iter().take_while(|one| one.due <= now).count();
    list.drain(..due)
}

/// What was told last.
#[derive(Debug, Default)]
struct Last {
    beat: Option<Nanos>,
    failed: Option<Nanos>,
    is_failing: bool,
}

impl Teller {
    /// One that has told nothing, in the life `life` of the replica `member`.
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

    /// For how long the store keeps a permit that it is not told of.
    pub(super) const fn deadline(&self) -> Nanos {
        Nanos(self.beat.0.saturating_mul(BEATS))
    }

    /// What all replicas of one pace agree on, of a ceiling whose permits are kept for so long.
    pub(super) fn times(&self, max_duration: Nanos) -> Times {
        Times {
            grace: self.deadline().plus(CONNECTING),
            silence: Nanos(self.beat.0.saturating_mul(SILENT_BEATS)),
            longest: self.kept(Some(max_duration)).max(self.deadline()),
        }
    }

    /// For how long the store is told to keep a permit whose deadline here is in `keep`, if it has one. A beat longer,
    /// because a renewal here is told with the next beat.
    pub(super) fn kept(&self, keep: Option<Nanos>) -> Nanos {
        keep.map_or(self.deadline(), |keep| keep.plus(self.beat))
    }

    /// Another one each time.
    pub(super) fn next_id(&self) -> Id {
        Id(self.life, self.numbers.fetch_add(1, Relaxed))
    }

    /// A number below `sides`, for jitter.
    pub(super) fn dice(&self, sides: u64) -> u64 {
        let Id(life, number) = self.next_id();
        SipHasher24::new().hash(&(life ^ number).to_le_bytes()) % sides.max(1)
    }

    /// Whether there are strict ceilings.
    pub(super) fn expects(&self, some: bool) {
        self.expects.store(some, Relaxed);
    }

    /// What is held of the bucket is told from now on.
    pub(super) fn activate(&self, name: &[u8], bucket: &Arc<Bucket>) {
        self.active.lock().insert(name.into(), Arc::clone(bucket));
    }

    /// Nothing is held of it any more.
    pub(super) fn rest(&self, name: &[u8]) {
        self.active.lock().remove(name);
    }

    /// It is over, and is told so as soon as may be.
    pub(super) fn over(&self, now: Nanos, one: Ended) {
        let failed = self.told.lock().failed;
        let lately = failed.is_some_and(|failed| now.since(failed) < self.deadline());
        let repeats = one.repeats || lately;
        let until = if repeats { one.until.max(now.plus(self.deadline())) } else { one.until };
        self.ended.lock().add(Ended { until, repeats, ..one });
        self.wake.notify_one();
    }

    /// Whether a beat is due, which is begun by asking.
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

    /// Every ceiling of which something is held, by name, at most `most`.
    pub(super) fn seen(&self, most: usize) -> Vec<(Name, Seen)> {
        let mut all = self.buckets();
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let seen = |(name, bucket): (Name, Arc<Bucket>)| Some((name, bucket.seen()?));
        all.into_iter().filter_map(seen).take(most).collect()
    }
}

impl Admission {
    /// Tells for ever; without a fleet it never ends and does nothing.
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

    /// Tells everything that is due now, and hears the answers.
    pub(super) async fn tell_once(&self, backend: &dyn Backend) {
        self.tell_due(backend, false).await;
    }

    /// Tells all that is held, and what is over, for the last time.
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

/// What is said at once.
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

/// As few rounds as carry it. A beat that goes everywhere is one even where there is nothing to tell.
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

/// What is told of one ceiling, in pieces that fit a round.
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
            // A call that was not answered may have been taken, and come late.
            let until = if is_heard { one.until.min(now.plus(self.deadline())) } else { one.until };
            // In turn, and always a beat from now: in the order in which they are due.
            let due = now.plus(self.beat);
            self.ended.lock().add_again(Ended { due, until, repeats: true, ..one });
        }
    }

    fn note(&self, now: Nanos, heard: &AllHeard) {
        let mut last = self.told.lock();
        match heard.iter().find_map(|heard| heard.err()) {
            Some(cause) => {
                // The next beat comes sooner: the store may be back, and must not doubt for long.
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
