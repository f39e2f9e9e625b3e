//! Engines with a manual clock: their configuration, time and checks.

use std::sync::Arc;

use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::config::action::ActionEffect;
use sluicegate::engine::Engine;
use sluicegate::engine::actions::{ActionError, ActionKind, ActionRequest, AuditEntry, Operator};
use sluicegate::kernel::decision::{Check, Cost, Descriptor, Verdict};
use sluicegate::kernel::units::{Hits, Nanos, Revision};

/// Publishes `descriptors` in domain `d`, with additional `domain_fields`.
pub fn publish(engine: &Engine, domain_fields: &str, descriptors: &str) {
    publish_file(engine, Revision(1), &format!("{domain_fields}descriptors:\n{descriptors}"));
}

/// Publishes `descriptors` in domain `d` under this revision.
pub fn publish_as(engine: &Engine, revision: Revision, descriptors: &str) {
    publish_file(engine, revision, &format!("descriptors:\n{descriptors}"));
}

fn publish_file(engine: &Engine, revision: Revision, fields: &str) {
    let file = format!("domain: d\n{fields}");
    let (config, _) = config::load([("a.yaml", file.as_bytes())], revision, false).unwrap();
    engine.publish(Arc::new(config));
}

pub fn advance_clock(engine: &Engine, by: Nanos) {
    let Clock::Manual(clock) = engine.clock() else { panic!("not a manual clock") };
    clock.advance(by);
}

/// A check with one descriptor per entry.
pub fn check<'a>(entries: &[(&'a str, &'a str)], cost: Cost) -> Check<'a> {
    let descriptor = |entry: &(&'a str, &'a str)| Descriptor {
        entries: [*entry].into_iter().collect(),
        cost,
        limit: None,
    };
    Check { domain: "d", descriptors: entries.iter().map(descriptor).collect() }
}

/// A check of one hit, with one descriptor per entry.
pub fn check_of<'a>(entries: &[(&'a str, &'a str)]) -> Check<'a> {
    check(entries, Cost::Charge(Hits(1)))
}

pub fn check_of_entry<'a>(key: &'a str, value: &'a str) -> Check<'a> {
    check_of(&[(key, value)])
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// A domain and the keys and values of one descriptor.
pub type Target<'a> = (&'a str, &'a [(&'a str, &'a str)]);

fn request((domain, entries): Target<'_>, kind: ActionKind) -> ActionRequest<'_> {
    ActionRequest {
        domain,
        entries,
        kind,
        operator: Operator { name: "alice", reason: "ticket 7" },
    }
}

/// Starts an action of this kind.
pub fn try_act(
    engine: &Engine,
    target: Target<'_>,
    (kind, effect): (ActionKind, ActionEffect),
    duration: Nanos,
) -> Result<AuditEntry, ActionError> {
    engine.start_action(&request(target, kind), effect, duration)
}

/// Forces the decision of the rule that matches the descriptor.
pub fn force(engine: &Engine, target: Target<'_>, verdict: Verdict, duration: Nanos) -> AuditEntry {
    let effect = ActionEffect::Force(verdict);
    try_act(engine, target, (ActionKind::ForceRule, effect), duration).unwrap()
}

pub fn end_forced_decision(engine: &Engine, target: Target<'_>) {
    end_action(engine, target, ActionKind::ForceRule).unwrap();
}

pub fn end_action(
    engine: &Engine,
    target: Target<'_>,
    kind: ActionKind,
) -> Result<AuditEntry, ActionError> {
    engine.end_action(&request(target, kind))
}

/// Allows everything at `engine` for `duration`.
pub fn allow_everything(engine: &Engine, duration: Nanos) {
    let operator = Operator { name: "admin", reason: "ticket 7" };
    let kind = ActionKind::AllowEverything;
    let request = ActionRequest { domain: "", entries: &[], kind, operator };
    engine.start_action(&request, ActionEffect::Force(Verdict::Allow), duration).unwrap();
}
