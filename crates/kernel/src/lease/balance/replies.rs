//! Applies the replies of the store to one lease balance.
//!
//! Guarantees:
//! - A grant joins the balance once, only by the reply to the last message.
//! - A denial is remembered at most for its retry-after.
//! - A denial is ignored if a refund was made after its message was sent.

use super::{LeaseBalance, LeaseDenial, PendingMessage};
use crate::lease::counter::headroom_of;
use crate::lease::history::scaled;
use crate::lease::{BorrowReply, safe_duration};
use crate::rate::{CounterDecision, Headroom, Strategy};
use crate::units::{Hits, Nanos};

/// The number of retries per span of the [`LeaseSizer`](crate::lease::sizer::LeaseSizer), in two cases:
///
/// - after a grant of 0 hits,
/// - after a denial due to outstanding hits, if the strategy counts denied hits.
///
/// Only hits that another replica returns can help then.
const RETRIES_PER_SPAN: u64 = 8;

impl LeaseBalance {
    /// Applies the reply to the last message; ignores any other reply.
    pub fn settle(&mut self, now: Nanos, reply: &BorrowReply) {
        let Some(pending) = self.pending.filter(|pending| pending.number == reply.number) else {
            return;
        };
        self.pending = None;
        self.expire(now);
        self.update_estimates(now, pending, reply);
        if reply.kept < self.total_even_if_expired() {
            self.void_undecided();
        }
        let kept = self.balance.min(reply.kept);
        self.sizer.record_unspent(now, self.balance.less(kept));
        self.balance = kept.plus(reply.granted);
        if reply.granted != Hits(0) {
            self.last_lease = reply.number;
            self.sizer.record_lease(now, reply.granted);
        }
        if self.total_even_if_expired() != Hits(0) {
            self.until = pending.sent.plus(safe_duration(reply.valid_for));
            self.ends_early = reply.valid_for < self.duration;
            self.expire(now);
        }
    }

    fn update_estimates(&mut self, now: Nanos, pending: PendingMessage, reply: &BorrowReply) {
        let round_trip = now.since(pending.sent);
        let faded = Nanos(self.round_trip.0.saturating_sub(self.round_trip.0 / 4));
        self.round_trip = round_trip.max(faded);
        if reply.decision == CounterDecision::OutsideWindows {
            return;
        }
        // The headroom is dated now, although it may be older: a later date gives a later retry,
        // which is safe.
        self.last_headroom = Some((now, headroom_of(reply.decision)));
        self.denial = self.next_denial(now, pending, reply);
        if reply.granted == Hits(0) {
            self.no_refill_before = now.plus(self.retry_interval());
        }
    }

    /// Returns the denial to remember. Of two valid denials, the denial of fewer hits applies to more
    /// checks.
    fn next_denial(
        &self,
        now: Nanos,
        pending: PendingMessage,
        reply: &BorrowReply,
    ) -> Option<LeaseDenial> {
        let previous = self.denial.filter(|denial| pending.sent < denial.until);
        match reply.decision {
            CounterDecision::Deny { .. }
                if self.last_refund.is_some_and(|refunded_at| pending.sent <= refunded_at) =>
            {
                previous
            }
            // Undecided hits that are put back after the message may be enough for the check.
            CounterDecision::Deny { .. } if pending.undecided != Hits(0) => previous,
            CounterDecision::Deny { retry_after, headroom: room } if pending.hits != Hits(0) => {
                let certain_until = pending.sent.plus(certain_denial_time(
                    pending.hits,
                    room,
                    reply.outstanding_elsewhere,
                    retry_after,
                ));
                // Waiting checks use this denial. It stays for at least one round trip, in which no
                // newer reply can arrive.
                let next_reply = now.plus(self.round_trip);
                let recheck_at = if self.counts_denied() {
                    pending.sent.plus(self.retry_interval()).max(next_reply)
                } else {
                    next_reply
                };
                let until = certain_until.max(recheck_at).min(pending.sent.plus(retry_after));
                let denial =
                    LeaseDenial { hits: pending.hits, allowed_at: now.plus(retry_after), until };
                Some(previous.filter(|previous| previous.hits < pending.hits).unwrap_or(denial))
            }
            CounterDecision::Allow(_) => previous.filter(|denial| pending.hits < denial.hits),
            _ => previous,
        }
    }

    const fn retry_interval(&self) -> Nanos {
        Nanos(self.sizer.span().0 / RETRIES_PER_SPAN)
    }

    /// Returns `true` if denied hits are counted, so that each retry uses up returned hits.
    const fn counts_denied(&self) -> bool {
        matches!(self.strategy, Some(Strategy::FixedWindow(_)))
    }
}

/// Returns the time for which a denial is certain, even if other replicas return all outstanding
/// hits: the limit must first free the other missing hits. The 1 is subtracted because `remaining`
/// is rounded down by almost one hit.
///
/// | hits | remaining | outstanding elsewhere | wait | certain for |
/// |---|---|---|---|---|
/// | 64 | 23 | 10 | 410 ms | ⌊410·(41 − 10 − 1)/41⌋ = 300 ms |
/// | 1 | 0 | 1 | any | 0 |
fn certain_denial_time(
    hits: Hits,
    room: Headroom,
    outstanding_elsewhere: Hits,
    retry_after: Nanos,
) -> Nanos {
    if outstanding_elsewhere == Hits(0) {
        return retry_after;
    }
    let missing = hits.less(room.remaining);
    let beyond = missing.less(outstanding_elsewhere).less(Hits(1));
    Nanos(scaled(retry_after.0, beyond.0, missing.0))
}
