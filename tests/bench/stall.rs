//! A stall of the server is in the percentiles of an open loop, and hidden in those of a closed one.

use sluicegate::bench::{AnswerCode, CheckTimes, LatencyHistogram, SendSchedule, StepTally};
use sluicegate::kernel::units::Nanos;

const STEP: SendSchedule = SendSchedule { rate: 1_000, duration: Nanos::from_secs(10) };
const SERVICE_TIME: u64 = 10_000;
/// From 5 s to 6 s, the server replies to nothing.
const STALL: (u64, u64) = (5_000_000_000, 6_000_000_000);

/// The reply time of a check that arrives at `sent`.
fn replied(sent: Nanos) -> Nanos {
    let is_stalled = STALL.0 <= sent.0 && sent.0 < STALL.1;
    Nanos(if is_stalled { STALL.1 } else { sent.0 } + SERVICE_TIME)
}

fn open_loop() -> StepTally {
    let mut tally = StepTally::default();
    for scheduled in (0..STEP.count()).map(|index| STEP.send_time(index)) {
        let times = CheckTimes { scheduled, sent: scheduled, replied: replied(scheduled) };
        tally.record(AnswerCode::Allow, times);
    }
    tally
}

/// The latencies of one client that waits for each reply, and keeps the rate otherwise.
fn closed_loop() -> LatencyHistogram {
    let (mut latencies, mut now) = (LatencyHistogram::default(), Nanos(0));
    while now < STEP.duration {
        let reply = replied(now);
        latencies.record(reply.since(now));
        now = reply.max(now.plus(Nanos(Nanos::SECOND.0 / u64::from(STEP.rate))));
    }
    latencies
}

/// Of all checks, one tenth falls into the stall and waits for 1 s to 0 s, evenly. So p99 is the
/// wait of the 100th of 10,000: 0.9 s; and p95 that of the 500th: 0.5 s.
#[test]
fn a_stall_of_one_second_is_in_the_percentiles() {
    let open = open_loop().latency;
    for (millionths, expected_ms) in [(950_000, 500), (990_000, 900), (999_000, 990)] {
        let found_ms = open.quantile(millionths).0 / Nanos::MILLI.0;
        // A send interval less, or a bucket of the histogram more.
        let range = expected_ms - 1..expected_ms + expected_ms / 128 + 2;
        assert!(range.contains(&found_ms), "{millionths}: {found_ms} ms");
    }
    let closed = closed_loop();
    assert!(closed.quantile(999_000).0 <= 2 * SERVICE_TIME, "{:?}", closed.quantile(999_000));
    assert_eq!(closed.max().0, Nanos::SECOND.0 + SERVICE_TIME);
}

#[test]
fn a_late_send_is_part_of_the_latency() {
    let mut tally = StepTally::default();
    let times = CheckTimes { scheduled: Nanos(100), sent: Nanos(150), replied: Nanos(170) };
    tally.record(AnswerCode::Deny, times);
    tally.record_not_sent(Nanos(200));
    assert_eq!((tally.latency.quantile(1), tally.latency.max()), (Nanos(70), Nanos(200)));
    assert_eq!((tally.send_delay.max(), tally.not_sent, tally.sent()), (Nanos(50), 1, 1));
}

/// A refused connection fails at once. It must not make a service look fast.
#[test]
fn failures_do_not_lower_the_percentiles() {
    let mut tally = StepTally::default();
    let at = |replied| CheckTimes { scheduled: Nanos(0), sent: Nanos(0), replied: Nanos(replied) };
    tally.record(AnswerCode::Allow, at(200));
    for _ in 0..100 {
        tally.record(AnswerCode::TransportError, at(1));
        tally.record(AnswerCode::Grpc(14), at(1));
    }
    assert_eq!((tally.latency.quantile(500_000), tally.decisions()), (Nanos(200), 1));
    tally.record(AnswerCode::Timeout, at(210));
    assert_eq!((tally.latency.max(), tally.latency.count()), (Nanos(210), 2));
}
