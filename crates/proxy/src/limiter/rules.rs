//! Finds the rules of descriptors, and fetches unknown rules from Sluicegate.
//!
//! Guarantees:
//! - Requests that wait for one rule share one call.
//! - Calls have memory within a budget. A call beyond it fails as overloaded.
//!
//! Not covered:
//! - A rule that expires while a request uses it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use sluicegate_lease::clock::Clock;

use crate::call::CallFailure;
use crate::connection::Connection;
use crate::kernel::units::Nanos;
use crate::memory::{MemoryPart, ReservedMemory};
use crate::request::{DescriptorHash, OwnedDescriptor};
use crate::rule::KnownRule;
use crate::rule_table::RuleTable;
use crate::usage::DescriptorUsage;
use crate::wire::api::{RuleRequest, lease_message, proxy_message};
use crate::wire::proxy_rule::proxy_rule;

/// The longest time for which a rule is used after the limits have changed.
const REFRESH_TIME: Nanos = Nanos(500_000_000);

/// The longest wait for a rule. The deadline of a request may be shorter.
const MAX_WAIT: Duration = Duration::from_millis(500);

type RuleReply = Result<Arc<KnownRule>, CallFailure>;
type RuleCall = Shared<BoxFuture<'static, RuleReply>>;

/// The known rules, and the calls for unknown ones.
#[derive(Debug)]
pub(super) struct Rules {
    connection: Arc<Connection>,
    clock: Arc<Clock>,
    table: Arc<RuleTable>,
    calls: Arc<Mutex<HashMap<DescriptorHash, RuleCall>>>,
    memory: Arc<MemoryPart>,
}

/// The validity of a known rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleState {
    /// The rule is in force.
    Current,
    /// The limits have changed just now. The rule is used until the new one arrives.
    Changed,
    /// The rule must be fetched first.
    Expired,
}

impl Rules {
    /// Uses the table of `connection`. Calls reserve their memory in `memory`.
    pub(super) fn new(
        connection: Arc<Connection>,
        clock: Arc<Clock>,
        memory: Arc<MemoryPart>,
    ) -> Self {
        let (table, calls) = (Arc::clone(connection.rules()), Arc::default());
        Self { connection, clock, table, calls, memory }
    }

    /// Forgets the rules without a request since the last call.
    pub(super) fn forget_idle(&self) {
        self.table.age();
    }

    pub(super) fn find(&self, hash: DescriptorHash) -> Option<Arc<KnownRule>> {
        self.table.find(hash)
    }

    pub(super) fn insert(&self, hash: DescriptorHash, rule: Arc<KnownRule>) {
        self.table.insert(hash, rule);
    }

    /// Returns the validity of `rule` at `now`, an instant of the steady clock.
    pub(super) fn state(&self, rule: &KnownRule, now: Nanos) -> RuleState {
        if rule.is_expired(now) {
            return RuleState::Expired;
        }
        let changed_at = if rule.version.is_before(self.connection.limits()) {
            self.connection.limits_changed_at()
        } else {
            match rule.changed_at() {
                None => return RuleState::Current,
                Some(changed_at) => changed_at,
            }
        };
        if now.since(changed_at) < REFRESH_TIME { RuleState::Changed } else { RuleState::Expired }
    }

    /// Fetches the rule of a descriptor. Several requests share one call.
    pub(super) async fn fetch(&self, descriptor: OwnedDescriptor) -> RuleReply {
        let call = match self.calls.lock().entry(descriptor.hash) {
            Entry::Occupied(call) => call.get().clone(),
            Entry::Vacant(place) => {
                let memory = self.memory.reserve_call(descriptor.text_bytes());
                let memory = memory.ok_or(CallFailure::Overloaded)?;
                place.insert(self.call(descriptor, memory).boxed().shared()).clone()
            }
        };
        call.await
    }

    /// The call for a rule. It runs in a task of its own, so that it continues without the request
    /// that began it.
    fn call(
        &self,
        descriptor: OwnedDescriptor,
        memory: ReservedMemory,
    ) -> impl Future<Output = RuleReply> + 'static {
        let (connection, clock) = (Arc::clone(&self.connection), Arc::clone(&self.clock));
        let (table, calls) = (Arc::clone(&self.table), Arc::clone(&self.calls));
        let task = tokio::spawn(async move {
            let _memory = memory;
            let (hash, changes) = (descriptor.hash, table.row_changes());
            let counts = table.find(hash).map(|known| Arc::clone(&known.usage));
            let reply = call_for_rule(&connection, &clock, descriptor, counts).await;
            if let Ok(rule) = &reply {
                table.insert(hash, Arc::clone(rule));
                // A change that arrived during the call may be newer than the reply.
                if table.row_changes() != changes {
                    rule.mark_changed(clock.steady());
                }
            }
            calls.lock().remove(&hash);
            reply
        });
        async move { task.await.unwrap_or(Err(CallFailure::Lost)) }
    }
}

/// Calls for a rule. `counts` are those of the earlier rule of this descriptor.
async fn call_for_rule(
    connection: &Connection,
    clock: &Clock,
    descriptor: OwnedDescriptor,
    counts: Option<Arc<DescriptorUsage>>,
) -> RuleReply {
    let request =
        RuleRequest { domain: descriptor.domain.to_string(), entries: descriptor.entry_messages() };
    // Read before the call: a reply of this session must not count as one of the next session.
    let version = connection.limits();
    let reply = connection.call(proxy_message::Message::Rule(request), MAX_WAIT).await?;
    let lease_message::Message::Rule(reply) = reply else { return Err(CallFailure::InvalidReply) };
    let reply = proxy_rule(&reply).ok_or(CallFailure::InvalidReply)?;
    let descriptor = descriptor.with_short_values(&reply.counter);
    let counts = counts.filter(|counts| counts.descriptor == descriptor);
    let usage = counts.unwrap_or_else(|| Arc::new(DescriptorUsage::new(descriptor)));
    Ok(Arc::new(KnownRule::new(reply, usage, version, clock.steady())))
}
