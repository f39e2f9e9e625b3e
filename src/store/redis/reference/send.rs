//! The transport of charges under envoyproxy/ratelimit's keys: a pipeline or the script.
//!
//! Guarantees:
//! - All keys of one call are in one slot.
//! - A command is sent again only if a Cluster node redirected it without running it.
//!
//! Not covered:
//! - The choice of charges and modes ([`super::check`]).

use std::sync::Arc;

use fred::bytes::Bytes;
use fred::clients::Pipeline;
use fred::error::Error;
use fred::interfaces::{KeysInterface as _, LuaInterface as _};
use fred::prelude::Client;
use fred::types::Value;
use tokio::time::timeout;

use super::check::{CompatCheck, CounterIndexes, CounterReplies, SendMode};
use super::{CompatCounter, CompatCounters};
use crate::kernel::decision::VoteGroup;
use crate::kernel::rate::limit::EXACT_BOUND;
use crate::kernel::units::Hits;
use crate::store::StoreFailure;
use crate::store::redis::client::CONNECT_TIMEOUT;
use crate::store::redis::cluster::Redirect;
use crate::store::redis::connection::{
    self, LiveConnection, MAX_REDIRECTS, RedirectTarget, RedisScript, classify_error, is_refused,
};

/// The script for charges that need one atomic step. Its protocol is at the top of the file.
const SCRIPT: &str = include_str!("../lua/reference.lua");

type CommandReply = Result<Value, Error>;

/// The replies to the commands of one charge: the count, and `EXPIRE` if it was sent.
struct PipelineReply {
    count: CommandReply,
    expiry: Option<CommandReply>,
}

/// The store's reply to one charge, with the hits in the counter.
#[derive(Clone, Copy)]
pub(super) enum CounterReply {
    /// Charged.
    Charged(u64),
    /// Not charged.
    Skipped(u64),
    /// Not charged: this charge alone is over the limit.
    OverLimit(u64),
    /// Refunded.
    Refunded(u64),
    /// No usable reply.
    Failed(StoreFailure),
}

impl CompatCheck<'_> {
    /// Sends the charges at `places`, whose keys are in one slot.
    /// Waits for at most `call_timeout`.
    pub(super) async fn call(&self, slot: u16, places: &[usize], way: SendMode) -> CounterReplies {
        let replies = match self.redis.route.connection(slot) {
            Ok(live) => {
                let sent = self.send_charges(&live, slot, places, way);
                self.redis.route.call_within(self.call_timeout, slot, sent).await
            }
            Err(cause) => Err(cause),
        };
        replies.unwrap_or_else(|cause| places.iter().map(|_| CounterReply::Failed(cause)).collect())
    }

    async fn send_charges(
        &self,
        live: &LiveConnection,
        slot: u16,
        places: &[usize],
        way: SendMode,
    ) -> Result<CounterReplies, StoreFailure> {
        let gives_back = places.iter().any(|&place| self.counters[place].is_refund);
        match way {
            SendMode::Script(rule) => self.run_script(live, rule, places, way).await,
            _ if !gives_back => self.send_pipeline(live, slot, places, way).await,
            // Only the script refunds in order and never below zero.
            SendMode::Read => self.run_script(live, "n", places, way).await,
            SendMode::Charge | SendMode::ChargeNothing => {
                self.run_script(live, "e", places, way).await
            }
        }
    }

    async fn send_pipeline(
        &self,
        live: &LiveConnection,
        slot: u16,
        places: &[usize],
        way: SendMode,
    ) -> Result<CounterReplies, StoreFailure> {
        let (mut answers, mut other) =
            (self.run_pipeline(live, places, way, false).await?, None::<Arc<LiveConnection>>);
        for _ in 0..MAX_REDIRECTS {
            // The last node received every command that is still redirected.
            let at = other.as_deref().unwrap_or(live);
            let next = |piped: &PipelineReply| at.redirect_target(piped.count.as_ref().err()?);
            let Some(RedirectTarget { live, needs_asking: asks }) = answers.iter().find_map(next)
            else {
                break;
            };
            // Redirected commands were not run. A slot that
            // moves meanwhile may redirect only some of them.
            let is_sent_on = |piped: &PipelineReply| piped.count.as_ref().is_err_and(is_redirect);
            let left: CounterIndexes =
                (0..places.len()).filter(|&n| is_sent_on(&answers[n])).collect();
            let again: CounterIndexes = left.iter().map(|&n| places[n]).collect();
            for (n, answer) in
                left.into_iter().zip(self.run_pipeline(&live, &again, way, asks).await?)
            {
                answers[n] = answer;
            }
            other = Some(live);
        }
        let at = other.as_deref().unwrap_or(live);
        let kept = answers.iter().find_map(PipelineReply::refused_expiry).cloned();
        let lets_go = answers.iter().any(PipelineReply::has_expiry);
        let replies = places.iter().zip(answers);
        let replies = replies
            .map(|(&place, piped)| self.counter_reply(at, place, piped.count, way))
            .collect();
        self.update_health(at, slot, way, &replies)?;
        // The counts succeeded, so a refused expiry is reported apart from them.
        match kept {
            Some(error) => at.record_refused_expiry(&error),
            None if lets_go => at.record_accepted_expiry(),
            None => {}
        }
        Ok(replies)
    }

    /// Sends `EXPIRE` again for counters whose slot moved between the two commands
    /// of a charge. Without it they would stay forever. It runs in a separate
    /// task: no check waits for it, and a canceled check does not stop it.
    fn resend_expiries<'p>(
        &self,
        live: &LiveConnection,
        parted: impl Iterator<Item = (&'p usize, &'p PipelineReply)>,
    ) {
        for (&place, piped) in parted {
            let Some(Err(error)) = &piped.expiry else { continue };
            let (next, counter) = (live.redirect_target(error), &self.counters[place]);
            let (key, seconds) = (counter.key.clone(), counter.expiry_secs);
            let expired = async move {
                let mut next = next;
                for _ in 0..MAX_REDIRECTS {
                    let Some(RedirectTarget { live, needs_asking: asks }) = next else { return };
                    let Err(again) = set_expiry(&live, &key, seconds, asks).await else { return };
                    if is_refused(&again) {
                        return live.record_refused_expiry(&again);
                    }
                    next = live.redirect_target(&again);
                }
            };
            tokio::spawn(timeout(CONNECT_TIMEOUT, expired));
        }
    }

    async fn run_pipeline(
        &self,
        live: &LiveConnection,
        places: &[usize],
        way: SendMode,
        asks: bool,
    ) -> Result<Vec<PipelineReply>, StoreFailure> {
        let pipeline = live.client().pipeline();
        for &place in places {
            let queued = queue_commands(&pipeline, &self.counters[place], way, asks).await;
            queued.map_err(|error| classify_error(&error))?;
        }
        let answers = pipeline.try_all::<Value>().await;
        let (first, per_charge) = (usize::from(asks), commands_per_charge(way, asks));
        if answers.len() != places.len() * per_charge {
            let error = answers.into_iter().find_map(Result::err);
            return Err(error.map_or(StoreFailure::InvalidReply, |error| classify_error(&error)));
        }
        let mut answers = answers.into_iter();
        let mut piped = Vec::with_capacity(places.len());
        while let Some(counted) = answers.nth(first) {
            let expires = if way == SendMode::Read { None } else { answers.nth(first) };
            piped.push(PipelineReply { count: counted, expiry: expires });
        }
        let parted = places.iter().zip(&piped).filter(|(_, piped)| piped.is_split_by_slot_move());
        self.resend_expiries(live, parted);
        Ok(piped)
    }

    fn counter_reply(
        &self,
        live: &LiveConnection,
        place: usize,
        answer: CommandReply,
        way: SendMode,
    ) -> CounterReply {
        let held = match answer.map(parse_count) {
            Ok(Some(held)) => held,
            Ok(None) => return CounterReply::Failed(StoreFailure::WrongType),
            // A sum beyond the counter's range is over every limit, and Redis does not add it.
            Err(error) if error.details().contains("overflow") => EXACT_BOUND,
            Err(error) if error.details().contains("not an integer") => {
                return CounterReply::Failed(StoreFailure::WrongType);
            }
            // WRONGTYPE is the only other error of a single key, and it has its own code.
            Err(error) => return CounterReply::Failed(live.record_error(&error, true)),
        };
        let limit = Hits(u64::from(self.counters[place].window.limit()));
        match way {
            SendMode::Read if limit < Hits(held).plus(self.hits_through(place)) => {
                CounterReply::OverLimit(held)
            }
            SendMode::Read | SendMode::ChargeNothing => CounterReply::Skipped(held),
            SendMode::Charge | SendMode::Script(_) => CounterReply::Charged(held),
        }
    }

    /// Updates the health of the connection. Errors of a single key do not count.
    ///
    /// Returns an error if every charge failed for a reason other than its own key.
    fn update_health(
        &self,
        live: &LiveConnection,
        slot: u16,
        way: SendMode,
        replies: &CounterReplies,
    ) -> Result<(), StoreFailure> {
        let failed = |reply: &CounterReply| match reply {
            CounterReply::Failed(StoreFailure::WrongType) => None,
            CounterReply::Failed(cause) => Some(*cause),
            _ => None,
        };
        let Some(cause) = replies.iter().find_map(failed) else {
            // A read proves nothing about writes: a read-only node answers it as well.
            if way != SendMode::Read {
                live.saw(None);
            }
            return Ok(());
        };
        if replies.iter().all(|reply| failed(reply).is_some()) {
            return Err(cause);
        }
        self.redis.route.record_result(slot, Some(cause));
        Ok(())
    }

    async fn run_script(
        &self,
        live: &LiveConnection,
        rule: &str,
        places: &[usize],
        way: SendMode,
    ) -> Result<CounterReplies, StoreFailure> {
        let keys: Vec<Bytes> = places.iter().map(|&it| self.counters[it].key.clone()).collect();
        let records = places.iter().flat_map(|&place| self.script_record(place, way));
        let args = std::iter::once(rule.to_owned()).chain(records).map(Bytes::from).collect();
        let digest = Some(self.reference.load_script(live).await?);
        let script = RedisScript { text: SCRIPT, digest, accepts_any_value: true };
        let answer = live.run_script(script, keys, args).await?;
        let mut replies = parse_script_reply(answer, places.len())?;
        for reply in &mut replies {
            // The script charged zero hits.
            if let (SendMode::ChargeNothing, CounterReply::Charged(held)) = (way, *reply) {
                *reply = CounterReply::Skipped(held);
            }
        }
        Ok(replies)
    }

    fn script_record(&self, place: usize, way: SendMode) -> [String; 5] {
        let (counter, standing) = (&self.counters[place], self.charges.list[place].standing);
        let group = match standing.group {
            VoteGroup::Enforced => 0,
            VoteGroup::Quota => 1,
            VoteGroup::Unlimited => 2,
        };
        [
            if counter.is_refund { "r" } else { "c" }.to_owned(),
            increment(counter, way).to_string(),
            counter.window.limit().to_string(),
            counter.expiry_secs.to_string(),
            format!("{group}{}", u8::from(standing.shadow)),
        ]
    }
}

impl PipelineReply {
    /// Returns the error if Redis refused the expiry, so that the counter stays forever.
    fn refused_expiry(&self) -> Option<&Error> {
        let expires = self.expiry.as_ref()?.as_ref();
        expires.err().filter(|error| self.count.is_ok() && is_refused(error))
    }

    fn has_expiry(&self) -> bool {
        matches!(self.expiry, Some(Ok(_)))
    }

    /// Returns true if the slot of the counter moved after the count and before `EXPIRE`.
    fn is_split_by_slot_move(&self) -> bool {
        let is_sent_on = |answer: &CommandReply| answer.as_ref().is_err_and(is_redirect);
        self.count.is_ok() && self.expiry.as_ref().is_some_and(is_sent_on)
    }
}

async fn set_expiry(
    live: &LiveConnection,
    key: &Bytes,
    seconds: i64,
    asks: bool,
) -> Result<(), Error> {
    let pipeline = live.client().pipeline();
    if asks {
        connection::queue_asking(&pipeline).await?;
    }
    pipeline.expire::<(), _>(key.clone(), seconds, None).await?;
    pipeline.last().await
}

impl CompatCounters {
    /// Returns the digest of the script, and loads the script at first use.
    async fn load_script(&self, live: &LiveConnection) -> Result<&str, StoreFailure> {
        if self.script_digest.get().is_none() {
            let digest = live.client().script_load(SCRIPT).await;
            // A read-only node loads scripts as well, so an error is the store's.
            let digest = digest.map_err(|error| match live.record_error(&error, true) {
                // A lost `SCRIPT LOAD` charges nothing.
                StoreFailure::ConnectionLost => StoreFailure::Unreachable,
                cause => cause,
            })?;
            // A concurrent call may have set the digest; it is the same.
            drop(self.script_digest.set(digest));
        }
        Ok(self.script_digest.get().map(String::as_str).unwrap_or_default())
    }
}

fn commands_per_charge(way: SendMode, asks: bool) -> usize {
    let own = if way == SendMode::Read { 1 } else { 2 };
    if asks { 2 * own } else { own }
}

async fn queue_commands(
    pipeline: &Pipeline<Client>,
    counter: &CompatCounter,
    way: SendMode,
    asks: bool,
) -> Result<(), Error> {
    if asks {
        connection::queue_asking(pipeline).await?;
    }
    if way == SendMode::Read {
        return pipeline.get::<(), _>(counter.key.clone()).await;
    }
    pipeline.incr_by::<(), _>(counter.key.clone(), increment(counter, way)).await?;
    if asks {
        connection::queue_asking(pipeline).await?;
    }
    pipeline.expire(counter.key.clone(), counter.expiry_secs, None).await
}

fn increment(counter: &CompatCounter, way: SendMode) -> i64 {
    if way == SendMode::ChargeNothing && !counter.is_refund { 0 } else { counter.increment() }
}

fn is_redirect(error: &Error) -> bool {
    // The address does not matter here.
    Redirect::parse(error, "").is_some()
}

/// Returns a count, 0 for a missing counter, or `None` for any other value.
fn parse_count(value: Value) -> Option<u64> {
    match value {
        Value::Null => Some(0),
        Value::Integer(held) => u64::try_from(held).ok(),
        Value::String(text) => text.parse().ok(),
        Value::Bytes(bytes) => std::str::from_utf8(&bytes).ok()?.parse().ok(),
        _ => None,
    }
}

fn parse_script_reply(answer: Value, charges: usize) -> Result<CounterReplies, StoreFailure> {
    let numbers: Vec<u64> = match answer {
        Value::Array(values) => values.into_iter().filter_map(parse_count).collect(),
        _ => return Err(StoreFailure::InvalidReply),
    };
    let (pairs, rest) = numbers.as_chunks::<2>();
    if pairs.len() != charges || !rest.is_empty() {
        return Err(StoreFailure::InvalidReply);
    }
    let reply = |&[code, held]: &[u64; 2]| match code {
        0 => Ok(CounterReply::Charged(held)),
        1 => Ok(CounterReply::Skipped(held)),
        2 => Ok(CounterReply::OverLimit(held)),
        3 => Ok(CounterReply::Failed(StoreFailure::WrongType)),
        4 => Ok(CounterReply::Refunded(held)),
        _ => Err(StoreFailure::InvalidReply),
    };
    pairs.iter().map(reply).collect()
}
