//! Rate limits with a pace: turns by time, turns that are given back, and a provider that answers 429.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | the timer admits nobody, or sleeps too long | `waiting_requests_start_one_by_one_without_any_release` |
//! | the timer stays with a request that left | `another_request_takes_over_the_timer_of_a_canceled_one` |
//! | a turn is not given back | `a_canceled_request_passes_its_turn_to_the_next` |
//! | a drop never gives back a turn, or always | `a_denied_request_gives_back_its_turn` |

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Waker};

use futures_util::future::{join_all, poll_immediate};
use sluicegate::clock::Clock;
use sluicegate::engine::{AdmissionOutcome, DecisionPolicy, Engine, RequestPermits};
use sluicegate::kernel::concurrency::pace::WAKE_DELAY;
use sluicegate::kernel::concurrency::{ReportedOutcome, RequestOutcome, UpstreamAnswer};
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::units::Nanos;
use sluicegate::store::memory::{MemoryStore, WhenFull};

use super::path::engine;
use crate::support::engine::{advance_clock, block_on, check_of, publish};

const HOURLY: &str = "- key: up\n  rate_limit: {requests_per_unit: 1, unit: hour, \
                      wait: {at_most: 2h, queue: 5}}\n- key: closed\n  \
                      rate_limit: {requests_per_unit: 0, unit: second}\n";

type Waiting<'e> = Pin<Box<dyn Future<Output = AdmissionOutcome> + 'e>>;

async fn ask(engine: &Engine, keys: &[&'static str]) -> AdmissionOutcome {
    let entries: Vec<_> = keys.iter().map(|key| (*key, "x")).collect();
    engine.admit(&check_of(&entries), None).await.unwrap()
}

fn permits(outcome: AdmissionOutcome) -> RequestPermits {
    match outcome {
        AdmissionOutcome::Decided(decision, permits) if decision.verdict == Verdict::Allow => {
            permits
        }
        other => panic!("{other:?}"),
    }
}

/// A request for `up` that waits.
fn wait(engine: &Engine) -> Waiting<'_> {
    let mut waiting: Waiting<'_> = Box::pin(ask(engine, &["up"]));
    assert!(is_pending(&mut waiting));
    waiting
}

fn is_pending(waiting: &mut Waiting<'_>) -> bool {
    waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

fn engine_of_the_real_time(descriptors: &str) -> Engine {
    let memory = std::sync::Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [0; 16]));
    let engine = Engine::new(Clock::system(), memory, DecisionPolicy::default());
    let engine = engine.with_max_buckets(100, 0);
    publish(&engine, "", descriptors);
    engine
}

#[test]
fn waiting_requests_start_one_by_one_without_any_release() {
    const REQUESTS: u32 = 60;
    let engine = engine_of_the_real_time(
        "- key: up\n  rate_limit: {requests_per_unit: 500, unit: second, \
         wait: {at_most: 1h, queue: 100}}\n",
    );
    let (order, started_at) = (RefCell::new(Vec::new()), engine.clock().steady());
    let requests = (0..REQUESTS).map(|number| {
        let (engine, order) = (&engine, &order);
        async move {
            let permits = permits(ask(engine, &["up"]).await);
            order.borrow_mut().push(number);
            permits
        }
    });
    let held = block_on(join_all(requests));
    let took = engine.clock().steady().since(started_at);
    let intervals = Nanos(2 * Nanos::MILLI.0 * (u64::from(REQUESTS) - 1));
    assert!(intervals.since(WAKE_DELAY) <= took, "{took:?}");
    assert_eq!(order.into_inner(), (0..REQUESTS).collect::<Vec<_>>());
    let in_flight = engine.concurrency_limits().totals().in_flight;
    assert_eq!((held.len(), in_flight), (60, 60));
}

#[test]
fn another_request_takes_over_the_timer_of_a_canceled_one() {
    let engine = engine_of_the_real_time(
        "- key: up\n  rate_limit: {requests_per_unit: 20, unit: second, \
         wait: {at_most: 1h, queue: 100}}\n",
    );
    block_on(async {
        let _first = permits(ask(&engine, &["up"]).await);
        let (mut timed, mut other) = (wait(&engine), wait(&engine));
        assert!(poll_immediate(&mut timed).await.is_none());
        assert!(poll_immediate(&mut other).await.is_none());
        drop(timed);
        permits(other.await).release(RequestOutcome::Success, None);
    });
}

#[test]
fn a_canceled_request_passes_its_turn_to_the_next() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
    let _context = runtime.enter();
    let engine = engine(HOURLY);
    let _running = permits(block_on_poll(ask(&engine, &["up"])));
    let (granted, mut next) = (wait(&engine), wait(&engine));
    advance_clock(&engine, Nanos::from_secs(3_600));
    engine.concurrency_limits().sweep();
    assert_eq!(engine.concurrency_limits().totals().waiting, 1, "the first one was granted");
    assert!(is_pending(&mut next));
    drop(granted);
    assert!(!is_pending(&mut next));
}

#[test]
fn a_denied_request_gives_back_its_turn() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
    let _context = runtime.enter();
    let engine = engine(HOURLY);
    for _ in 0..3 {
        let denied = block_on_poll(ask(&engine, &["up", "closed"]));
        assert!(matches!(denied, AdmissionOutcome::Decided(it, _) if it.verdict == Verdict::Deny));
    }
    drop(permits(block_on_poll(ask(&engine, &["up"]))));
    drop(wait(&engine));
}

#[test]
fn without_wait_a_request_between_turns_is_rejected_with_429() {
    let engine =
        engine("- key: up\n  rate_limit: {requests_per_unit: 10, unit: second, adaptive: {}}\n");
    let _permits = permits(block_on_poll(ask(&engine, &["up"])));
    let AdmissionOutcome::Rejected(rejection) = block_on_poll(ask(&engine, &["up"])) else {
        panic!()
    };
    assert_eq!((rejection.reject.status, &*rejection.path), (429, "d.up"));
    advance_clock(&engine, Nanos(100 * Nanos::MILLI.0));
    permits(block_on_poll(ask(&engine, &["up"]))).release(RequestOutcome::Success, None);
}

fn block_on_poll<T>(future: impl Future<Output = T>) -> T {
    block_on(async { poll_immediate(future).await.expect("it waits") })
}

/// A provider that serves one request an interval, with a burst of ten, and answers 429 to others.
struct Provider {
    interval: Nanos,
    /// The instant at which the bucket of ten requests is full again.
    full_at: Nanos,
}

impl Provider {
    fn answer(&mut self, now: Nanos) -> u16 {
        let full_at = self.full_at.max(now).plus(self.interval);
        if self.interval.0 * 10 < full_at.since(now).0 {
            return 429;
        }
        self.full_at = full_at;
        200
    }
}

/// Sends requests for `seconds` as fast as the pace allows. Returns the numbers of served and refused
/// ones.
fn call(engine: &Engine, provider: &mut Provider, seconds: u64) -> (u32, u32) {
    let (mut served, mut refused) = (0, 0);
    for _ in 0..seconds * 1_000 {
        advance_clock(engine, Nanos::MILLI);
        let asked = poll_immediate(ask(engine, &["up"]));
        if let Some(AdmissionOutcome::Decided(_, permits)) = block_on(asked) {
            let status = provider.answer(engine.clock().steady());
            *(if status == 200 { &mut served } else { &mut refused }) += 1;
            let answer = ReportedOutcome::Answered(UpstreamAnswer::with_http_status(status));
            assert!(permits.release_all(answer, None));
        }
    }
    (served, refused)
}

#[test]
fn rate_follows_a_provider_whose_rate_changes() {
    let engine = engine(
        "- key: up\n  rate_limit: {requests_per_unit: 10, unit: second, \
         adaptive: {min: 1, max: 500, increase: 2, overloaded_by: [429]}}\n",
    );
    let mut provider = Provider { interval: Nanos(Nanos::SECOND.0 / 50), full_at: Nanos(0) };
    call(&engine, &mut provider, 30);
    for rate in [50, 20, 50] {
        provider.interval = Nanos(Nanos::SECOND.0 / rate);
        call(&engine, &mut provider, 20);
        let (served, refused) = call(&engine, &mut provider, 60);
        // AIMD swings between 0.8 and 1 of the provider's rate, and goes up by 2 in a second.
        let most = u32::try_from(rate * 60).unwrap();
        assert!(most * 8 / 10 <= served, "{served} of {most}");
        assert!(refused * 20 <= served, "{refused} refused, {served} served");
    }
}
