//! Sends charges under envoyproxy/ratelimit's keys to Redis, in a pipeline or in one script call.
//!
//! Guarantees:
//! - All keys of one call are in one Cluster slot.
//! - A command is sent again only after a redirect, because the redirecting node did not run it.
//!
//! Not covered:
//! - The choice of the charges to send and of the way to send them ([`super::check`]).

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

/// The script for checks whose charges must be decided atomically. Its protocol is documented at
/// the top of `reference.lua`.
const SCRIPT: &str = include_str!("../lua/reference.lua");

type CommandReply = Result<Value, Error>;

/// The replies to the commands of one charge: to `INCRBY` or `GET`, and to `EXPIRE` if it was sent.
struct PipelineReply {
    count: CommandReply,
    expiry: Option<CommandReply>,
}

/// The reply of Redis to one charge, with the hits in the counter.
#[derive(Clone, Copy)]
pub(super) enum CounterReply {
    /// The hits were charged.
    Charged(u64),
    /// The hits were not charged.
    Skipped(u64),
    /// The hits were not charged, because the limit of this charge denies them.
    OverLimit(u64),
    /// The hits were refunded.
    Refunded(u64),
    /// Redis sent no usable reply.
    Failed(StoreFailure),
}

impl CompatCheck<'_> {
    /// Sends the charges with these indices, whose keys are in one slot. Waits for at most
    /// `call_timeout`.
    pub(super) async fn call(
        &self,
        slot: u16,
        indexes: &[usize],
        send_mode: SendMode,
    ) -> CounterReplies {
        let replies = match self.redis.route.connection(slot) {
            Ok(live) => {
                let sent = self.send_charges(&live, slot, indexes, send_mode);
                self.redis.route.call_within(self.call_timeout, slot, sent).await
            }
            Err(cause) => Err(cause),
        };
        replies
            .unwrap_or_else(|cause| indexes.iter().map(|_| CounterReply::Failed(cause)).collect())
    }

    async fn send_charges(
        &self,
        live: &LiveConnection,
        slot: u16,
        places: &[usize],
        way: SendMode,
    ) -> Result<CounterReplies, StoreFailure> {
        let has_refund = places.iter().any(|&place| self.counters[place].is_refund);
        match way {
            SendMode::Script(rule) => self.run_script(live, rule, places, way).await,
            _ if !has_refund => self.send_pipeline(live, slot, places, way).await,
            // Refunds need the script: only it refunds in the order of the charges, and never below
            // zero.
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
            // All commands that are redirected again were sent to the node of the last redirect.
            let at = other.as_deref().unwrap_or(live);
            let next = |piped: &PipelineReply| at.redirect_target(piped.count.as_ref().err()?);
            let Some(RedirectTarget { live, needs_asking: asks }) = answers.iter().find_map(next)
            else {
                break;
            };
            // Send only the redirected commands again. While a slot moves, a node may redirect some
            // commands and run the others.
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
        // The `INCRBY` commands succeeded, so a refused `EXPIRE` is recorded separately.
        match kept {
            Some(error) => at.record_refused_expiry(&error),
            None if lets_go => at.record_accepted_expiry(),
            None => {}
        }
        Ok(replies)
    }

    /// Sends `EXPIRE` again for counters whose slot moved between `INCRBY` and `EXPIRE`; they would
    /// otherwise never expire. A separate task sends it, so no check waits for it, and a canceled
    /// check does not stop it.
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
        count_reply: CommandReply,
        way: SendMode,
    ) -> CounterReply {
        let counted_hits = match count_reply.map(parse_count) {
            Ok(Some(held)) => held,
            Ok(None) => return CounterReply::Failed(StoreFailure::WrongType),
            // Redis does not add hits that overflow the counter. The sum is over every limit.
            Err(error) if error.details().contains("overflow") => EXACT_BOUND,
            Err(error) if error.details().contains("not an integer") => {
                return CounterReply::Failed(StoreFailure::WrongType);
            }
            // The only other error of a single key is `WRONGTYPE`, which has its own class. So
            // `true`: an unclassified error concerns the store.
            Err(error) => return CounterReply::Failed(live.record_error(&error, true)),
        };
        let limit = Hits(u64::from(self.counters[place].window.limit()));
        match way {
            SendMode::Read if limit < Hits(counted_hits).plus(self.hits_through(place)) => {
                CounterReply::OverLimit(counted_hits)
            }
            SendMode::Read | SendMode::ChargeNothing => CounterReply::Skipped(counted_hits),
            SendMode::Charge | SendMode::Script(_) => CounterReply::Charged(counted_hits),
        }
    }

    /// Records success or failure of the call for the connection. An error of a single key is not a
    /// failure.
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
            // A read does not prove that writes succeed, because a read-only node replies to it as
            // well.
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
        let script_reply = live.run_script(script, keys, args).await?;
        let mut replies = parse_script_reply(script_reply, places.len())?;
        for reply in &mut replies {
            // The command added zero hits, so the charge was skipped.
            if let (SendMode::ChargeNothing, CounterReply::Charged(held)) = (way, *reply) {
                *reply = CounterReply::Skipped(held);
            }
        }
        Ok(replies)
    }

    fn script_record(&self, index: usize, send_mode: SendMode) -> [String; 5] {
        let (counter, standing) = (&self.counters[index], self.charges.list[index].standing);
        let group = match standing.group {
            VoteGroup::Enforced => 0,
            VoteGroup::Quota => 1,
            VoteGroup::Unlimited => 2,
        };
        [
            if counter.is_refund { "r" } else { "c" }.to_owned(),
            increment(counter, send_mode).to_string(),
            counter.window.limit().to_string(),
            counter.expiry_secs.to_string(),
            format!("{group}{}", u8::from(standing.shadow)),
        ]
    }
}

impl PipelineReply {
    /// Returns the error if Redis refused `EXPIRE`, so that the counter never expires.
    fn refused_expiry(&self) -> Option<&Error> {
        let expires = self.expiry.as_ref()?.as_ref();
        expires.err().filter(|error| self.count.is_ok() && is_refused(error))
    }

    fn has_expiry(&self) -> bool {
        matches!(self.expiry, Some(Ok(_)))
    }

    /// Returns true if the slot of the counter moved after `INCRBY` and before `EXPIRE`.
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
    /// Returns the SHA-1 of the script, and loads the script into Redis at first use.
    async fn load_script(&self, live: &LiveConnection) -> Result<&str, StoreFailure> {
        if self.script_digest.get().is_none() {
            let digest = live.client().script_load(SCRIPT).await;
            // Even a read-only node loads scripts, so an error concerns the whole store.
            let digest = digest.map_err(|error| match live.record_error(&error, true) {
                // A lost `SCRIPT LOAD` has charged nothing, so the failure is not "connection
                // lost", after which hits may be charged.
                StoreFailure::ConnectionLost => StoreFailure::Unreachable,
                cause => cause,
            })?;
            // Ignore that a concurrent call may have set the digest: it is the same digest.
            drop(self.script_digest.set(digest));
        }
        Ok(self.script_digest.get().map(String::as_str).unwrap_or_default())
    }
}

fn commands_per_charge(send_mode: SendMode, needs_asking: bool) -> usize {
    let own = if send_mode == SendMode::Read { 1 } else { 2 };
    if needs_asking { 2 * own } else { own }
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

fn increment(counter: &CompatCounter, send_mode: SendMode) -> i64 {
    if send_mode == SendMode::ChargeNothing && !counter.is_refund { 0 } else { counter.increment() }
}

fn is_redirect(error: &Error) -> bool {
    // The host only replaces a missing address, and the address is not used here.
    Redirect::parse(error, "").is_some()
}

/// Returns the hits in a counter, 0 for a missing counter, or `None` if the value is not a number.
fn parse_count(value: Value) -> Option<u64> {
    match value {
        Value::Null => Some(0),
        Value::Integer(held) => u64::try_from(held).ok(),
        Value::String(text) => text.parse().ok(),
        Value::Bytes(bytes) => std::str::from_utf8(&bytes).ok()?.parse().ok(),
        _ => None,
    }
}

fn parse_script_reply(reply: Value, charges: usize) -> Result<CounterReplies, StoreFailure> {
    let numbers: Vec<u64> = match reply {
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
