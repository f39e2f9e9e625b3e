//! The voice of one replica about all ceilings that it shares: one heartbeat each, few calls.
//!
//! Guarantees: one round after the other, so that no answer is under way while the next is made; each call
//! carries at most [`most_beats`] ceilings and has the backend's own deadline; a request costs no call. Of ceilings that somebody
//! has just come to, who waits for the answer, the next call speaks first, however many others are due; but a round that has lasted
//! for a quarter of a heartbeat takes in nobody who comes, so that it ends and no share runs out meanwhile. Of others that share
//! comes first that ends first. Where there are ceilings to share, the store hears of this replica as soon as there is one,
//! and now and then, though nobody asks: one that is new or has forgotten is in doubt from then on.
//! A replica that leaves in order frees its seats, unless a round that is under way takes a second still, or all of it two.
//! Leaves out: what is said and what it means ([`super::leased`]), and the store.

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

/// By how much two clocks may differ in rate, in parts of a million: each slewed by the most that NTP does.
const DRIFT_PPM: u32 = 1_000;

/// How long one who leaves waits at most for a round that is under way: its calls have deadlines, but may be many.
const LEAVING: Duration = Duration::from_secs(1);

/// How long it takes at most to leave: what was not said by then ends with its terms and deadlines.
const LEFT: Duration = Duration::from_secs(2);

/// For which part of a heartbeat a round takes in ceilings that somebody comes to meanwhile: a quarter.
const TAKES_IN: u64 = 4;

/// How often in a heartbeat a replica looks which ceilings' are due, at most.
const LOOKS: u64 = 100;

/// How many ceilings are few.
const FEW: usize = 64;

/// Where there are more, one look of so many is made: one in the least pause between two heartbeats.
const FEWER: u64 = 5;

/// Heartbeats after which a replica that holds nothing speaks again: so late at most does the doubt begin of a store that
/// has forgotten while nobody asked.
const LOOKS_IN: u64 = 60;

/// How often replicas speak, and how long a share is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// From one heartbeat to the next when nothing is urgent.
    pub heartbeat: Nanos,
    /// How long a share is good, from the heartbeat that asked for it.
    pub term: Nanos,
}

impl Default for Pace {
    fn default() -> Self {
        Self { heartbeat: Nanos::SECOND, term: Nanos::from_secs(5) }
    }
}

/// One life of one replica, as far as ceilings are concerned.
#[derive(Debug)]
pub struct Fleet {
    member: MemberId,
    life: Incarnation,
    lives: AtomicU64,
    pace: Pace,
    /// How long one who comes first waits for the answer.
    patience: Duration,
    membership: Arc<Membership>,
    active: Mutex<HashMap<Name, Arc<Bucket>>>,
    /// Those of them for which nothing was said since somebody came, who waits for the answer.
    fresh: Mutex<HashMap<Name, Arc<Bucket>>>,
    wake: Notify,
    /// Held for a round.
    turn: Turn<()>,
    told: Mutex<Told>,
    left: AtomicBool,
    /// The longest that something shared can be in use, in nanoseconds, by any configuration there was; 0 where nothing
    /// was shared. What holds for this replica's ceilings holds for those that only others use.
    longest: AtomicU64,
    /// Of ceilings for which the store is asked each time.
    teller: Arc<Teller>,
    totals: Arc<Totals>,
}

/// What was said and heard last.
#[derive(Debug, Default)]
struct Told {
    /// The life of the store.
    under: Option<Incarnation>,
    /// When the store last heard; nothing where it has no line of this replica.
    at: Option<Nanos>,
    /// When it was last spoken to.
    spoken: Option<Nanos>,
    /// The store's clock, as far as this replica can tell.
    clock: Reading,
    failed: bool,
    /// The life of the store of which the log has heard that it does not know yet what is in use.
    doubted: Option<Incarnation>,
}

/// A heartbeat, and whose it is.
struct Spoken {
    bucket: Arc<Bucket>,
    beat: Beat,
    /// How many members the ceiling has; as many as there are replicas, where nobody has said.
    members: u64,
    /// For how long it may wait, see [`Speak::Beat`].
    left: Nanos,
}

/// What is left to be said in a round.
struct Due {
    /// Where somebody waits for the answer.
    first: VecDeque<Spoken>,
    /// Of these the share that ends first comes first.
    others: VecDeque<Spoken>,
    /// For how long from now something may be in use of all that was looked at.
    longest: Nanos,
}

impl Due {
    /// What the next call carries: one of each kind in turns, so that neither waits for all of the other.
    fn next_call(&mut self) -> Vec<Spoken> {
        let turns = (0..MOST_BEATS).map_while(|turn| self.take(turn % 2 == 0));
        let mut call: Vec<(bool, Spoken)> = turns.collect();
        let most = most_beats(call.iter().map(|(_, spoken)| spoken.members));
        for (is_first, spoken) in call.split_off(most).into_iter().rev() {
            self.kind(is_first).push_front(spoken);
        }
        call.into_iter().map(|(_, spoken)| spoken).collect()
    }

    /// One, and whether it is of the first: of these if there is one, or else of the other kind.
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
    /// A replica that has said nothing. `life` is larger than that of every earlier one of this name.
    /// `patience` is how long one who comes to a ceiling first waits for its share.
    #[must_use]
    pub fn new(membership: Arc<Membership>, life: Nanos, pace: Pace, patience: Duration) -> Self {
        // In microseconds, and 52 bits of a hash: what the store's numbers hold exactly.
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

    /// What `ceiling` is to the fleet; nothing where each replica holds it alone.
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

    /// What `ceiling` is where the store is asked each time; nothing where it is not.
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

    /// Whether there are ceilings for which the store is asked each time: then it is told each beat that this
    /// replica is there.
    pub fn expects_strict(&self, some: bool) {
        self.teller.expects(some);
    }

    /// Those of `ceilings` that are shared may be asked for from now on.
    pub fn expects_shared<'c>(&self, ceilings: impl Iterator<Item = &'c Ceiling>) {
        let shared = ceilings.filter_map(|ceiling| self.shared(ceiling));
        let longest = shared.map(|it| self.terms(it.max_duration).longest()).max();
        self.longest.fetch_max(longest.unwrap_or_default().0, Relaxed);
    }

    /// Every ceiling of that kind of which something is held, by name, at most `most`.
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

    /// A life for a seat: larger than every one before.
    pub(super) fn next_life(&self) -> Incarnation {
        Incarnation(self.lives.fetch_add(1, Relaxed).saturating_add(1))
    }

    /// The terms of a ceiling: longer ones where a long `max_duration` makes the margin long.
    pub(super) fn terms(&self, max_duration: Nanos) -> Terms {
        let Pace { heartbeat, term } = self.pace;
        let mut longer = term;
        loop {
            match Terms::new(heartbeat, longer, max_duration, DRIFT_PPM) {
                Ok(terms) => return terms,
                Err(TermsError::TermTooShort { least, .. }) if longer < least => {
                    longer = least.plus(Nanos(least.0 / 100));
                }
                // A share that is never in force harms nobody.
                Err(_) => return Terms { heartbeat, term, margin: term, max_duration },
            }
        }
    }

    /// The bucket is spoken of from now on; the first heartbeat is sent at once.
    pub(super) fn activate(&self, name: &[u8], bucket: &Arc<Bucket>) {
        self.active.lock().insert(name.into(), Arc::clone(bucket));
        self.fresh.lock().insert(name.into(), Arc::clone(bucket));
        self.wake.notify_one();
    }

    fn take_fresh(&self) -> HashMap<Name, Arc<Bucket>> {
        std::mem::take(&mut self.fresh.lock())
    }

    /// Speaks of `bucket` no more, unless another has its name by now.
    pub(super) fn rest(&self, name: &[u8], bucket: &Bucket) {
        let mut active = self.active.lock();
        if active.get(name).is_some_and(|known| std::ptr::eq(&raw const **known, bucket)) {
            active.remove(name);
        }
    }

    /// Waits for an answer, for `most` at most, and no longer than one may.
    pub(super) async fn hears(&self, mut answers: watch::Receiver<()>, most: Nanos) {
        let patience = self.patience.min(Duration::from_nanos(most.0));
        if !patience.is_zero() {
            // Whatever comes of it: the bucket says what is known then.
            drop(timeout(patience, answers.changed()).await);
        }
    }

    /// A share of a whole for one that was never told of a fair one.
    fn alone(&self, start: u32) -> Share {
        Share(u64::from(start / self.membership.replicas()))
    }

    /// This replica's part of `whole`, the ceiling of that name, for who adds up what replicas show; nothing is bounded by it.
    /// What the division leaves over goes to others for each name.
    pub(in crate::engine) fn part(&self, name: &[u8], whole: u32) -> u32 {
        let Division { replicas, rank } = self.membership.division();
        let turn = SipHasher24::new().hash(name) % u64::from(replicas.get());
        let turned = |rank: u32| (u64::from(rank) + turn) % u64::from(replicas.get());
        let rank = rank.and_then(|rank| u32::try_from(turned(rank)).ok());
        share(whole, Division { replicas, rank })
    }

    /// Every ceiling that is spoken of, by name, at most `most`.
    #[must_use]
    pub fn shown(&self, clock: &Clock, most: usize) -> Vec<(Name, Shown)> {
        let mut all: Vec<_> = self.active.lock().clone().into_iter().collect();
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let shown = |(name, bucket): (Name, Arc<Bucket>)| Some((name, bucket.shown(clock)?));
        all.into_iter().filter_map(shown).take(most).collect()
    }

    /// How often shares ended and moved, also of ceilings that are not spoken of any more.
    #[must_use]
    pub const fn totals(&self) -> &Arc<Totals> {
        &self.totals
    }

    /// The store's life as last heard, and this replica's number and life.
    #[must_use]
    pub fn lives(&self) -> (Option<Incarnation>, MemberId, Incarnation) {
        (self.told.lock().under, self.member, self.life)
    }
}

impl Admission {
    /// Speaks for every shared ceiling, for ever; without a fleet it never ends and does nothing.
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

    /// Says everything that is due now, and hears the answers.
    pub async fn speak_once(&self, backend: &dyn Backend) {
        self.speak_of_due_shares(backend).await;
        self.tell_once(backend).await;
    }

    async fn speak_of_due_shares(&self, backend: &dyn Backend) {
        let Some(fleet) = self.fleet() else { return };
        let _turn = fleet.turn.lock().await;
        // Only now: it may have left while this waited for its turn.
        if !fleet.has_left() {
            self.round(fleet, backend).await;
        }
    }

    /// Gives every seat up, as far as the store answers, and speaks no more. A round that is under way ends
    /// before; where that takes more than a second, or all of it more than two, the seats end with their terms.
    pub async fn leave_fleet(&self, backend: &dyn Backend) {
        let Some(fleet) = self.fleet().filter(|fleet| !fleet.left.swap(true, Relaxed)) else {
            return;
        };
        for bucket in all(fleet).values() {
            bucket.part(&self.clock);
        }
        // Beside each other: one that takes all the time must not take the other's.
        let both =
            async { tokio::join!(self.give_seats_up(fleet, backend), self.tell_at_last(backend)) };
        drop(timeout(LEFT, both).await);
    }

    async fn give_seats_up(&self, fleet: &Fleet, backend: &dyn Backend) {
        let Ok(_turn) = timeout(LEAVING, fleet.turn.lock()).await else { return };
        self.round(fleet, backend).await;
        // What was given up is spoken of no more, and the replica's line is taken out.
        self.round(fleet, backend).await;
    }

    /// Everything that is due. For whoever has the turn.
    async fn round(&self, fleet: &Fleet, backend: &dyn Backend) {
        let active = all(fleet);
        let under = under(fleet, &active, self.clock.steady());
        let record = Record { member: fleet.member, life: fleet.life, under };
        let longest = Nanos(fleet.longest.load(Relaxed));
        let mut due = Due { first: VecDeque::new(), others: VecDeque::new(), longest };
        self.look_at(fleet, fleet.take_fresh(), true, &mut due);
        self.look_at(fleet, active, false, &mut due);
        // Where the store is slow and they are many, the last of them is said a long time from now.
        due.others.make_contiguous().sort_by_key(|spoken| spoken.left);
        let began = self.clock.steady();
        loop {
            let call = due.next_call();
            if call.is_empty() {
                break;
            }
            self.speak_of(fleet, backend, (record, due.longest), call).await;
            // Whoever comes later has woken the next round. One that took in all of them might never end, and what was not due
            // when it began would run out.
            if self.clock.steady().since(began).0 < fleet.pace.heartbeat.0 / TAKES_IN {
                self.look_at(fleet, fleet.take_fresh(), true, &mut due);
            }
        }
        let (answered, longest) = (fleet.answered(), due.longest);
        let last = Round { record, answered, longest, leaves: false, beats: vec![] };
        self.keep_the_line(fleet, backend, last).await;
    }

    /// Adds what is to be said of these.
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

    /// One call, and what comes of it.
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

    /// Says once a heartbeat that this replica is there, where it said nothing else, and takes its line
    /// out where it holds nothing.
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
    /// Whether it looks at this tick which heartbeats are due. A look goes through all ceilings, so where there are many
    /// it is rarer.
    fn looks_at(&self, tick: u64) -> bool {
        tick.is_multiple_of(FEWER) || self.active.lock().len() <= FEW
    }

    /// Whether the word that is due about this replica's line takes it out; nothing where none is due.
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

    /// What the last answer called its instant.
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
                // Halfway between question and answer, nobody knows it better.
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

/// When all members look at the ceiling of `beat`: each ceiling at instants of its own, so that what a replica
/// admits does not fall at all of them at once.
fn looks(store: Reading, beat: &Beat) -> Looks {
    let apart = Nanos(SipHasher24::new().hash(&beat.bucket) >> 24);
    Looks { clock: store.ahead(apart), heartbeat: beat.law.terms.heartbeat }
}

fn all(fleet: &Fleet) -> HashMap<Name, Arc<Bucket>> {
    fleet.active.lock().clone()
}

/// The life of the store under which all is that this replica holds: nobody's where something is not.
/// No answer is under way while this is asked.
fn under(fleet: &Fleet, active: &HashMap<Name, Arc<Bucket>>, now: Nanos) -> Option<Incarnation> {
    let known = fleet.told.lock().under?;
    let is_under = |bucket: &Arc<Bucket>| match bucket.under(now) {
        Ok(under) => under.is_none_or(|under| under == known),
        Err(()) => false,
    };
    active.values().all(is_under).then_some(known)
}
