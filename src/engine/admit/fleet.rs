//! Sends this replica's share reports to the store and applies the replies.
//!
//! Guarantees:
//! - Rounds never overlap.
//! - A call has at most [`most_beats`] reports and the store's own deadline.
//! - A request never waits for a report, except the first requests of a limit.
//! - Limits with waiting requests are reported first, then the shares that expire soonest.
//! - A round accepts new limits for a quarter of a heartbeat, so it ends.
//! - Idle replicas report too, so that a store that lost its data starts to recover.
//! - A draining replica frees its shares within two seconds if the store replies.
//!
//! Not covered:
//! - The content of a report: see `admit::leased`.
//! - The store.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use siphasher::sip::SipHasher24;
use tokio::sync::{Mutex as Turn, Notify, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::bucket::Bucket;
use super::leased::{Shared, Shown, Speak};
use super::strict::{Seen, Strictly};
use super::teller::Teller;
use super::totals::Totals;
use super::{Admission, Name};
use crate::backend::heartbeat::{Beat, Heard, MOST_BEATS, Round, most_beats};
use crate::backend::{Backend, Cause, Reply};
use crate::clock::Clock;
use crate::config::concurrency::{Ceiling, Mode, OnFailure};
use crate::engine::Membership;
use crate::engine::parts::{Division, share};
use crate::kernel::concurrency::policy::Looks;
use crate::kernel::coordinator::life::Record;
use crate::kernel::coordinator::terms::TermsError;
use crate::kernel::coordinator::{Grant, Reading, Reply as Answer, Terms};
use crate::kernel::units::{Incarnation, MemberId, Nanos, Share};

/// The largest difference in rate between two clocks, in ppm. NTP slews a clock by at most 500 ppm.
const DRIFT_PPM: u32 = 1_000;

/// The longest time that a leaving replica waits for the current round.
const LEAVING: Duration = Duration::from_secs(1);

/// The longest time for leaving. Shares and permits that are not returned by then expire.
const LEFT: Duration = Duration::from_secs(2);

/// A round accepts new limits for this part of a heartbeat: 1/4.
const TAKES_IN: u64 = 4;

/// The largest number of polls for due reports in one heartbeat.
const LOOKS: u64 = 100;

/// The largest number of limits for which every tick polls.
const FEW: usize = 64;

/// With more limits, every fifth tick polls: once in the shortest pause between two reports.
const FEWER: u64 = 5;

/// The heartbeats between two reports of an idle replica. A store that
/// lost its data starts to recover after this time at the latest.
const LOOKS_IN: u64 = 60;

/// The timing of share reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The time between two reports when nothing is urgent.
    pub heartbeat: Nanos,
    /// The time for which a share is valid, from the report that requested it.
    pub term: Nanos,
}

impl Default for Pace {
    fn default() -> Self {
        Self { heartbeat: Nanos::SECOND, term: Nanos::from_secs(5) }
    }
}

/// Reports the shares of one replica incarnation, and keeps track of its fleet-wide limits.
#[derive(Debug)]
pub struct Fleet {
    member: MemberId,
    life: Incarnation,
    lives: AtomicU64,
    pace: Pace,
    patience: Duration,
    membership: Arc<Membership>,
    active: Mutex<HashMap<Name, Arc<Bucket>>>,
    /// Limits with a waiting request that have not been reported since it arrived.
    fresh: Mutex<HashMap<Name, Arc<Bucket>>>,
    wake: Notify,
    /// Locked during a round.
    turn: Turn<()>,
    told: Mutex<Told>,
    left: AtomicBool,
    /// The longest time that a share or its requests can last, in
    /// nanoseconds, over all configurations so far. 0 if nothing was
    /// shared. Limits that only other replicas use have the same bound.
    longest: AtomicU64,
    teller: Arc<Teller>,
    totals: Arc<Totals>,
}

#[derive(Debug, Default)]
struct Told {
    under: Option<Incarnation>,
    /// The instant of the last reply. `None` if the store has no record of this replica.
    at: Option<Nanos>,
    spoken: Option<Nanos>,
    clock: Reading,
    failed: bool,
    /// The store incarnation whose recovery was logged.
    doubted: Option<Incarnation>,
}

struct Spoken {
    bucket: Arc<Bucket>,
    beat: Beat,
    /// The number of replicas that share the limit. The
    /// size of the fleet if the store has not sent it yet.
    members: u64,
    /// The time until the report must be sent, see [`Speak::Beat`].
    left: Nanos,
}

struct Due {
    /// Reports that requests wait for.
    first: VecDeque<Spoken>,
    /// The other reports. The share that expires first comes first.
    others: VecDeque<Spoken>,
    /// The longest time from now for which an examined share or its requests may last.
    longest: Nanos,
}

impl Due {
    /// Returns the reports of the next call. Takes both
    /// kinds in turn, so that neither delays the other.
    fn next_call(&mut self) -> Vec<Spoken> {
        let turns = (0..MOST_BEATS).map_while(|turn| self.take(turn % 2 == 0));
        let mut call: Vec<(bool, Spoken)> = turns.collect();
        let most = most_beats(call.iter().map(|(_, spoken)| spoken.members));
        for (is_first, spoken) in call.split_off(most).into_iter().rev() {
            self.kind(is_first).push_front(spoken);
        }
        call.into_iter().map(|(_, spoken)| spoken).collect()
    }

    /// Takes one report of the given kind, or of the other
    /// kind if there is none. Returns its kind as well.
    fn take(&mut self, is_first: bool) -> Option<(bool, Spoken)> {
        let kinds = [is_first, !is_first];
        kinds.into_iter().find_map(|is_first| {
            let kind = self.kind(is_first);
            while let Some(spoken) = kind.pop_front() {
                if spoken.bucket.awaits(&spoken.beat.said) {
                    return Some((is_first, spoken));
                }
            }
            None
        })
    }

    const fn kind(&mut self, is_first: bool) -> &mut VecDeque<Spoken> {
        if is_first { &mut self.first } else { &mut self.others }
    }
}

impl Fleet {
    /// Creates a reporter that has sent nothing yet.
    ///
    /// `life` must be larger than for every earlier process of this name. `patience`
    /// is the longest time that the first request of a limit waits for its share.
    #[must_use]
    pub fn new(membership: Arc<Membership>, life: Nanos, pace: Pace, patience: Duration) -> Self {
        // In microseconds, and 52 bits of a hash: the numbers of the store are exact up to 2^53.
        let life = life.0 / Nanos::MICRO.0;
        let member = SipHasher24::new().hash(membership.node().as_bytes()) >> 12;
        Self {
            member: MemberId(member),
            life: Incarnation(life),
            lives: AtomicU64::new(life),
            pace,
            patience,
            membership,
            active: Mutex::default(),
            fresh: Mutex::default(),
            wake: Notify::new(),
            turn: Turn::default(),
            told: Mutex::default(),
            left: AtomicBool::new(false),
            longest: AtomicU64::new(0),
            teller: Arc::new(Teller::new(member, life, pace.heartbeat)),
            totals: Arc::default(),
        }
    }

    /// Returns the fleet parameters of `ceiling`. `None` for modes `local` and `strict`.
    #[must_use]
    pub fn shared(&self, ceiling: &Ceiling) -> Option<Shared> {
        if matches!(ceiling.mode, Some(Mode::Local | Mode::Strict)) {
            return None;
        }
        let start = ceiling.rules.limit;
        let (min, max) = ceiling.rules.adaptive.map_or((start, start), |it| (it.min, it.max));
        let (max_duration, on_failure) = (ceiling.max_duration, ceiling.on_backend_failure);
        Some(Shared { min, start, max, max_duration, on_failure })
    }

    /// Returns the parameters of `ceiling` in mode `strict`. `None` for other modes.
    #[must_use]
    pub fn strictly(&self, ceiling: &Ceiling) -> Option<Strictly> {
        let waiting = ceiling.rules.waiting;
        let alone = match ceiling.on_backend_failure {
            OnFailure::Deny => 0,
            OnFailure::Local => u32::try_from(self.alone(ceiling.rules.limit).0).unwrap_or(0),
            OnFailure::Allow => u32::MAX,
        };
        let max_duration = ceiling.max_duration;
        (ceiling.mode == Some(Mode::Strict)).then_some(Strictly { waiting, max_duration, alone })
    }

    /// Switches the reports of strict limits on or off.
    /// Switched on, they are sent every heartbeat, even without permits.
    pub fn expects_strict(&self, some: bool) {
        self.teller.expects(some);
    }

    /// Records the longest duration of the shared limits
    /// among `ceilings`, before the first request uses them.
    pub fn expects_shared<'c>(&self, ceilings: impl Iterator<Item = &'c Ceiling>) {
        let shared = ceilings.filter_map(|ceiling| self.shared(ceiling));
        let longest = shared.map(|it| self.terms(it.max_duration).longest()).max();
        self.longest.fetch_max(longest.unwrap_or_default().0, Relaxed);
    }

    /// Returns snapshots of at most `most` strict limits in use, by name.
    #[must_use]
    pub fn seen(&self, most: usize) -> Vec<(Name, Seen)> {
        self.teller.seen(most)
    }

    pub(super) const fn teller(&self) -> &Arc<Teller> {
        &self.teller
    }

    pub(super) const fn member(&self) -> MemberId {
        self.member
    }

    pub(super) fn has_left(&self) -> bool {
        self.left.load(Relaxed)
    }

    /// Returns an incarnation for a new share: larger than every earlier one.
    pub(super) fn next_life(&self) -> Incarnation {
        Incarnation(self.lives.fetch_add(1, Relaxed).saturating_add(1))
    }

    /// Returns the terms of a limit. A long `max_duration` needs
    /// a longer term, because the safety margin grows with it.
    pub(super) fn terms(&self, max_duration: Nanos) -> Terms {
        let Pace { heartbeat, term } = self.pace;
        let mut longer = term;
        loop {
            match Terms::new(heartbeat, longer, max_duration, DRIFT_PPM) {
                Ok(terms) => return terms,
                Err(TermsError::TermTooShort { least, .. }) if longer < least => {
                    longer = least.plus(Nanos(least.0 / 100));
                }
                // A share that never comes into force is harmless.
                Err(_) => return Terms { heartbeat, term, margin: term, max_duration },
            }
        }
    }

    /// Adds the bucket to the reports, and wakes the reporter for the first one.
    pub(super) fn activate(&self, name: &[u8], bucket: &Arc<Bucket>) {
        self.active.lock().insert(name.into(), Arc::clone(bucket));
        self.fresh.lock().insert(name.into(), Arc::clone(bucket));
        self.wake.notify_one();
    }

    fn take_fresh(&self) -> HashMap<Name, Arc<Bucket>> {
        std::mem::take(&mut self.fresh.lock())
    }

    /// Removes `bucket` from the reports, unless the name belongs to a newer bucket.
    pub(super) fn rest(&self, name: &[u8], bucket: &Bucket) {
        let mut active = self.active.lock();
        if active.get(name).is_some_and(|known| std::ptr::eq(&raw const **known, bucket)) {
            active.remove(name);
        }
    }

    /// Waits for the next reply, at most for `most` and for the timeout of this reporter.
    pub(super) async fn hears(&self, mut answers: watch::Receiver<()>, most: Nanos) {
        let patience = self.patience.min(Duration::from_nanos(most.0));
        if !patience.is_zero() {
            // After a timeout the bucket decides by its current share.
            drop(timeout(patience, answers.changed()).await);
        }
    }

    /// Returns the share during an outage if the store never sent a fair share.
    fn alone(&self, start: u32) -> Share {
        Share(u64::from(start / self.membership.replicas()))
    }

    /// Returns this replica's part of the limit `whole`, for metrics
    /// that add up all replicas. It is not enforced. The remainder of
    /// the division goes to different replicas for different names.
    pub(in crate::engine) fn part(&self, name: &[u8], whole: u32) -> u32 {
        let Division { replicas, rank } = self.membership.division();
        let turn = SipHasher24::new().hash(name) % u64::from(replicas.get());
        let turned = |rank: u32| (u64::from(rank) + turn) % u64::from(replicas.get());
        let rank = rank.and_then(|rank| u32::try_from(turned(rank)).ok());
        share(whole, Division { replicas, rank })
    }

    /// Returns snapshots of at most `most` shared limits, by name.
    #[must_use]
    pub fn shown(&self, clock: &Clock, most: usize) -> Vec<(Name, Shown)> {
        let mut all: Vec<_> = self.active.lock().clone().into_iter().collect();
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let shown = |(name, bucket): (Name, Arc<Bucket>)| Some((name, bucket.shown(clock)?));
        all.into_iter().filter_map(shown).take(most).collect()
    }

    /// Returns the expired shares and handoffs, including limits that are no longer reported.
    #[must_use]
    pub const fn totals(&self) -> &Arc<Totals> {
        &self.totals
    }

    /// Returns the store's incarnation from the last
    /// reply, and this replica's number and incarnation.
    #[must_use]
    pub fn lives(&self) -> (Option<Incarnation>, MemberId, Incarnation) {
        (self.told.lock().under, self.member, self.life)
    }
}

impl Admission {
    /// Sends reports forever. Without a fleet, does nothing and never returns.
    pub async fn speak_on(&self, backend: &dyn Backend) {
        tokio::join!(self.speak_of_shares(backend), self.tell_on(backend));
    }

    async fn speak_of_shares(&self, backend: &dyn Backend) {
        let Some(fleet) = self.fleet() else { return std::future::pending().await };
        let often = Duration::from_nanos(fleet.pace.heartbeat.0.div_ceil(LOOKS).max(1));
        let mut ticks = interval(often);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for tick in 0_u64.. {
            tokio::select! {
                _ = ticks.tick() => if !fleet.looks_at(tick) { continue },
                () = fleet.wake.notified() => {}
            }
            self.speak_of_due_shares(backend).await;
        }
    }

    /// Sends everything that is due now, and applies the replies.
    pub async fn speak_once(&self, backend: &dyn Backend) {
        self.speak_of_due_shares(backend).await;
        self.tell_once(backend).await;
    }

    async fn speak_of_due_shares(&self, backend: &dyn Backend) {
        let Some(fleet) = self.fleet() else { return };
        let _turn = fleet.turn.lock().await;
        // The replica may have left during the wait for the lock.
        if !fleet.has_left() {
            self.round(fleet, backend).await;
        }
    }

    /// Frees all shares if the store replies, and stops the reports.
    ///
    /// Waits one second for the current round, and two seconds
    /// in total. After that the remaining shares expire.
    pub async fn leave_fleet(&self, backend: &dyn Backend) {
        let Some(fleet) = self.fleet().filter(|fleet| !fleet.left.swap(true, Relaxed)) else {
            return;
        };
        for bucket in all(fleet).values() {
            bucket.part(&self.clock);
        }
        // Concurrently, so that neither uses up the time of the other.
        let both =
            async { tokio::join!(self.give_seats_up(fleet, backend), self.tell_at_last(backend)) };
        drop(timeout(LEFT, both).await);
    }

    async fn give_seats_up(&self, fleet: &Fleet, backend: &dyn Backend) {
        let Ok(_turn) = timeout(LEAVING, fleet.turn.lock()).await else { return };
        self.round(fleet, backend).await;
        // The first round returned the shares. The second removes the replica's record.
        self.round(fleet, backend).await;
    }

    /// Sends everything that is due. The caller has locked `turn`.
    async fn round(&self, fleet: &Fleet, backend: &dyn Backend) {
        let active = all(fleet);
        let under = under(fleet, &active, self.clock.steady());
        let record = Record { member: fleet.member, life: fleet.life, under };
        let longest = Nanos(fleet.longest.load(Relaxed));
        let mut due = Due { first: VecDeque::new(), others: VecDeque::new(), longest };
        self.look_at(fleet, fleet.take_fresh(), true, &mut due);
        self.look_at(fleet, active, false, &mut due);
        // The last report of many waits long if the store is slow.
        due.others.make_contiguous().sort_by_key(|spoken| spoken.left);
        let began = self.clock.steady();
        loop {
            let call = due.next_call();
            if call.is_empty() {
                break;
            }
            self.speak_of(fleet, backend, (record, due.longest), call).await;
            // Later limits have woken the next round. A round that accepted all of them
            // might never end, and shares that were not due at its start would expire.
            if self.clock.steady().since(began).0 < fleet.pace.heartbeat.0 / TAKES_IN {
                self.look_at(fleet, fleet.take_fresh(), true, &mut due);
            }
        }
        let (answered, longest) = (fleet.answered(), due.longest);
        let last = Round { record, answered, longest, leaves: false, beats: vec![] };
        self.keep_the_line(fleet, backend, last).await;
    }

    fn look_at(
        &self,
        fleet: &Fleet,
        buckets: HashMap<Name, Arc<Bucket>>,
        is_first: bool,
        due: &mut Due,
    ) {
        for (name, bucket) in buckets {
            due.longest = due.longest.max(bucket.longest());
            if let Speak::Beat { law, said, members, left } =
                bucket.speaks(&self.clock, || fleet.rest(&name, &bucket))
            {
                let members = members.unwrap_or(fleet.membership.replicas().get().into());
                let beat = Beat { bucket: name, law, said };
                due.kind(is_first).push_back(Spoken { bucket, beat, members, left });
            }
        }
    }

    async fn speak_of(
        &self,
        fleet: &Fleet,
        backend: &dyn Backend,
        (record, longest): (Record, Nanos),
        call: Vec<Spoken>,
    ) {
        let (buckets, beats): (Vec<_>, Vec<_>) =
            call.into_iter().map(|spoken| (spoken.bucket, spoken.beat)).unzip();
        let round = Round { record, answered: fleet.answered(), longest, leaves: false, beats };
        let heard = self.say(fleet, backend, &round).await;
        let store = fleet.told.lock().clock;
        for (at, (bucket, beat)) in buckets.iter().zip(&round.beats).enumerate() {
            let reply = heard.as_ref().and_then(|heard| heard.replies.get(at)?.as_ref());
            let looks = looks(store, beat);
            bucket.hear(&self.clock, &beat.said, reply, looks, |start| fleet.alone(start));
        }
    }

    /// Sends the replica's record if no other report has been sent for
    /// a heartbeat. Removes the record if the replica has no shares.
    async fn keep_the_line(&self, fleet: &Fleet, backend: &dyn Backend, round: Round) {
        let is_away = backend.trouble().is_some();
        let Some(leaves) = fleet.own_word(self.clock.steady(), is_away) else { return };
        let heard = self.say(fleet, backend, &Round { leaves, ..round }).await;
        if leaves && heard.is_some() {
            fleet.told.lock().at = None;
        }
    }

    async fn say(&self, fleet: &Fleet, backend: &dyn Backend, round: &Round) -> Option<Heard> {
        let sent = self.clock.steady();
        let heard = match backend.heartbeat(sent, round) {
            Reply::Now(heard) => heard,
            Reply::Later(heard) => heard.await,
        };
        fleet.note(heard.as_ref(), sent, self.clock.steady());
        heard.ok()
    }
}

impl Fleet {
    /// Returns `true` if this tick polls for due reports. A
    /// poll visits all limits, so with many limits it is rarer.
    fn looks_at(&self, tick: u64) -> bool {
        tick.is_multiple_of(FEWER) || self.active.lock().len() <= FEW
    }

    /// Returns the due change of the replica's record: `true` removes it, `false` renews it.
    fn own_word(&self, now: Nanos, is_away: bool) -> Option<bool> {
        let holds_nothing = self.active.lock().is_empty();
        let told = self.told.lock();
        let is_known = told.at.is_some();
        let is_new = !is_known && self.longest.load(Relaxed) != 0 && !is_away && !self.has_left();
        let rarely = if is_known || told.under.is_none() { 1 } else { LOOKS_IN };
        let pause = Nanos(self.pace.heartbeat.0.saturating_mul(rarely));
        let is_due = told.spoken.is_none_or(|spoken| pause <= now.since(spoken));
        let leaves = is_known && holds_nothing;
        ((is_known || is_new) && is_due || leaves && self.has_left()).then_some(leaves)
    }

    fn answered(&self) -> Option<Nanos> {
        let told = self.told.lock();
        told.under.map(|_| told.clock.there)
    }

    fn note(&self, heard: Result<&Heard, &Cause>, sent: Nanos, now: Nanos) {
        let mut told = self.told.lock();
        told.spoken = Some(now);
        match heard {
            Ok(heard) => {
                if told.under.is_some_and(|under| under != heard.life) {
                    told.doubted = Some(heard.life);
                    tracing::warn!(
                        "the store has forgotten the ceilings' shares: until all have spoken again, or \
                         their last requests are over, nobody is given more than it holds"
                    );
                }
                (told.under, told.at, told.failed) = (Some(heard.life), Some(now), false);
                // The middle between sending and reply has the smallest possible error.
                let here = sent.plus(Nanos(now.since(sent).0 / 2));
                told.clock = Reading { here, there: heard.at };
                let mut grants = heard.replies.iter().flatten().filter_map(granted);
                let doubts = grants.any(|grant| grant.recovering);
                if doubts && told.doubted.replace(heard.life) != Some(heard.life) {
                    tracing::warn!(
                        "the store does not know yet what is in flight: until a ceiling's fleet_term and \
                         max_duration are over, nobody is given more of it than it holds"
                    );
                }
            }
            Err(cause) => {
                if !told.failed {
                    let cause = cause.as_str();
                    tracing::warn!(cause, "no answer to a heartbeat: shares end with their terms");
                }
                told.failed = true;
            }
        }
    }
}

const fn granted(reply: &Answer) -> Option<&Grant> {
    match reply {
        Answer::Grant(grant) => Some(grant),
        _ => None,
    }
}

/// Returns when all replicas reduce their use of this limit to measure its min RTT.
/// Each limit has its own instants, so that the load does not drop everywhere at once.
fn looks(store: Reading, beat: &Beat) -> Looks {
    let apart = Nanos(SipHasher24::new().hash(&beat.bucket) >> 24);
    Looks { clock: store.ahead(apart), heartbeat: beat.law.terms.heartbeat }
}

fn all(fleet: &Fleet) -> HashMap<Name, Arc<Bucket>> {
    fleet.active.lock().clone()
}

/// Returns the store incarnation that granted everything in use here. `None` if
/// something in use was not granted by it. No report may be pending during this call.
fn under(fleet: &Fleet, active: &HashMap<Name, Arc<Bucket>>, now: Nanos) -> Option<Incarnation> {
    let known = fleet.told.lock().under?;
    let is_under = |bucket: &Arc<Bucket>| match bucket.under(now) {
        Ok(under) => under.is_none_or(|under| under == known),
        Err(()) => false,
    };
    active.values().all(is_under).then_some(known)
}
