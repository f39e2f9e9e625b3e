//! Tests of an Envoy whose Sluicegate is away for a while.
//!
//! Guarantees:
//! - Leased hits are spent first, and their number is bounded by `max_overshoot`.
//! - The failure rule decides until Sluicegate is back.

use std::time::Duration;

use super::super::envoy::{Envoy, Shipped, WhenDown, configured};
use super::super::{ask, upstream};
use super::yardstick::Yardstick;
use super::{launch, settle};
use crate::support::http1::Reply;
use crate::support::ports;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, now, until};

const MAX_OVERSHOOT: u64 = 100;

/// The longest time until limits apply again, on a machine that is never late.
const RECOVERY_TIME: Duration = Duration::from_secs(2);

/// A recovery needs fewer messages and wake-ups in turn.
const STEPS: u32 = 20;

/// Outages until leased hits are left at the begin of one. A busy machine may borrow late.
const MAX_ATTEMPTS: usize = 10;

struct Scene {
    envoy: Envoy,
    service: Service,
    limits: tempfile::TempDir,
    flags: [String; 2],
}

/// The counters of the filter's decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    by_rule: u64,
    by_failure_rule: u64,
}

impl Scene {
    fn start(when_down: WhenDown) -> Self {
        for_a_day_with_a_minute_left();
        let limits = tempfile::tempdir().unwrap();
        let text = format!(
            "domain: shop\ndescriptors:\n- key: api_key\n  rate_limit: {{unit: day, \
             requests_per_unit: 10000, strategy: fixed_window, mode: leased, max_overshoot: \
             {MAX_OVERSHOOT}}}\n"
        );
        std::fs::write(limits.path().join("shop.yaml"), text).unwrap();
        let flags = ["--listen-grpc-port".to_owned(), ports::free().port().to_string()];
        let service = Service::start(limits.path(), &flags).unwrap();
        let text = configured(Shipped::Module, upstream::start(), &[service.grpc], when_down);
        let envoy = Envoy::launch(text, 0, &launch("1.40"));
        let scene = Self { envoy, service, limits, flags };
        // Enough requests that hits are borrowed ahead.
        until("leased hits", || match scene.ask_and_count().by_rule {
            few if few < 60 => Err(few.to_string()),
            _ => Ok(()),
        })
        .unwrap();
        settle(&scene.envoy);
        scene
    }

    fn ask_and_count(&self) -> Counts {
        ask(self.envoy.ingress, "ann");
        self.counts()
    }

    fn counts(&self) -> Counts {
        let count = |name: &str| self.envoy.counter(&format!("dynamicmodulescustom.{name}"));
        Counts {
            by_rule: count("allowed.rule.shop.api_key"),
            by_failure_rule: count("fallback_allowed") + count("fallback_denied"),
        }
    }

    /// Sends requests until the failure rule decides one. Returns the hits that the rule allowed,
    /// and the status of the failure rule.
    fn spend_leased_hits(&self) -> (u64, u16) {
        let before = self.counts();
        for _ in 0..2 * MAX_OVERSHOOT {
            let reply = ask(self.envoy.ingress, "ann");
            if !is_limited(&reply) {
                let after = self.wait_for_fallbacks(before.by_failure_rule + 1);
                return (after.by_rule - before.by_rule, reply.status);
            }
            assert_eq!(reply.status, 200, "{}", self.envoy.log());
        }
        panic!("no hit is missing: {:?} then {:?}", before, self.counts());
    }

    /// Waits until Envoy has counted this many decisions of the failure rule, or more.
    fn wait_for_fallbacks(&self, count: u64) -> Counts {
        let counted = || match self.counts() {
            counts if counts.by_failure_rule < count => Err(format!("{counts:?}")),
            counts => Ok(counts),
        };
        until("the count of a fallback", counted).unwrap()
    }

    /// Waits until a limit decides, which must be soon after Sluicegate is back. The yardstick are
    /// its replies to another client.
    fn check_recovery(&self) {
        let (back_at, yardstick) = (now(), Yardstick::start(&self.service));
        until("the limits", || {
            let reply = ask(self.envoy.ingress, "ann");
            if is_limited(&reply) { Ok(()) } else { Err(self.envoy.log()) }
        })
        .unwrap();
        let applied_at = now();
        let time = applied_at.duration_since(back_at);
        let slowest = yardstick.stop().slowest((back_at, applied_at));
        let details = format!("{time:?}, with replies of {slowest:?}\n{}", self.envoy.log());
        assert!(time <= RECOVERY_TIME + STEPS * slowest, "{details}");
    }
}

/// Returns `true` if a limit decided, not the failure rule.
fn is_limited(reply: &Reply) -> bool {
    reply.header("ratelimit-policy").is_some()
}

/// Tests outages until one begins with leased hits.
fn check_outage(
    when_down: WhenDown,
    expected: u16,
    begin: impl Fn(&mut Scene),
    end: impl Fn(&mut Scene),
) {
    let has_leased_hits = (0..MAX_ATTEMPTS).any(|_| {
        let mut scene = Scene::start(when_down);
        begin(&mut scene);
        let (spent, status) = scene.spend_leased_hits();
        assert!(spent <= MAX_OVERSHOOT, "{spent}\n{}", scene.envoy.log());
        assert_eq!(status, expected);
        let fallbacks = scene.counts().by_failure_rule;
        for _ in 0..5 {
            assert_eq!(ask(scene.envoy.ingress, "ann").status, expected);
        }
        assert_eq!(scene.wait_for_fallbacks(fallbacks + 5).by_failure_rule, fallbacks + 5);
        end(&mut scene);
        scene.check_recovery();
        0 < spent
    });
    assert!(has_leased_hits, "no outage began with leased hits");
}

fn kill(scene: &mut Scene) {
    scene.service.kill();
}

fn start_again(scene: &mut Scene) {
    let started = until("Sluicegate", || Service::start(scene.limits.path(), &scene.flags));
    scene.service = started.unwrap();
}

fn stop(scene: &mut Scene) {
    scene.service.signal("STOP");
}

fn resume(scene: &mut Scene) {
    scene.service.signal("CONT");
}

#[test]
fn leased_hits_are_spent_then_requests_are_allowed_without_sluicegate() {
    check_outage(WhenDown::Allow, 200, kill, start_again);
}

#[test]
fn leased_hits_are_spent_then_requests_are_denied_without_sluicegate() {
    check_outage(WhenDown::Deny, 503, kill, start_again);
}

#[test]
fn a_frozen_sluicegate_has_the_same_effect_as_none() {
    check_outage(WhenDown::Deny, 503, stop, resume);
}
