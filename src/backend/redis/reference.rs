//! Fixed windows under the reference's keys, so that its replicas and ours count together.
//!
//! Guarantees: keys, increments and expiries are the reference's byte for byte (`reference` §2.5 and
//! §2.6): the window's start stands in the key, by this replica's clock, and `INCRBY` and `EXPIRE`
//! go out in one pipeline; the answer is the kernel's for the count that came back. On one node
//! `all_or_nothing` and `stop_when_over` are one script and atomic.
//! Leaves out: dividing a question among stores and between these keys and ours (`stores`), and
//! deciding for several nodes at once, which it does in two steps.
//!
//! Three things differ on purpose. Hits beyond what a counter can hold are denied, where the
//! reference fails the call. A limit in shadow mode stops no charge of others. The quota group
//! does so only as a whole.

mod denied;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fred::bytes::Bytes;
use fred::clients::Pipeline;
use fred::error::Error;
use fred::interfaces::{KeysInterface as _, LuaInterface as _};
use fred::prelude::Client;
use fred::types::Value;
use smallvec::SmallVec;

use super::connection::{Live, cause};
use super::{Cause, Redis};
use crate::backend::{Charge, Charges, Outcome, Outcomes, Rule};
use crate::kernel::decision::{Cost, Group, Verdict, combine};
use crate::kernel::rate::fixed_window::{Count, FixedWindow, Windows};
use crate::kernel::rate::limit::EXACT;
use crate::kernel::rate::{Room, Step, Strategy};
use crate::kernel::units::{Hits, Nanos};
use denied::Denied;

/// The script for what must be decided in one step; its protocol stands at its top.
const SCRIPT: &str = include_str!("lua/reference.lua");

/// How the reference's keys are kept.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What each begins with.
    pub prefix: String,
    /// An expiry is drawn anew at each hit from the window's length and up to so many seconds
    /// more, this number itself not among them.
    pub jitter_secs: u32,
    /// Bytes for keys that are known to be over; 0 for none.
    pub denied_bytes: usize,
    /// A question that is denied charges only the limits that deny it.
    pub stop_when_over: bool,
    /// Every limit is in the quota group.
    pub quota_for_all: bool,
    /// Any number, another one in every process: where the drawing begins.
    pub seed: u64,
}

/// Counters under the reference's keys.
#[derive(Debug)]
pub(super) struct Reference {
    options: Options,
    denied: Denied,
    drawn: AtomicU64,
    /// What Redis calls the script.
    digest: OnceLock<String>,
}

/// One charge as the store sees it.
struct Counter {
    key: Bytes,
    window: FixedWindow,
    start: Nanos,
    end: Nanos,
    hits: Hits,
    is_refund: bool,
    seconds: i64,
}

/// A window's counter by the reference's key, if `charge` is one.
pub(super) fn is_reference(charge: &Charge) -> bool {
    charge.key.spelling().is_some() && length(charge).is_some()
}

fn length(charge: &Charge) -> Option<(FixedWindow, Nanos)> {
    let Strategy::FixedWindow(window) = charge.strategy else { return None };
    match *window.windows() {
        Windows::Every(length) if Nanos::SECOND <= length => Some((window, length)),
        Windows::Every(_) | Windows::Calendar { .. } => None,
    }
}

impl Reference {
    pub(super) fn new(options: Options) -> Self {
        let denied = Denied::new(options.denied_bytes);
        let drawn = AtomicU64::new(options.seed);
        Self { options, denied, drawn, digest: OnceLock::new() }
    }

    /// Whether a denied question spares the limits that do not deny it, though its rule is `each`.
    pub(super) const fn stops(&self) -> bool {
        self.options.stop_when_over
    }

    /// Whether every limit is in the quota group.
    pub(super) const fn quota_for_all(&self) -> bool {
        self.options.quota_for_all
    }

    /// Puts `charges`, all of them the reference's, to `redis` at `now`.
    pub(super) async fn charge(
        &self,
        redis: &Redis,
        now: Nanos,
        charges: &Charges,
        decided: Decided,
    ) -> Outcomes {
        let counters: SmallVec<[Counter; 2]> =
            charges.list.iter().filter_map(|charge| self.counter(charge, now)).collect();
        if counters.len() != charges.list.len() {
            return super::failed(charges, Cause::NotUnderstood);
        }
        let counters = &counters[..];
        let question = Question { reference: self, redis, now, charges, counters, decided };
        question.answer().await
    }

    fn counter(&self, charge: &Charge, now: Nanos) -> Option<Counter> {
        let (window, length) = length(charge)?;
        let start = Nanos(now.0.saturating_sub(now.0.checked_rem(length.0)?));
        let spelling = charge.key.spelling()?;
        let began = start.0 / Nanos::SECOND.0;
        let key = [self.options.prefix.as_bytes(), spelling, began.to_string().as_bytes()].concat();
        let (hits, is_refund) = match charge.cost {
            Cost::Charge(hits) => (hits, false),
            Cost::Refund(hits) => (hits, true),
        };
        let seconds = length.0 / Nanos::SECOND.0 + self.draw();
        Some(Counter {
            key: key.into(),
            window,
            start,
            end: start.plus(length),
            hits,
            is_refund,
            seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
        })
    }

    /// A number of seconds below `jitter_secs`, or 0.
    /// Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014.
    fn draw(&self) -> u64 {
        let below = u64::from(self.options.jitter_secs);
        if below == 0 {
            return 0;
        }
        let mut mixed = self.drawn.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }
}

impl Counter {
    /// What the kernel says of a counter that holds `held` after these hits.
    fn counted(&self, held: u64, now: Nanos) -> Step {
        self.step(held.saturating_sub(self.hits.0), now, self.hits)
    }

    /// What the kernel says of `hits` to a counter that holds `held`.
    fn step(&self, held: u64, now: Nanos, hits: Hits) -> Step {
        self.window.ask(&Count { start: self.start, count: held.min(EXACT) }, now, hits)
    }

    /// What is known to be over, without being asked.
    fn over(&self, now: Nanos) -> Outcome {
        Outcome::Stepped(self.step(u64::from(self.window.limit()) + 1, now, self.hits))
    }

    /// What is left of a counter that holds `held`.
    fn room(&self, held: u64, now: Nanos) -> Room {
        match self.step(held, now, Hits(0)) {
            Step::Admit(room) | Step::Never(room) | Step::Deny { room, .. } => room,
            Step::Stale => Room::default(),
        }
    }

    /// INCRBY takes 63 bits; what is more is more than any limit, too.
    fn addend(&self) -> i64 {
        i64::try_from(self.hits.0).unwrap_or(i64::MAX)
    }
}

/// What the store says of one charge.
#[derive(Clone, Copy)]
enum Reply {
    /// Charged; it holds this then.
    Charged(u64),
    /// Not charged; it holds this.
    Spared(u64),
    /// Not charged, and more than the limit by itself; it holds this.
    Over(u64),
    /// Given back; it holds this then.
    GivenBack(u64),
    /// It did not say.
    Failed(Cause),
}

/// Where it is decided what of a question is charged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Decided {
    /// Here, by the rule.
    Here,
    /// In an earlier step: everything is to be charged.
    Before,
}

/// How a question is put.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Charged in a pipeline, as the reference does.
    Each,
    /// The same with no hits: something that is known to be over denies the question.
    Stopped,
    /// Looked at in a pipeline.
    Ask,
    /// Decided by the script, under a rule that it knows.
    Together(&'static str),
}

/// One question to one store.
struct Question<'q> {
    reference: &'q Reference,
    redis: &'q Redis,
    now: Nanos,
    charges: &'q Charges,
    counters: &'q [Counter],
    decided: Decided,
}

/// Places of charges in the question.
type Places = SmallVec<[usize; 2]>;

/// One for each place.
type Replies = SmallVec<[Reply; 2]>;

impl Question<'_> {
    async fn answer(&self) -> Outcomes {
        let known: SmallVec<[bool; 2]> = self.counters.iter().map(|it| self.is_known(it)).collect();
        let places: Places = (0..known.len()).filter(|&place| !known[place]).collect();
        let mut outcomes: Outcomes = self.counters.iter().map(|it| it.over(self.now)).collect();
        if places.is_empty() {
            return outcomes;
        }
        let replies = match self.redis.link.live() {
            Ok(live) => self.redis.within(self.send(&live, &places, self.way(&known))).await,
            Err(cause) => Err(cause),
        };
        let replies = replies.unwrap_or_else(|cause| failed(&places, cause));
        for (&place, reply) in places.iter().zip(replies) {
            outcomes[place] = self.outcome(place, reply);
        }
        outcomes
    }

    fn is_known(&self, counter: &Counter) -> bool {
        if counter.is_refund {
            self.reference.denied.forget(&counter.key);
            return false;
        }
        self.reference.denied.holds(&counter.key, self.now)
    }

    /// How what is not known is asked for.
    fn way(&self, known: &[bool]) -> Way {
        let stops = self.reference.options.stop_when_over;
        let is_denied = known.contains(&true) && self.is_denied_by(known);
        match self.charges.rule {
            Rule::Ask => Way::Ask,
            Rule::Each if !stops || self.decided == Decided::Before => Way::Each,
            Rule::Each if is_denied => Way::Stopped,
            // There is nobody to be spared.
            Rule::Each if self.charges.list.len() == 1 => Way::Each,
            Rule::AllOrNothing { .. } if is_denied => Way::Ask,
            Rule::Each | Rule::AllOrNothing { .. } => Way::Together(self.letters(known)),
        }
    }

    /// Whether what is known denies the question, whatever the rest is.
    fn is_denied_by(&self, known: &[bool]) -> bool {
        let votes = self
            .charges
            .list
            .iter()
            .zip(known)
            .map(|(charge, known)| (charge.standing.group, charge.standing.verdict(*known)));
        let (quota_for_all, rescued) = self.quota();
        let passed = rescued.then_some((Group::Quota, Verdict::Admit));
        combine(votes.chain(passed), quota_for_all) == Verdict::Deny
    }

    /// Whether every limit is in the quota group, and whether something keeps that from denying.
    const fn quota(&self) -> (bool, bool) {
        match self.charges.rule {
            Rule::AllOrNothing { quota_for_all, rescued } => (quota_for_all, rescued),
            Rule::Each | Rule::Ask => (self.reference.options.quota_for_all, false),
        }
    }

    /// The rule as the script spells it.
    fn letters(&self, known: &[bool]) -> &'static str {
        let (quota_for_all, rescued) = self.quota();
        // Of what is known and denies nothing the script does not hear.
        let passes = |(charge, known): (&Charge, &bool)| {
            let in_group = quota_for_all || charge.standing.group == Group::Quota;
            *known && in_group && charge.standing.shadow
        };
        let rescued = rescued || self.charges.list.iter().zip(known).any(passes);
        match (self.charges.rule, quota_for_all, rescued) {
            (Rule::AllOrNothing { .. }, false, false) => "a",
            (Rule::AllOrNothing { .. }, false, true) => "ar",
            (Rule::AllOrNothing { .. }, true, false) => "aq",
            (Rule::AllOrNothing { .. }, true, true) => "aqr",
            (Rule::Each | Rule::Ask, false, false) => "s",
            (Rule::Each | Rule::Ask, false, true) => "sr",
            (Rule::Each | Rule::Ask, true, false) => "sq",
            (Rule::Each | Rule::Ask, true, true) => "sqr",
        }
    }

    fn outcome(&self, place: usize, reply: Reply) -> Outcome {
        let (counter, now) = (&self.counters[place], self.now);
        if let Reply::Charged(held) | Reply::Spared(held) | Reply::Over(held) = reply
            && u64::from(counter.window.limit()) < held
        {
            self.reference.denied.remember(&counter.key, counter.end);
        }
        match reply {
            Reply::Charged(held) => Outcome::Stepped(counter.counted(held, now)),
            Reply::Spared(held) => Outcome::Stepped(counter.step(held, now, Hits(0))),
            Reply::Over(held) => Outcome::Stepped(counter.step(held, now, self.together(place))),
            Reply::GivenBack(held) => Outcome::Refunded(Step::Admit(counter.room(held, now))),
            Reply::Failed(cause) => Outcome::Failed(cause),
        }
    }

    /// The hits of a charge and of those before it to the same counter.
    fn together(&self, place: usize) -> Hits {
        let own = &self.counters[place];
        let earlier = self.counters.iter().take(place);
        let same = earlier.filter(|it| it.key == own.key && !it.is_refund);
        same.fold(own.hits, |sum, it| sum.plus(it.hits))
    }
}

/// Putting it.
impl Question<'_> {
    async fn send(&self, live: &Live, places: &[usize], way: Way) -> Result<Replies, Cause> {
        let gives_back = |place: &usize| self.counters[*place].is_refund;
        match way {
            Way::Together(rule) => self.script(live, rule, places).await,
            _ if !places.iter().any(gives_back) => self.pipeline(live, places, way).await,
            // One script gives back and charges in order; of several nodes each has its own.
            Way::Each if !live.is_cluster() => self.script(live, "e", places).await,
            Way::Ask if !live.is_cluster() => self.script(live, "n", places).await,
            _ => {
                let all = places.iter().copied();
                let (back, rest): (Places, Places) = all.partition(|it| gives_back(it));
                let mut replies = self.pipeline(live, &rest, way).await?;
                for place in back {
                    let at = places.iter().position(|it| *it == place).unwrap_or(replies.len());
                    let given = self.script(live, "e", &[place]).await;
                    let given = given.map_or_else(Reply::Failed, |replies| replies[0]);
                    replies.insert(at.min(replies.len()), given);
                }
                Ok(replies)
            }
        }
    }

    async fn pipeline(&self, live: &Live, places: &[usize], way: Way) -> Result<Replies, Cause> {
        let pipeline = live.client().pipeline();
        for &place in places {
            queue(&pipeline, &self.counters[place], way).await.map_err(|error| cause(&error))?;
        }
        let answers = pipeline.try_all::<Value>().await;
        let per_charge = if way == Way::Ask { 1 } else { 2 };
        if answers.len() != places.len() * per_charge {
            let error = answers.into_iter().find_map(Result::err);
            return Err(error.map_or(Cause::NotUnderstood, |error| cause(&error)));
        }
        let replies = places.iter().zip(answers.into_iter().step_by(per_charge));
        let replies = replies.map(|(&place, answer)| self.piped(place, answer, way)).collect();
        self.learn(&replies).map(|()| replies)
    }

    /// What the answer to one command of a pipeline says.
    fn piped(&self, place: usize, answer: Result<Value, Error>, way: Way) -> Reply {
        let held = match answer.map(natural) {
            Ok(Some(held)) => held,
            Ok(None) => return Reply::Failed(Cause::WrongType),
            // More than the counter can hold is more than any limit, and is not counted.
            Err(error) if error.details().contains("overflow") => EXACT,
            Err(error) if error.details().contains("not an integer") => {
                return Reply::Failed(Cause::WrongType);
            }
            Err(error) => return Reply::Failed(cause(&error)),
        };
        let limit = Hits(u64::from(self.counters[place].window.limit()));
        match way {
            Way::Ask if limit < Hits(held).plus(self.together(place)) => Reply::Over(held),
            Way::Ask | Way::Stopped => Reply::Spared(held),
            Way::Each | Way::Together(_) => Reply::Charged(held),
        }
    }

    /// A cause that is not one key's own is the connection's.
    fn learn(&self, replies: &Replies) -> Result<(), Cause> {
        let failed = |reply: &Reply| match reply {
            Reply::Failed(Cause::WrongType) => None,
            Reply::Failed(cause) => Some(*cause),
            _ => None,
        };
        let Some(cause) = replies.iter().find_map(failed) else { return Ok(()) };
        if replies.iter().all(|reply| failed(reply).is_some()) {
            return Err(cause);
        }
        self.redis.link.saw(Some(cause));
        Ok(())
    }

    async fn script(&self, live: &Live, rule: &str, places: &[usize]) -> Result<Replies, Cause> {
        let keys: Vec<Bytes> = places.iter().map(|&it| self.counters[it].key.clone()).collect();
        let records = places.iter().flat_map(|&place| self.record(place));
        let args: Vec<String> = std::iter::once(rule.to_owned()).chain(records).collect();
        let answer = self.reference.run(live.client(), keys, args).await;
        scripted(answer.map_err(|error| cause(&error))?, places.len())
    }

    /// A charge as the script reads it.
    fn record(&self, place: usize) -> [String; 5] {
        let (counter, standing) = (&self.counters[place], self.charges.list[place].standing);
        let group = match standing.group {
            Group::Enforced => 0,
            Group::Quota => 1,
            Group::Aside => 2,
        };
        [
            if counter.is_refund { "r" } else { "c" }.to_owned(),
            counter.addend().to_string(),
            counter.window.limit().to_string(),
            counter.seconds.to_string(),
            format!("{group}{}", u8::from(standing.shadow)),
        ]
    }
}

impl Reference {
    async fn run(
        &self,
        client: &Client,
        keys: Vec<Bytes>,
        args: Vec<String>,
    ) -> Result<Value, Error> {
        if let Some(digest) = self.digest.get() {
            match client.evalsha(digest.as_str(), keys.clone(), args.clone()).await {
                Err(error) if error.details().starts_with("NOSCRIPT") => {}
                answer => return answer,
            }
        } else {
            let digest: String = client.script_load(SCRIPT).await?;
            // Whoever was first: all of them are told the same.
            drop(self.digest.set(digest));
        }
        client.eval(SCRIPT, keys, args).await
    }
}

async fn queue(pipeline: &Pipeline<Client>, counter: &Counter, way: Way) -> Result<(), Error> {
    if way == Way::Ask {
        return pipeline.get::<(), _>(counter.key.clone()).await;
    }
    let hits = if way == Way::Stopped { 0 } else { counter.addend() };
    pipeline.incr_by::<(), _>(counter.key.clone(), hits).await?;
    pipeline.expire(counter.key.clone(), counter.seconds, None).await
}

/// A count, or nothing at all for one that is not there yet.
fn natural(value: Value) -> Option<u64> {
    match value {
        Value::Null => Some(0),
        Value::Integer(held) => u64::try_from(held).ok(),
        Value::String(text) => text.parse().ok(),
        Value::Bytes(bytes) => std::str::from_utf8(&bytes).ok()?.parse().ok(),
        _ => None,
    }
}

/// What the script says of so many charges.
fn scripted(answer: Value, charges: usize) -> Result<Replies, Cause> {
    let numbers: Vec<u64> = match answer {
        Value::Array(values) => values.into_iter().filter_map(natural).collect(),
        _ => return Err(Cause::NotUnderstood),
    };
    let (pairs, rest) = numbers.as_chunks::<2>();
    if pairs.len() != charges || !rest.is_empty() {
        return Err(Cause::NotUnderstood);
    }
    let reply = |&[code, held]: &[u64; 2]| match code {
        0 => Ok(Reply::Charged(held)),
        1 => Ok(Reply::Spared(held)),
        2 => Ok(Reply::Over(held)),
        3 => Ok(Reply::Failed(Cause::WrongType)),
        4 => Ok(Reply::GivenBack(held)),
        _ => Err(Cause::NotUnderstood),
    };
    pairs.iter().map(reply).collect()
}

fn failed(places: &[usize], cause: Cause) -> Replies {
    places.iter().map(|_| Reply::Failed(cause)).collect()
}
