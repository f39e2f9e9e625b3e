//! Buckets with concurrent callers: dropped permits and futures free their capacity.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use sluicegate::clock::Clock;
use sluicegate::engine::concurrency::{
    AcquireError, BucketLoad, ConcurrencyLimits, PermitGuard, PermitRequest,
};
use sluicegate::kernel::concurrency::adaptive::{
    AdaptiveAlgorithm, AdaptiveConfig, AdaptiveTuning,
};
use sluicegate::kernel::concurrency::limiter::{LimiterConfig, QueueConfig};
use sluicegate::kernel::concurrency::{
    OverloadAnswers, ReportedOutcome, RequestOutcome, Requester, RetryAfterRule, UpstreamAnswer,
};
use sluicegate::kernel::units::{Nanos, Revision};
use tokio::runtime::Runtime;

const START: Nanos = Nanos::from_secs(1_000);
const LONG: Nanos = Nanos::from_secs(60);

const fn queued(limit: u32, size: u32) -> LimiterConfig {
    LimiterConfig {
        queue: Some(QueueConfig { size, timeout: LONG }),
        ..LimiterConfig::fixed(limit)
    }
}

const fn request(rules: &LimiterConfig) -> PermitRequest<'_> {
    let revision = Revision(1);
    let (keep, shared) = (None, None);
    PermitRequest {
        by: Requester::ANY,
        bucket: b"shop",
        limit_path: "d.k",
        revision,
        rules,
        permit_lifetime: keep,
        queue_timeout: LONG,
        store_timeout: LONG,
        shared,
    }
}

const fn request_by_revision(revision: u64, rules: &LimiterConfig) -> PermitRequest<'_> {
    PermitRequest { revision: Revision(revision), ..request(rules) }
}

fn manual_clock() -> (Arc<Clock>, ConcurrencyLimits) {
    let clock = Arc::new(Clock::manual(START));
    (Arc::clone(&clock), ConcurrencyLimits::new(clock, 4, 0))
}

fn advance(clock: &Clock, by: Nanos) {
    let Clock::Manual(manual) = clock else { panic!() };
    manual.advance(by);
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn acquire_now(
    admission: &ConcurrencyLimits,
    ask: PermitRequest<'_>,
) -> Result<PermitGuard, AcquireError> {
    match poll(pin!(admission.acquire(ask))) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("it waits"),
    }
}

fn load(admission: &ConcurrencyLimits) -> BucketLoad {
    admission.load(b"shop").unwrap()
}

/// Creating a timer needs a runtime.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// Releases five permits of an AIMD limit of 10 with `reported`, and returns the new limit.
fn limit_after(
    admission: &ConcurrencyLimits,
    rules: &LimiterConfig,
    reported: ReportedOutcome,
) -> u32 {
    let five = std::array::from_fn::<_, 5, _>(|_| acquire_now(admission, request(rules)).unwrap());
    for permit in five {
        assert!(permit.release(reported, Some(LONG)));
    }
    load(admission).limit
}

fn aimd(overloaded_by: OverloadAnswers, retry_after: RetryAfterRule) -> LimiterConfig {
    // A probe of the min RTT would lower the limit for a while.
    let probe_interval = Some(Nanos::from_secs(3_600));
    let tuning = AdaptiveTuning { probe_interval, ..AdaptiveTuning::default() };
    let aimd = AdaptiveConfig::new(AdaptiveAlgorithm::Aimd, 1, 10_000);
    let adaptive = Some(AdaptiveConfig { tuning, ..aimd });
    LimiterConfig { adaptive, overloaded_by, retry_after, ..LimiterConfig::fixed(10) }
}

/// AIMD lowers the limit by a tenth for a drop, and raises it by one for a success.
#[test]
fn the_limits_own_list_decides_the_outcome_of_an_answer() {
    let only_503 = OverloadAnswers::NONE.with_http(503..=503);
    for (overloaded_by, status, limit) in [
        (OverloadAnswers::DEFAULT, 200, 11),
        (OverloadAnswers::DEFAULT, 429, 9),
        (OverloadAnswers::DEFAULT, 500, 9),
        (only_503, 503, 9),
        (only_503, 429, 10),
        (only_503, 500, 10),
        (only_503, 404, 11),
    ] {
        let (_clock, admission) = manual_clock();
        let answer = ReportedOutcome::Answered(UpstreamAnswer::with_http_status(status));
        let rules = aimd(overloaded_by, RetryAfterRule::Ignore);
        assert_eq!(limit_after(&admission, &rules, answer), limit, "{status}");
    }
}

#[test]
fn retry_after_pauses_growth_only_if_honoured_and_only_for_overload() {
    for (rule, status, next) in [
        (RetryAfterRule::Honour, 429, 9),
        (RetryAfterRule::Ignore, 429, 10),
        (RetryAfterRule::Honour, 302, 12),
    ] {
        let (clock, admission) = manual_clock();
        let answer = UpstreamAnswer {
            retry_after: Some(Nanos::from_secs(7)),
            ..UpstreamAnswer::with_http_status(status)
        };
        let rules = aimd(OverloadAnswers::DEFAULT, rule);
        limit_after(&admission, &rules, ReportedOutcome::Answered(answer));
        let success = ReportedOutcome::Known(RequestOutcome::Success);
        // The latency covers the whole pause, so only requests that start after the change count.
        let finish = |rtt| {
            let six = std::array::from_fn::<_, 6, _>(|_| acquire_now(&admission, request(&rules)));
            advance(&clock, rtt);
            for permit in six {
                assert!(permit.unwrap().release(success, None));
            }
            load(&admission).limit
        };
        assert_eq!(finish(Nanos::from_secs(6)), next, "{rule:?} {status}");
        assert_eq!(finish(Nanos::from_secs(6)), next + 1, "{rule:?} {status}: the pause is over");
    }
}

#[test]
fn sixty_four_tasks_use_exactly_the_limit() {
    const CEILING: u32 = 5;
    let runtime = runtime();
    let admission = Arc::new(ConcurrencyLimits::new(Arc::new(Clock::system()), 4, 0));
    let (within, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let task = |_| {
        let (admission, within, most) = (admission.clone(), within.clone(), most.clone());
        runtime.spawn(async move {
            for _ in 0..200 {
                let held = admission.acquire(request(&queued(CEILING, 64))).await.unwrap();
                most.fetch_max(within.fetch_add(1, SeqCst) + 1, SeqCst);
                tokio::task::yield_now().await;
                within.fetch_sub(1, SeqCst);
                assert!(held.release(RequestOutcome::Success, None));
            }
        })
    };
    let tasks: Vec<_> = (0..64).map(task).collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    assert_eq!(most.load(SeqCst), CEILING, "exactly: all of it was used");
    assert_eq!(load(&admission), BucketLoad { in_flight: 0, waiting: 0, limit: CEILING });
}

#[test]
fn a_dropped_permit_is_released() {
    let (_, admission) = manual_clock();
    let rules = LimiterConfig::fixed(1);
    let held = acquire_now(&admission, request(&rules)).unwrap();
    assert_eq!(acquire_now(&admission, request(&rules)).unwrap_err(), AcquireError::Full);
    drop(held);
    assert!(acquire_now(&admission, request(&rules)).is_ok());
}

#[test]
fn a_dropped_future_leaves_the_queue() {
    let (_, admission) = manual_clock();
    let (runtime, rules) = (runtime(), queued(1, 1));
    let _inside = runtime.enter();
    let held = acquire_now(&admission, request(&rules)).unwrap();
    {
        let mut waits = pin!(admission.acquire(request(&rules)));
        assert!(poll(waits.as_mut()).is_pending());
        assert_eq!(acquire_now(&admission, request(&rules)).unwrap_err(), AcquireError::QueueFull);
    }
    assert_eq!(load(&admission).waiting, 0);
    drop(held);
    assert_eq!(load(&admission).in_flight, 0, "no permit went to the one that left");
}

#[test]
fn future_dropped_after_its_wakeup_passes_the_permit_on() {
    let (_, admission) = manual_clock();
    let (runtime, rules) = (runtime(), queued(1, 2));
    let _inside = runtime.enter();
    let held = acquire_now(&admission, request(&rules)).unwrap();
    let mut next = pin!(admission.acquire(request(&rules)));
    {
        let mut first = Box::pin(admission.acquire(request(&rules)));
        assert!(poll(first.as_mut()).is_pending());
        assert!(poll(next.as_mut()).is_pending());
        drop(held);
        assert_eq!(load(&admission), BucketLoad { in_flight: 1, waiting: 1, limit: 1 });
    }
    let Poll::Ready(Ok(passed)) = poll(next.as_mut()) else { panic!("the permit was lost") };
    drop(passed);
    assert_eq!(load(&admission).in_flight, 0);
}

#[test]
fn a_permit_expires_unless_it_is_renewed() {
    let (clock, admission) = manual_clock();
    let rules = LimiterConfig::fixed(2);
    let keep = PermitRequest { permit_lifetime: Some(LONG), ..request(&rules) };
    let (lost, alive) =
        (acquire_now(&admission, keep).unwrap(), acquire_now(&admission, keep).unwrap());
    advance(&clock, Nanos::from_secs(40));
    assert!(alive.renew());
    advance(&clock, Nanos::from_secs(20));
    admission.sweep();
    assert_eq!(load(&admission).in_flight, 1);
    assert!(!lost.release(RequestOutcome::Success, None), "it was taken back before");
    assert!(alive.release(RequestOutcome::Success, None));
    assert_eq!(load(&admission).in_flight, 0);
}

#[test]
fn queued_request_is_denied_at_the_queue_timeout() {
    let (clock, admission) = manual_clock();
    let (runtime, rules) = (runtime(), queued(1, 1));
    let _inside = runtime.enter();
    let _held = acquire_now(&admission, request(&rules)).unwrap();
    let mut waits = pin!(admission.acquire(request(&rules)));
    assert!(poll(waits.as_mut()).is_pending());
    advance(&clock, LONG);
    admission.sweep();
    assert!(matches!(poll(waits.as_mut()), Poll::Ready(Err(AcquireError::QueueTimeout))));
    assert_eq!(load(&admission).waiting, 0);
}

/// A waker that advances the clock by a second.
struct SlowWaker(Arc<Clock>);

impl Wake for SlowWaker {
    fn wake(self: Arc<Self>) {
        advance(&self.0, Nanos::SECOND);
    }
}

#[test]
fn sweep_reads_the_clock_for_each_bucket() {
    let (clock, admission) = manual_clock();
    let (runtime, rules) = (runtime(), queued(1, 1));
    let _inside = runtime.enter();
    let names: [&[u8]; 2] = [b"a", b"b"];
    let keep = Some(LONG.plus(Nanos::SECOND));
    let of =
        |bucket: &'static [u8]| PermitRequest { bucket, permit_lifetime: keep, ..request(&rules) };
    let _held = names.map(|name| acquire_now(&admission, of(name)).unwrap());
    let waker = Waker::from(Arc::new(SlowWaker(Arc::clone(&clock))));
    let mut waits = names.map(|name| Box::pin(admission.acquire(of(name))));
    for waits in &mut waits {
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    advance(&clock, LONG);
    admission.sweep();
    // The wakeup in the first bucket took a second. By then the other permit had expired.
    assert_eq!(admission.totals().in_flight, 1);
}

#[test]
fn raised_limit_and_share_wake_queued_requests() {
    let (_, admission) = manual_clock();
    let (runtime, rules) = (runtime(), queued(1, 2));
    let _inside = runtime.enter();
    let _held = acquire_now(&admission, request(&rules)).unwrap();
    let mut waits = pin!(admission.acquire(request(&rules)));
    assert!(poll(waits.as_mut()).is_pending());
    admission.set_share(b"shop", 1);
    admission.reload_all(Revision(1), |_| Some((queued(2, 2), None)));
    assert!(poll(waits.as_mut()).is_pending(), "the share is still one");
    admission.set_share(b"shop", 2);
    assert!(matches!(poll(waits.as_mut()), Poll::Ready(Ok(_))));
}

#[test]
fn older_revision_does_not_replace_a_newer_limit() {
    let (_, admission) = manual_clock();
    let (old, new) = (LimiterConfig::fixed(3), LimiterConfig::fixed(1));
    let _held = acquire_now(&admission, request_by_revision(2, &new)).unwrap();
    assert_eq!(
        acquire_now(&admission, request_by_revision(1, &old)).unwrap_err(),
        AcquireError::Full
    );
    admission.reload_all(Revision(1), |_| Some((old, None)));
    assert_eq!(load(&admission).limit, 1);
    let _second = acquire_now(&admission, request_by_revision(3, &old)).unwrap();
    assert_eq!(load(&admission).limit, 3);
}

#[test]
fn buckets_are_bounded_and_idle_ones_are_dropped() {
    let (clock, admission) = manual_clock();
    let rules = LimiterConfig::fixed(1);
    let names: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    let mut held: Vec<_> =
        names.map(|name| acquire_now(&admission, request_for(name, &rules)).unwrap()).into();
    assert_eq!(
        acquire_now(&admission, request_for(b"e", &rules)).unwrap_err(),
        AcquireError::TooManyBuckets
    );
    held.truncate(1);
    advance(&clock, Nanos::from_secs(599));
    admission.sweep();
    assert_eq!(admission.bucket_count(), 4, "idle, but not for long");
    advance(&clock, Nanos::from_secs(1));
    admission.sweep();
    assert_eq!(admission.bucket_count(), 1, "the one in use stays");
    assert!(acquire_now(&admission, request_for(b"e", &rules)).is_ok());
}

fn request_for<'a>(bucket: &'a [u8], rules: &'a LimiterConfig) -> PermitRequest<'a> {
    PermitRequest { bucket, ..request(rules) }
}

#[test]
fn new_bucket_evicts_the_longest_idle_one() {
    let (clock, admission) = manual_clock();
    let rules = LimiterConfig::fixed(1);
    let names: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    let [a, b, c, _d] =
        names.map(|name| acquire_now(&admission, request_for(name, &rules)).unwrap());
    for held in [b, c, a] {
        advance(&clock, Nanos::SECOND);
        drop(held);
    }
    let orders: [(&[u8], &[u8]); 3] = [(b"e", b"b"), (b"f", b"c"), (b"g", b"a")];
    let mut held = Vec::new();
    for (added, evicted) in orders {
        assert!(admission.load(evicted).is_some());
        held.push(acquire_now(&admission, request_for(added, &rules)).unwrap());
        assert_eq!((admission.load(evicted), admission.bucket_count()), (None, 4));
    }
    assert_eq!(
        acquire_now(&admission, request_for(b"h", &rules)).unwrap_err(),
        AcquireError::TooManyBuckets
    );
    assert_eq!(admission.load(b"d").unwrap().in_flight, 1, "it was in use all the time");
    assert_eq!(admission.totals().in_flight, 4);
}

#[test]
fn bucket_with_queued_requests_is_not_evicted() {
    let (_, admission) = manual_clock();
    let (runtime, rules) = (runtime(), queued(1, 1));
    let _inside = runtime.enter();
    let names: [&[u8]; 4] = [b"shop", b"b", b"c", b"d"];
    let mut held =
        names.map(|name| Some(acquire_now(&admission, request_for(name, &rules)).unwrap()));
    admission.set_share(b"shop", 0);
    held[0] = None;
    let mut waits = pin!(admission.acquire(request(&rules)));
    assert!(poll(waits.as_mut()).is_pending());
    assert_eq!(load(&admission), BucketLoad { in_flight: 0, waiting: 1, limit: 0 });
    assert_eq!(
        acquire_now(&admission, request_for(b"e", &rules)).unwrap_err(),
        AcquireError::TooManyBuckets
    );
    admission.set_share(b"shop", 1);
    assert!(matches!(poll(waits.as_mut()), Poll::Ready(Ok(_))));
}

#[test]
fn new_bucket_replaces_the_only_idle_one_after_repeated_requests() {
    const MOST: usize = 1_000;
    let admission = ConcurrencyLimits::new(Arc::new(Clock::manual(START)), MOST, 0);
    let rules = LimiterConfig::fixed(1);
    let name = |number: usize| number.to_le_bytes();
    let acquire_by_name = |number| acquire_now(&admission, request_for(&name(number), &rules));
    let mut held: Vec<_> = (0..MOST).map(|number| acquire_by_name(number).unwrap()).collect();
    for idle in [0, 500, 998] {
        drop(held.swap_remove(idle));
        let found = (0..MOST).find_map(|turn| acquire_by_name((idle + 1) * MOST + turn).ok());
        held.push(found.expect("it was never found"));
        assert_eq!(admission.totals().in_flight, 1_000);
        assert_eq!(acquire_by_name(usize::MAX).unwrap_err(), AcquireError::TooManyBuckets);
    }
}

#[test]
fn bucket_names_have_a_memory_bound() {
    const MIB: usize = 1 << 20;
    let (clock, rules) = (Arc::new(Clock::manual(START)), LimiterConfig::fixed(1));
    for (most, bytes) in [(100, MIB), (4_096, 2 * MIB)] {
        let admission = ConcurrencyLimits::new(Arc::clone(&clock), most, 0);
        let acquire_by_name = |first: u8, len: usize| {
            let name: Vec<u8> = [first].into_iter().cycle().take(len).collect();
            acquire_now(&admission, request_for(&name, &rules))
        };
        let sixteenth = bytes / 16;
        let mut held: Vec<_> =
            (0..16).map(|first| acquire_by_name(first, sixteenth).unwrap()).collect();
        assert_eq!(acquire_by_name(99, 1).unwrap_err(), AcquireError::TooManyBuckets);
        held.truncate(15);
        // Evicting the idle bucket frees exactly the bytes of its name.
        held.push(acquire_by_name(16, sixteenth - 1).unwrap());
        held.push(acquire_by_name(99, 1).unwrap());
        assert_eq!(acquire_by_name(98, 1).unwrap_err(), AcquireError::TooManyBuckets);
        assert_eq!(admission.bucket_count(), 17);
        drop(held);
        assert_eq!(acquire_by_name(97, bytes + 1).unwrap_err(), AcquireError::TooManyBuckets);
        assert_eq!(admission.bucket_count(), 17, "for what finds no room in any case nobody goes");
        let all_of_it = (0..17).find_map(|_| acquire_by_name(97, bytes).ok());
        assert!(all_of_it.is_some(), "who asks as often has had all looked at");
        assert_eq!(admission.bucket_count(), 1);
    }
}
