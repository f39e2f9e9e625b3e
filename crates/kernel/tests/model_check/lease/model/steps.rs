//! The steps of the model.

use sluicegate_kernel::lease::balance::{LeaseBalance, SpendResult};
use sluicegate_kernel::lease::{BorrowReply, BorrowRequest, MessageNumber, ReplicaIncarnation};
use sluicegate_kernel::rate::CounterDecision;
use sluicegate_kernel::units::Hits;

use super::{Happens, LeaseModel, LeaseModelFlaw, LeaseModelState, TICK};
use crate::lease::store::Counted;

impl LeaseModel {
    pub(super) fn tick(&self, state: &mut LeaseModelState) {
        let before = state.now;
        state.now = before.plus(TICK);
        for node in &mut state.nodes {
            if node.ledger.expire(state.now) != Hits(0) {
                self.record(Happens::EndedUnspent);
            }
        }
        let out = i64::try_from(state.store.book.outstanding(state.now).0).unwrap();
        let begins = match &self.counted {
            // One hit drains per tick.
            Counted::Gcra(..) => Some((1, true)),
            counted if counted.window(before) == counted.window(state.now) => None,
            _ => Some((0, false)),
        };
        if let Some((earned, goes_on)) = begins {
            let least = |allowed: i64, before: i64| {
                if goes_on { allowed.min(before + earned) } else { allowed }
            };
            state.room = least(self.most() + out, state.room);
            state.plain = least(self.most(), state.plain);
        }
    }

    fn admit(&self, state: &mut LeaseModelState, hits: Hits) {
        let hits = i64::try_from(hits.0).unwrap();
        state.room -= hits;
        state.plain -= hits;
        if state.plain == -self.max_above_limit() {
            self.record(Happens::MaximumAllowed);
        }
    }

    pub(super) fn question(&self, state: &mut LeaseModelState, node: usize, hits: Hits) {
        match state.nodes[node].ledger.spend(state.now, hits) {
            SpendResult::Spent(_) => {
                self.record(Happens::Spent);
                self.admit(state, hits);
            }
            SpendResult::Denied { .. } => self.record(Happens::DeniedHere),
            SpendResult::NeedsStore => {
                let now = state.now;
                self.send(state, node, |ledger, number| ledger.borrow(now, number, hits));
            }
        }
    }

    pub(super) fn send(
        &self,
        state: &mut LeaseModelState,
        node: usize,
        message: impl FnOnce(&mut LeaseBalance, MessageNumber) -> Option<BorrowRequest>,
    ) {
        let node = &mut state.nodes[node];
        if 0 < node.left
            && let Some(borrow) = message(&mut node.ledger, MessageNumber(node.numbers + 1))
        {
            node.numbers += 1;
            node.left -= 1;
            state.asks.insert((node.member, borrow));
        }
        self.drop_ignored_replies(state);
    }

    /// Drops replies that every replica would ignore, to reduce the number of states.
    fn drop_ignored_replies(&self, state: &mut LeaseModelState) {
        let nodes = &state.nodes;
        state.answers.retain(|(member, answer)| {
            let to = nodes.iter().find(|node| node.member == *member && node.lives);
            let last = to.map(|node| MessageNumber(node.numbers));
            last.is_some()
                && (self.flaw == LeaseModelFlaw::OldAnswerTaken || last == Some(answer.number))
        });
    }

    pub(super) fn receive(
        &self,
        state: &mut LeaseModelState,
        member: ReplicaIncarnation,
        mut borrow: BorrowRequest,
    ) {
        let listed = state.store.book.outstanding_of(member, state.now) != Hits(0);
        let again = state.passed.contains(&(member, borrow.number));
        if self.flaw == LeaseModelFlaw::GivenBackTooLate && !listed {
            state.store.counted.refund_blindly(state.now, borrow.returned);
            borrow.returned = Hits(0);
        }
        let Some(answer) = state.store.step(state.now, member, &borrow) else {
            return self.record(Happens::Superseded);
        };
        if borrow.returned != Hits(0) && !again {
            self.record(if listed { Happens::GivenBack } else { Happens::GivenBackInVain });
        }
        self.record(match (answer.decision, answer.granted) {
            (CounterDecision::Deny { .. } | CounterDecision::ExceedsLimit(_), _)
                if borrow.hits != Hits(0) =>
            {
                Happens::DeniedByTheStore
            }
            _ if again => Happens::AnsweredAgain,
            (_, Hits(0)) => Happens::NothingLent,
            (_, granted) if granted < borrow.wanted => Happens::LentInPart,
            _ => Happens::LentInFull,
        });
        let passes = borrow.hits == Hits(0) || matches!(answer.decision, CounterDecision::Allow(_));
        if passes && !again {
            self.admit(state, borrow.hits);
            state.passed.insert((member, borrow.number));
        }
        if !state.answers.contains(&(member, answer)) {
            state.answers.push((member, answer));
        }
        self.drop_ignored_replies(state);
    }

    pub(super) fn settle(
        &self,
        state: &mut LeaseModelState,
        member: ReplicaIncarnation,
        mut reply: BorrowReply,
    ) {
        let Some(node) = state.nodes.iter_mut().find(|node| node.member == member && node.lives)
        else {
            return self.record(Happens::AnswerIgnored);
        };
        match self.flaw {
            LeaseModelFlaw::OldAnswerTaken => reply.number = MessageNumber(node.numbers),
            LeaseModelFlaw::WindowOnMembersClock => reply.valid_for = reply.valid_for.plus(TICK),
            _ => {}
        }
        let before = node.ledger.balance(state.now);
        node.ledger.settle(state.now, &reply);
        if node.ledger.balance(state.now) == before {
            self.record(Happens::AnswerIgnored);
        } else if self.flaw == LeaseModelFlaw::CreditedToEachWaiter {
            self.admit(state, reply.granted);
        }
    }

    pub(super) fn crash(&self, state: &mut LeaseModelState, node: usize) {
        let node = &mut state.nodes[node];
        if node.ledger.balance(state.now) != Hits(0) {
            self.record(Happens::CrashedHolding);
        }
        node.lives = false;
        node.left = 0;
        node.ledger = self.ledger();
        self.drop_ignored_replies(state);
    }
}
