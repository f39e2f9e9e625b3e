//! The transport of charges under envoyproxy/ratelimit's keys: a pipeline or the script.
//!
//! Guarantees:
//! - All keys of one call are in one slot.
//! - A command is sent again only if a Cluster node redirected it without running it.
//!
//! Not covered:
//! - The choice of charges and modes ([`super::question`]).

use std::sync::Arc;

use fred::bytes::Bytes;
use fred::clients::Pipeline;
use fred::error::Error;
use fred::interfaces::{KeysInterface as _, LuaInterface as _};
use fred::prelude::Client;
use fred::types::Value;
use tokio::time::timeout;

use super::question::{Places, Question, Replies, Way};
use super::{Counter, Reference};
use crate::backend::Cause;
use crate::backend::redis::client::PATIENCE;
use crate::backend::redis::cluster::Redirect;
use crate::backend::redis::connection::{
    self, Live, MOST_REDIRECTS, Next, Script, cause, is_refused,
};
use crate::kernel::decision::Group;
use crate::kernel::rate::limit::EXACT;
use crate::kernel::units::Hits;

/// The script for charges that need one atomic step. Its protocol is at the top of the file.
const SCRIPT: &str = include_str!("../lua/reference.lua");

type Answer = Result<Value, Error>;

/// The replies to the commands of one charge: the count, and `EXPIRE` if it was sent.
struct Piped {
    counted: Answer,
    expires: Option<Answer>,
}

/// The store's reply to one charge, with the hits in the counter.
#[derive(Clone, Copy)]
pub(super) enum Reply {
    /// Charged.
    Charged(u64),
    /// Not charged.
    Spared(u64),
    /// Not charged: this charge alone is over the limit.
    Over(u64),
    /// Refunded.
    GivenBack(u64),
    /// No usable reply.
    Failed(Cause),
}

impl Question<'_> {
    /// Sends the charges at `places`, whose keys are in one slot.
    /// Waits for at most `patience`.
    pub(super) async fn put(&self, slot: u16, places: &[usize], way: Way) -> Replies {
        let replies = match self.redis.route.live(slot) {
            Ok(live) => {
                let sent = self.send(&live, slot, places, way);
                self.redis.route.within(self.patience, slot, sent).await
            }
            Err(cause) => Err(cause),
        };
        replies.unwrap_or_else(|cause| places.iter().map(|_| Reply::Failed(cause)).collect())
    }

    async fn send(
        &self,
        live: &Live,
        slot: u16,
        places: &[usize],
        way: Way,
    ) -> Result<Replies, Cause> {
        let gives_back = places.iter().any(|&place| self.counters[place].is_refund);
        match way {
            Way::Together(rule) => self.script(live, rule, places, way).await,
            _ if !gives_back => self.pipeline(live, slot, places, way).await,
            // Only the script refunds in order and never below zero.
            Way::Ask => self.script(live, "n", places, way).await,
            Way::Each | Way::Stopped => self.script(live, "e", places, way).await,
        }
    }

    async fn pipeline(
        &self,
        live: &Live,
        slot: u16,
        places: &[usize],
        way: Way,
    ) -> Result<Replies, Cause> {
        let (mut answers, mut other) =
            (self.pipe(live, places, way, false).await?, None::<Arc<Live>>);
        for _ in 0..MOST_REDIRECTS {
            // The last node received every command that is still redirected.
            let at = other.as_deref().unwrap_or(live);
            let next = |piped: &Piped| at.next(piped.counted.as_ref().err()?);
            let Some(Next { live, asks }) = answers.iter().find_map(next) else { break };
            // Redirected commands were not run. A slot that
            // moves meanwhile may redirect only some of them.
            let is_sent_on = |piped: &Piped| piped.counted.as_ref().is_err_and(is_redirect);
            let left: Places = (0..places.len()).filter(|&n| is_sent_on(&answers[n])).collect();
            let again: Places = left.iter().map(|&n| places[n]).collect();
            for (n, answer) in left.into_iter().zip(self.pipe(&live, &again, way, asks).await?) {
                answers[n] = answer;
            }
            other = Some(live);
        }
        let at = other.as_deref().unwrap_or(live);
        let kept = answers.iter().find_map(Piped::kept).cloned();
        let lets_go = answers.iter().any(Piped::lets_go);
        let replies = places.iter().zip(answers);
        let replies =
            replies.map(|(&place, piped)| self.piped(at, place, piped.counted, way)).collect();
        self.learn(at, slot, way, &replies)?;
        // The counts succeeded, so a refused expiry is reported apart from them.
        match kept {
            Some(error) => at.keeps_all(&error),
            None if lets_go => at.lets_go(),
            None => {}
        }
        Ok(replies)
    }

    /// Sends `EXPIRE` again for counters whose slot moved between the two commands
    /// of a charge. Without it they would stay forever. It runs in a separate
    /// task: no check waits for it, and a canceled check does not stop it.
    fn expire_after_all<'p>(
        &self,
        live: &Live,
        parted: impl Iterator<Item = (&'p usize, &'p Piped)>,
    ) {
        for (&place, piped) in parted {
            let Some(Err(error)) = &piped.expires else { continue };
            let (next, counter) = (live.next(error), &self.counters[place]);
            let (key, seconds) = (counter.key.clone(), counter.seconds);
            let expired = async move {
                let mut next = next;
                for _ in 0..MOST_REDIRECTS {
                    let Some(Next { live, asks }) = next else { return };
                    let Err(again) = expire(&live, &key, seconds, asks).await else { return };
                    if is_refused(&again) {
                        return live.keeps_all(&again);
                    }
                    next = live.next(&again);
                }
            };
            tokio::spawn(timeout(PATIENCE, expired));
        }
    }

    async fn pipe(
        &self,
        live: &Live,
        places: &[usize],
        way: Way,
        asks: bool,
    ) -> Result<Vec<Piped>, Cause> {
        let pipeline = live.client().pipeline();
        for &place in places {
            let queued = queue(&pipeline, &self.counters[place], way, asks).await;
            queued.map_err(|error| cause(&error))?;
        }
        let answers = pipeline.try_all::<Value>().await;
        let (first, per_charge) = (usize::from(asks), commands(way, asks));
        if answers.len() != places.len() * per_charge {
            let error = answers.into_iter().find_map(Result::err);
            return Err(error.map_or(Cause::NotUnderstood, |error| cause(&error)));
        }
        let mut answers = answers.into_iter();
        let mut piped = Vec::with_capacity(places.len());
        while let Some(counted) = answers.nth(first) {
            let expires = if way == Way::Ask { None } else { answers.nth(first) };
            piped.push(Piped { counted, expires });
        }
        let parted = places.iter().zip(&piped).filter(|(_, piped)| piped.is_parted());
        self.expire_after_all(live, parted);
        Ok(piped)
    }

    fn piped(&self, live: &Live, place: usize, answer: Answer, way: Way) -> Reply {
        let held = match answer.map(natural) {
            Ok(Some(held)) => held,
            Ok(None) => return Reply::Failed(Cause::WrongType),
            // A sum beyond the counter's range is over every limit, and Redis does not add it.
            Err(error) if error.details().contains("overflow") => EXACT,
            Err(error) if error.details().contains("not an integer") => {
                return Reply::Failed(Cause::WrongType);
            }
            // WRONGTYPE is the only other error of a single key, and it has its own code.
            Err(error) => return Reply::Failed(live.failed(&error, true)),
        };
        let limit = Hits(u64::from(self.counters[place].window.limit()));
        match way {
            Way::Ask if limit < Hits(held).plus(self.together(place)) => Reply::Over(held),
            Way::Ask | Way::Stopped => Reply::Spared(held),
            Way::Each | Way::Together(_) => Reply::Charged(held),
        }
    }

    /// Updates the health of the connection. Errors of a single key do not count.
    ///
    /// Returns an error if every charge failed for a reason other than its own key.
    fn learn(&self, live: &Live, slot: u16, way: Way, replies: &Replies) -> Result<(), Cause> {
        let failed = |reply: &Reply| match reply {
            Reply::Failed(Cause::WrongType) => None,
            Reply::Failed(cause) => Some(*cause),
            _ => None,
        };
        let Some(cause) = replies.iter().find_map(failed) else {
            // A read proves nothing about writes: a read-only node answers it as well.
            if way != Way::Ask {
                live.saw(None);
            }
            return Ok(());
        };
        if replies.iter().all(|reply| failed(reply).is_some()) {
            return Err(cause);
        }
        self.redis.route.saw(slot, Some(cause));
        Ok(())
    }

    async fn script(
        &self,
        live: &Live,
        rule: &str,
        places: &[usize],
        way: Way,
    ) -> Result<Replies, Cause> {
        let keys: Vec<Bytes> = places.iter().map(|&it| self.counters[it].key.clone()).collect();
        let records = places.iter().flat_map(|&place| self.record(place, way));
        let args = std::iter::once(rule.to_owned()).chain(records).map(Bytes::from).collect();
        let digest = Some(self.reference.digest(live).await?);
        let script = Script { text: SCRIPT, digest, takes_any: true };
        let answer = live.script(script, keys, args).await?;
        let mut replies = scripted(answer, places.len())?;
        for reply in &mut replies {
            // The script charged zero hits.
            if let (Way::Stopped, Reply::Charged(held)) = (way, *reply) {
                *reply = Reply::Spared(held);
            }
        }
        Ok(replies)
    }

    fn record(&self, place: usize, way: Way) -> [String; 5] {
        let (counter, standing) = (&self.counters[place], self.charges.list[place].standing);
        let group = match standing.group {
            Group::Enforced => 0,
            Group::Quota => 1,
            Group::Aside => 2,
        };
        [
            if counter.is_refund { "r" } else { "c" }.to_owned(),
            addend(counter, way).to_string(),
            counter.window.limit().to_string(),
            counter.seconds.to_string(),
            format!("{group}{}", u8::from(standing.shadow)),
        ]
    }
}

impl Piped {
    /// Returns the error if Redis refused the expiry, so that the counter stays forever.
    fn kept(&self) -> Option<&Error> {
        let expires = self.expires.as_ref()?.as_ref();
        expires.err().filter(|error| self.counted.is_ok() && is_refused(error))
    }

    fn lets_go(&self) -> bool {
        matches!(self.expires, Some(Ok(_)))
    }

    /// Returns true if the slot of the counter moved after the count and before `EXPIRE`.
    fn is_parted(&self) -> bool {
        let is_sent_on = |answer: &Answer| answer.as_ref().is_err_and(is_redirect);
        self.counted.is_ok() && self.expires.as_ref().is_some_and(is_sent_on)
    }
}

async fn expire(live: &Live, key: &Bytes, seconds: i64, asks: bool) -> Result<(), Error> {
    let pipeline = live.client().pipeline();
    if asks {
        connection::ask(&pipeline).await?;
    }
    pipeline.expire::<(), _>(key.clone(), seconds, None).await?;
    pipeline.last().await
}

impl Reference {
    /// Returns the digest of the script, and loads the script at first use.
    async fn digest(&self, live: &Live) -> Result<&str, Cause> {
        if self.digest.get().is_none() {
            let digest = live.client().script_load(SCRIPT).await;
            // A read-only node loads scripts as well, so an error is the store's.
            let digest = digest.map_err(|error| match live.failed(&error, true) {
                // A lost `SCRIPT LOAD` charges nothing.
                Cause::Cut => Cause::Unreachable,
                cause => cause,
            })?;
            // A concurrent call may have set the digest; it is the same.
            drop(self.digest.set(digest));
        }
        Ok(self.digest.get().map(String::as_str).unwrap_or_default())
    }
}

fn commands(way: Way, asks: bool) -> usize {
    let own = if way == Way::Ask { 1 } else { 2 };
    if asks { 2 * own } else { own }
}

async fn queue(
    pipeline: &Pipeline<Client>,
    counter: &Counter,
    way: Way,
    asks: bool,
) -> Result<(), Error> {
    if asks {
        connection::ask(pipeline).await?;
    }
    if way == Way::Ask {
        return pipeline.get::<(), _>(counter.key.clone()).await;
    }
    pipeline.incr_by::<(), _>(counter.key.clone(), addend(counter, way)).await?;
    if asks {
        connection::ask(pipeline).await?;
    }
    pipeline.expire(counter.key.clone(), counter.seconds, None).await
}

fn addend(counter: &Counter, way: Way) -> i64 {
    if way == Way::Stopped && !counter.is_refund { 0 } else { counter.addend() }
}

fn is_redirect(error: &Error) -> bool {
    // The address does not matter here.
    Redirect::of(error, "").is_some()
}

/// Returns a count, 0 for a missing counter, or `None` for any other value.
fn natural(value: Value) -> Option<u64> {
    match value {
        Value::Null => Some(0),
        Value::Integer(held) => u64::try_from(held).ok(),
        Value::String(text) => text.parse().ok(),
        Value::Bytes(bytes) => std::str::from_utf8(&bytes).ok()?.parse().ok(),
        _ => None,
    }
}

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
