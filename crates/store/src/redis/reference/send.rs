//! Sends charges under envoyproxy/ratelimit's keys to Redis, in a pipeline or in one script call.
//! A command is sent again only after a redirect, because the redirecting node did not run it.

use std::sync::Arc;

use fred::bytes::Bytes;
use fred::clients::Pipeline;
use fred::error::Error;
use fred::interfaces::KeysInterface as _;
use fred::prelude::Client;
use fred::types::Value;
use tokio::time::timeout;

use super::CompatCounter;
use super::check::{CompatCheck, CounterIndexes, CounterReplies, CounterReply, SendMode};
use crate::StoreFailure;
use crate::kernel::decision::VoteGroup;
use crate::kernel::rate::limit::EXACT_BOUND;
use crate::kernel::units::Hits;
use crate::redis::call_error::{classify_error, is_refused};
use crate::redis::client::CONNECT_TIMEOUT;

use crate::redis::connection::{self, LiveConnection, MAX_REDIRECTS, RedirectTarget, RedisScript};
use crate::redis::redirect::Redirect;
use crate::redis::script::digest_of;

/// The script for checks whose charges are decided atomically (protocol: `reference.lua`).
const SCRIPT: &str = include_str!("../lua/reference.lua");

type CommandReply = Result<Value, Error>;

/// The replies to the commands of one charge: to `INCRBY` or `GET`, and to `EXPIRE` if it was sent.
struct PipelineReply {
    count: CommandReply,
    expiry: Option<CommandReply>,
}

impl CompatCheck<'_> {
    /// Sends the charges at `indexes`, all in one slot, and waits for at most `call_timeout`.
    pub(super) async fn call(
        &self,
        slot: u16,
        indexes: &[usize],
        send_mode: SendMode,
    ) -> CounterReplies {
        let replies = match self.redis.route.connection(slot) {
            Ok(live) => {
                let call = self.send_charges(&live, slot, indexes, send_mode);
                self.redis.route.call_within(self.call_timeout, slot, call).await
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
        indexes: &[usize],
        send_mode: SendMode,
    ) -> Result<CounterReplies, StoreFailure> {
        let has_refund = indexes.iter().any(|&index| self.counters[index].is_refund);
        match send_mode {
            SendMode::Script(mode) => self.run_script(live, mode, indexes, send_mode).await,
            _ if !has_refund => self.send_pipeline(live, slot, indexes, send_mode).await,
            // Only the script refunds in the order of the charges, and never below zero.
            SendMode::Read => self.run_script(live, "n", indexes, send_mode).await,
            SendMode::Charge | SendMode::ChargeNothing => {
                self.run_script(live, "e", indexes, send_mode).await
            }
        }
    }

    async fn send_pipeline(
        &self,
        live: &LiveConnection,
        slot: u16,
        indexes: &[usize],
        send_mode: SendMode,
    ) -> Result<CounterReplies, StoreFailure> {
        let mut replies = self.run_pipeline(live, indexes, send_mode, false).await?;
        let redirected = self.follow_redirects(live, indexes, send_mode, &mut replies).await?;
        let node = redirected.as_deref().unwrap_or(live);
        let refused_expiry = replies.iter().find_map(PipelineReply::refused_expiry).cloned();
        let has_expiry = replies.iter().any(PipelineReply::has_expiry);
        let replies = indexes.iter().zip(replies);
        let replies = replies
            .map(|(&index, reply)| self.counter_reply(node, index, reply.count, send_mode))
            .collect();
        self.update_health(node, slot, send_mode, &replies)?;
        // The `INCRBY` commands succeeded, so a refused `EXPIRE` is recorded separately.
        match refused_expiry {
            Some(error) => node.signals.record_refused_expiry(&error),
            None if has_expiry => node.signals.record_accepted_expiry(),
            None => {}
        }
        Ok(replies)
    }

    /// Sends the redirected commands again, and replaces their replies. Returns the node of the
    /// last redirect.
    async fn follow_redirects(
        &self,
        live: &LiveConnection,
        indexes: &[usize],
        send_mode: SendMode,
        replies: &mut [PipelineReply],
    ) -> Result<Option<Arc<LiveConnection>>, StoreFailure> {
        let mut redirected = None::<Arc<LiveConnection>>;
        for _ in 0..MAX_REDIRECTS {
            // All commands that are redirected again were sent to the node of the last redirect.
            let node = redirected.as_deref().unwrap_or(live);
            let target = |reply: &PipelineReply| node.redirect_target(reply.count.as_ref().err()?);
            let Some(RedirectTarget { live, needs_asking }) = replies.iter().find_map(target)
            else {
                break;
            };
            // Send only the redirected commands again: while a slot moves, a node may redirect some
            // commands and run the others.
            let is_redirected =
                |reply: &PipelineReply| reply.count.as_ref().is_err_and(is_redirect);
            let positions: CounterIndexes =
                (0..indexes.len()).filter(|&position| is_redirected(&replies[position])).collect();
            let repeated: CounterIndexes =
                positions.iter().map(|&position| indexes[position]).collect();
            let new_replies = self.run_pipeline(&live, &repeated, send_mode, needs_asking).await?;
            for (position, reply) in positions.into_iter().zip(new_replies) {
                replies[position] = reply;
            }
            redirected = Some(live);
        }
        Ok(redirected)
    }

    /// Sends `EXPIRE` again for counters whose slot moved between `INCRBY` and `EXPIRE`: they would
    /// never expire. No check waits for this, and a canceled check does not stop it.
    fn resend_expiries<'p>(
        &self,
        live: &LiveConnection,
        split: impl Iterator<Item = (&'p usize, &'p PipelineReply)>,
    ) {
        for (&index, reply) in split {
            let Some(Err(error)) = &reply.expiry else { continue };
            let (target, counter) = (live.redirect_target(error), &self.counters[index]);
            let (key, seconds) = (counter.key.clone(), counter.expiry_secs);
            let resend = async move {
                let mut target = target;
                for _ in 0..MAX_REDIRECTS {
                    let Some(RedirectTarget { live, needs_asking }) = target else { return };
                    let reply = set_expiry(&live, &key, seconds, needs_asking).await;
                    let Err(error) = reply else { return };
                    if is_refused(&error) {
                        return live.signals.record_refused_expiry(&error);
                    }
                    target = live.redirect_target(&error);
                }
            };
            tokio::spawn(timeout(CONNECT_TIMEOUT, resend));
        }
    }

    async fn run_pipeline(
        &self,
        live: &LiveConnection,
        indexes: &[usize],
        send_mode: SendMode,
        needs_asking: bool,
    ) -> Result<Vec<PipelineReply>, StoreFailure> {
        let pipeline = live.client().pipeline();
        for &index in indexes {
            let counter = &self.counters[index];
            let queued = queue_commands(&pipeline, counter, send_mode, needs_asking).await;
            queued.map_err(|error| classify_error(&error))?;
        }
        let values = pipeline.try_all::<Value>().await;
        // The replies to `ASKING`, which precedes each command, are skipped.
        let skipped = usize::from(needs_asking);
        if values.len() != indexes.len() * commands_per_charge(send_mode, needs_asking) {
            let error = values.into_iter().find_map(Result::err);
            return Err(error.map_or(StoreFailure::InvalidReply, |error| classify_error(&error)));
        }
        let mut values = values.into_iter();
        let mut replies = Vec::with_capacity(indexes.len());
        while let Some(count) = values.nth(skipped) {
            let expiry = if send_mode == SendMode::Read { None } else { values.nth(skipped) };
            replies.push(PipelineReply { count, expiry });
        }
        let split = indexes.iter().zip(&replies).filter(|(_, reply)| reply.is_split_by_slot_move());
        self.resend_expiries(live, split);
        Ok(replies)
    }

    fn counter_reply(
        &self,
        live: &LiveConnection,
        index: usize,
        count_reply: CommandReply,
        send_mode: SendMode,
    ) -> CounterReply {
        let hits = match count_reply.map(parse_count) {
            Ok(Some(hits)) => hits,
            Ok(None) => return CounterReply::Failed(StoreFailure::WrongType),
            // Redis does not add hits that overflow the counter; the sum exceeds every limit.
            Err(error) if error.details().contains("overflow") => EXACT_BOUND,
            Err(error) if error.details().contains("not an integer") => {
                return CounterReply::Failed(StoreFailure::WrongType);
            }
            // `WRONGTYPE`, the only other error of a single key, has its own class.
            Err(error) => return CounterReply::Failed(live.signals.record_error(&error, true)),
        };
        let limit = Hits(u64::from(self.counters[index].window.limit()));
        match send_mode {
            SendMode::Read if limit < Hits(hits).plus(self.hits_through(index)) => {
                CounterReply::OverLimit(hits)
            }
            SendMode::Read | SendMode::ChargeNothing => CounterReply::Skipped(hits),
            SendMode::Charge | SendMode::Script(_) => CounterReply::Charged(hits),
        }
    }

    /// Records the result of the call for the connection; an error of a single key is no failure.
    /// Returns an error if every charge failed for a reason other than its own key.
    fn update_health(
        &self,
        live: &LiveConnection,
        slot: u16,
        send_mode: SendMode,
        replies: &CounterReplies,
    ) -> Result<(), StoreFailure> {
        let failure = |reply: &CounterReply| match reply {
            CounterReply::Failed(StoreFailure::WrongType) => None,
            CounterReply::Failed(cause) => Some(*cause),
            _ => None,
        };
        let Some(cause) = replies.iter().find_map(failure) else {
            // A read does not prove that writes succeed: a read-only node replies to it, too.
            if send_mode != SendMode::Read {
                live.signals.record_result(None);
            }
            return Ok(());
        };
        if replies.iter().all(|reply| failure(reply).is_some()) {
            return Err(cause);
        }
        self.redis.route.record_result(slot, Some(cause));
        Ok(())
    }

    async fn run_script(
        &self,
        live: &LiveConnection,
        mode: &str,
        indexes: &[usize],
        send_mode: SendMode,
    ) -> Result<CounterReplies, StoreFailure> {
        let key = |&index: &usize| self.counters[index].key.clone();
        let keys: Vec<Bytes> = indexes.iter().map(key).collect();
        let records = indexes.iter().flat_map(|&index| self.script_record(index, send_mode));
        let args = std::iter::once(mode.to_owned()).chain(records).map(Bytes::from).collect();
        let digest = self.reference.script_digest.get_or_init(|| digest_of(SCRIPT));
        let script = RedisScript { text: SCRIPT, digest: Some(digest), accepts_any_value: true };
        let script_reply = live.run_script(script, keys, args).await?;
        let mut replies = parse_script_reply(script_reply, indexes.len())?;
        for reply in &mut replies {
            // The command added zero hits, so the charge was skipped.
            if let (SendMode::ChargeNothing, CounterReply::Charged(hits)) = (send_mode, *reply) {
                *reply = CounterReply::Skipped(hits);
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
        let expiry = self.expiry.as_ref()?.as_ref();
        expiry.err().filter(|error| self.count.is_ok() && is_refused(error))
    }

    fn has_expiry(&self) -> bool {
        matches!(self.expiry, Some(Ok(_)))
    }

    /// Returns true if the slot of the counter moved after `INCRBY` and before `EXPIRE`.
    fn is_split_by_slot_move(&self) -> bool {
        let is_redirected = |reply: &CommandReply| reply.as_ref().is_err_and(is_redirect);
        self.count.is_ok() && self.expiry.as_ref().is_some_and(is_redirected)
    }
}

async fn set_expiry(
    live: &LiveConnection,
    key: &Bytes,
    seconds: i64,
    needs_asking: bool,
) -> Result<(), Error> {
    let pipeline = live.client().pipeline();
    if needs_asking {
        connection::queue_asking(&pipeline).await?;
    }
    pipeline.expire::<(), _>(key.clone(), seconds, None).await?;
    pipeline.last().await
}

fn commands_per_charge(send_mode: SendMode, needs_asking: bool) -> usize {
    let own = if send_mode == SendMode::Read { 1 } else { 2 };
    if needs_asking { 2 * own } else { own }
}

async fn queue_commands(
    pipeline: &Pipeline<Client>,
    counter: &CompatCounter,
    send_mode: SendMode,
    needs_asking: bool,
) -> Result<(), Error> {
    if needs_asking {
        connection::queue_asking(pipeline).await?;
    }
    if send_mode == SendMode::Read {
        return pipeline.get::<(), _>(counter.key.clone()).await;
    }
    pipeline.incr_by::<(), _>(counter.key.clone(), increment(counter, send_mode)).await?;
    if needs_asking {
        connection::queue_asking(pipeline).await?;
    }
    pipeline.expire(counter.key.clone(), counter.expiry_secs, None).await
}

fn increment(counter: &CompatCounter, send_mode: SendMode) -> i64 {
    if send_mode == SendMode::ChargeNothing && !counter.is_refund { 0 } else { counter.increment() }
}

fn is_redirect(error: &Error) -> bool {
    // The host only replaces a missing address, which is not used here.
    Redirect::parse(error, "").is_some()
}

/// Returns the hits in a counter, 0 for a missing counter, or `None` if the value is not a number.
fn parse_count(value: Value) -> Option<u64> {
    match value {
        Value::Null => Some(0),
        Value::Integer(hits) => u64::try_from(hits).ok(),
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
    let reply = |&[code, hits]: &[u64; 2]| match code {
        0 => Ok(CounterReply::Charged(hits)),
        1 => Ok(CounterReply::Skipped(hits)),
        2 => Ok(CounterReply::OverLimit(hits)),
        3 => Ok(CounterReply::Failed(StoreFailure::WrongType)),
        4 => Ok(CounterReply::Refunded(hits)),
        _ => Err(StoreFailure::InvalidReply),
    };
    pairs.iter().map(reply).collect()
}
