//! Properties of every rate limit strategy.

use proptest::prelude::*;
use sluicegate_kernel::rate::{CounterDecision, Strategy};
use sluicegate_kernel::units::{Hits, Nanos};

use super::traffic::{
    Client, Limit, Trace, cases, charging_fixed_windows, charging_gcras, charging_sliding_logs,
    charging_sliding_windows, fixed_windows, gcras, headroom, is_allowed, sliding_logs,
    sliding_windows, traces,
};

type Outcome = Result<(), TestCaseError>;

/// Replays a trace and verifies `property` at each check.
fn at_every_step<L: Limit>(
    limit: L,
    trace: &Trace,
    mut property: impl FnMut(&L::State, &L::State, Nanos, Hits, CounterDecision) -> Outcome,
) -> Outcome {
    let (mut state, mut client) = (L::State::default(), Client::new());
    for check in trace {
        let hits = client.next(&limit, &state, *check);
        let before = state.clone();
        let step = limit.step(&mut state, client.now, hits);
        property(&before, &state, client.now, hits, step)?;
        client.observe(step);
    }
    Ok(())
}

/// Verifies that both counter states decide all checks of trace `t` alike, from `now` on.
fn same_future<L: Limit>(limit: L, a: &L::State, b: &L::State, now: Nanos, t: &Trace) -> Outcome {
    let (mut a, mut b, mut client) = (a.clone(), b.clone(), Client::new());
    client.now = now;
    for check in t {
        let hits = client.next(&limit, &a, *check);
        let (step_a, step_b) =
            (limit.step(&mut a, client.now, hits), limit.step(&mut b, client.now, hits));
        prop_assert_eq!(step_a, step_b);
        client.observe(step_a);
    }
    Ok(())
}

fn peek_matches_step<L: Limit>(limit: L, trace: &Trace, clock_step_back: u64) -> Outcome {
    at_every_step(limit, trace, |before, after, now, hits, step| {
        prop_assert_eq!(limit.ask(before, now, hits), step);
        // The clock may also have stepped back before the peek.
        let earlier = Nanos(now.0.saturating_sub(clock_step_back));
        let mut state = after.clone();
        let peeked = limit.ask(&state, earlier, hits);
        prop_assert_eq!(peeked, limit.step(&mut state, earlier, hits));
        Ok(())
    })
}

fn retry_is_exact<L: Limit>(limit: L, trace: &Trace) -> Outcome {
    at_every_step(limit, trace, |_, after, now, hits, step| {
        let CounterDecision::Deny { retry_after, .. } = step else { return Ok(()) };
        let tick = limit.tick().size();
        prop_assert!(tick <= retry_after);
        let sooner = now.plus(Nanos(retry_after.0 - tick.0));
        let early = limit.ask(after, sooner, hits);
        prop_assert!(!is_allowed(early), "{:?}", early);
        prop_assert!(is_allowed(limit.ask(after, now.plus(retry_after), hits)));
        Ok(())
    })
}

fn remaining_is_exact<L: Limit>(limit: L, trace: &Trace) -> Outcome {
    at_every_step(limit, trace, |_, after, now, _, step| {
        let remaining = headroom(step).unwrap().remaining;
        if remaining.0 != 0 {
            prop_assert!(is_allowed(limit.ask(after, now, remaining)));
        }
        prop_assert!(!is_allowed(limit.ask(after, now, remaining.plus(Hits(1)))));
        Ok(())
    })
}

fn exceeds_limit_is_exact<L: Limit>(limit: L, trace: &Trace) -> Outcome {
    at_every_step(limit, trace, |_, _, _, hits, step| {
        prop_assert_eq!(matches!(step, CounterDecision::ExceedsLimit(_)), limit.most() < hits.0);
        Ok(())
    })
}

fn idle_allows_maximum<L: Limit>(limit: L, start: u64, chunks: u64) -> Outcome {
    let (mut state, now) = (L::State::default(), Nanos(start));
    let chunk = Hits(limit.most().div_ceil(chunks).max(1));
    let fit = limit.most() / chunk.0;
    for _ in 0..fit {
        prop_assert!(is_allowed(limit.step(&mut state, now, chunk)));
    }
    // The remaining hits of the maximum are allowed, and one more hit is denied.
    let rest = Hits(limit.most() % chunk.0);
    prop_assert!(rest.0 == 0 || is_allowed(limit.ask(&state, now, rest)));
    prop_assert!(!is_allowed(limit.ask(&state, now, rest.plus(Hits(1)))));
    Ok(())
}

fn peek_is_free<L: Limit>(limit: L, trace: &Trace, rest: &Trace) -> Outcome {
    at_every_step(limit, trace, |_, after, now, _, _| {
        let mut peeked = after.clone();
        limit.step(&mut peeked, now, Hits(0));
        same_future(limit, after, &peeked, now, rest)
    })
}

fn idle_equals_new<L: Limit>(limit: L, trace: &Trace, rest: &Trace) -> Outcome {
    at_every_step(limit, trace, |before, after, now, _, _| {
        if limit.rested(before, now) {
            same_future(limit, before, &L::State::default(), now, rest)?;
        }
        let Some(room) = headroom(limit.ask(after, now, Hits(0))) else { return Ok(()) };
        prop_assert!(limit.rested(after, now.plus(room.reset_after)));
        if limit.rested(after, now) {
            return Ok(());
        }
        let tick = limit.tick().size();
        prop_assert!(tick <= room.reset_after);
        prop_assert!(!limit.rested(after, now.plus(Nanos(room.reset_after.0 - tick.0))));
        Ok(())
    })
}

/// Headroom projected from an earlier decision is a lower bound without other traffic.
/// It is exact once the counter is idle.
fn projection_is_a_lower_bound<L: Limit>(limit: L, trace: &Trace, shares: &[u16]) -> Outcome {
    at_every_step(limit, trace, |_, after, now, _, step| {
        let Some(before) = headroom(step) else { return Ok(()) };
        let spans = shares.iter().map(|share| {
            let span = u128::from(limit.span().0) * u128::from(*share) / 1_000;
            Nanos(u64::try_from(span).unwrap())
        });
        // Instants around `reset_after` and clock ticks are the edge cases.
        let reset = before.reset_after;
        let edges = [reset.since(Nanos(1)), reset, reset.since(Nanos::MICRO), reset.plus(Nanos(1))];
        for later in spans.chain(edges).map(|span| now.plus(span)) {
            let Some(actual) = headroom(limit.ask(after, later, Hits(0))) else { continue };
            let projected = limit.strategy().project(before, now, later);
            prop_assert!(projected.remaining <= actual.remaining, "{projected:?}, {actual:?}");
            prop_assert!(before.remaining <= projected.remaining, "{projected:?}");
            let tick = limit.tick().size();
            prop_assert!(
                actual.reset_after.0.abs_diff(projected.reset_after.0) <= tick.0,
                "{projected:?}, {actual:?}"
            );
            if before.reset_after <= later.since(now) {
                prop_assert_eq!(projected.remaining, actual.remaining);
            }
        }
        Ok(())
    })
}

/// A wait computed from the headroom suffices without other traffic.
/// For GCRA and fixed windows it is less than two ticks too long.
fn projected_wait_suffices<L: Limit>(limit: L, trace: &Trace, shares: &[u16]) -> Outcome {
    at_every_step(limit, trace, |_, after, now, _, step| {
        let Some(left) = headroom(step) else { return Ok(()) };
        let most = limit.most();
        let some = shares.iter().map(|share| u128::from(most) * u128::from(*share) / 3_000);
        let some = some.map(|hits| u64::try_from(hits).unwrap());
        for hits in some.chain([1, left.remaining.0 + 1, most, most + 1]).filter(|hits| 0 < *hits) {
            let (strategy, passes) =
                (limit.strategy(), |at| is_allowed(limit.ask(after, at, Hits(hits))));
            let Some(wait) = strategy.time_until_allowed(left, Hits(hits)) else {
                prop_assert!(most < hits, "{hits}");
                continue;
            };
            prop_assert!(hits <= most && passes(now.plus(wait)), "{hits} in {wait}");
            let is_exact = matches!(strategy, Strategy::Gcra(_) | Strategy::FixedWindow(_));
            let two_ticks = Nanos(2 * limit.tick().size().0);
            if is_exact && two_ticks <= wait {
                prop_assert!(!passes(now.plus(wait.since(two_ticks))), "{hits} before {wait}");
            }
        }
        Ok(())
    })
}

/// A refund at the instant of the charge restores the headroom.
/// A larger refund leaves at most an idle counter.
fn refund_undoes<L: Limit>(limit: L, trace: &Trace) -> Outcome {
    at_every_step(limit, trace, |before, after, now, hits, step| {
        let (mut undone, mut emptied) = (after.clone(), after.clone());
        let refunded = limit.refund(&mut undone, now, hits);
        prop_assert_eq!(headroom(limit.ask(&undone, now, Hits(0))), headroom(refunded));
        if is_allowed(step) {
            prop_assert_eq!(headroom(refunded), headroom(limit.ask(before, now, Hits(0))));
        }
        let room = headroom(limit.refund(&mut emptied, now, Hits(u64::MAX))).unwrap();
        prop_assert!(room.remaining.0 <= limit.most());
        Ok(())
    })
}

/// After any clock jump, peek and charge agree and the counter is empty at `reset_after`.
fn clock_jumps_are_safe<L: Limit>(limit: L, trace: &Trace, jumps: &[i64]) -> Outcome {
    let (mut state, mut client) = (L::State::default(), Client::new());
    for (check, jump) in trace.iter().zip(jumps.iter().cycle()) {
        let hits = client.next(&limit, &state, *check);
        client.now = Nanos(client.now.0.saturating_add_signed(*jump));
        let (peeked, mut copy) = (limit.ask(&state, client.now, hits), state.clone());
        prop_assert_eq!(peeked, limit.step(&mut copy, client.now, hits));
        client.observe(limit.step(&mut state, client.now, hits));
        let room = headroom(limit.ask(&state, client.now, Hits(0))).unwrap();
        prop_assert!(limit.rested(&state, client.now.plus(room.reset_after)));
    }
    Ok(())
}

macro_rules! laws {
    ($strategy:ident, $limits:expr) => {
        mod $strategy {
            use super::*;

            proptest! {
                #![proptest_config(cases(256))]

                #[test]
                fn a_peek_predicts_the_charge(
                    limit in $limits, trace in traces(), back in 0..100_000_000_000_u64,
                ) {
                    peek_matches_step(limit, &trace, back)?;
                }

                #[test]
                fn a_denied_client_succeeds_exactly_at_retry_after(
                    limit in $limits, trace in traces(),
                ) {
                    retry_is_exact(limit, &trace)?;
                }

                #[test]
                fn exactly_the_remaining_hits_are_allowed(
                    limit in $limits, trace in traces(),
                ) {
                    remaining_is_exact(limit, &trace)?;
                }

                #[test]
                fn only_checks_above_the_maximum_can_never_pass(
                    limit in $limits, trace in traces(),
                ) {
                    exceeds_limit_is_exact(limit, &trace)?;
                }

                #[test]
                fn an_idle_counter_allows_exactly_its_maximum(
                    limit in $limits, at in 0..=4_000_000_000_000_000_000_u64, chunks in 1..20_u64,
                ) {
                    idle_allows_maximum(limit, at, chunks)?;
                }

                #[test]
                fn a_check_of_zero_hits_charges_nothing(
                    limit in $limits, trace in traces(), rest in traces(),
                ) {
                    peek_is_free(limit, &trace, &rest)?;
                }

                #[test]
                fn a_counter_is_empty_exactly_at_reset_after(
                    limit in $limits, trace in traces(), rest in traces(),
                ) {
                    idle_equals_new(limit, &trace, &rest)?;
                }

                #[test]
                fn a_refund_undoes_the_charge_up_to_the_limit(
                    limit in $limits, trace in traces(),
                ) {
                    refund_undoes(limit, &trace)?;
                }

                #[test]
                fn projected_headroom_never_exceeds_the_counter(
                    limit in $limits,
                    trace in traces(),
                    shares in prop::collection::vec(0..3_000_u16, 1..5),
                ) {
                    projection_is_a_lower_bound(limit, &trace, &shares)?;
                }

                #[test]
                fn projected_wait_is_long_enough(
                    limit in $limits,
                    trace in traces(),
                    shares in prop::collection::vec(0..3_000_u16, 1..5),
                ) {
                    projected_wait_suffices(limit, &trace, &shares)?;
                }

                #[test]
                fn clock_jumps_keep_decisions_and_resets_consistent(
                    limit in $limits,
                    trace in traces(),
                    jumps in prop::collection::vec(-200_000_000_000_i64..100_000_000_000, 1..5),
                ) {
                    clock_jumps_are_safe(limit, &trace, &jumps)?;
                }
            }
        }
    };
}

laws!(gcra, gcras());
laws!(fixed_window, fixed_windows());
laws!(sliding_window, sliding_windows());
laws!(sliding_log, sliding_logs());
laws!(charging_gcra, charging_gcras());
laws!(charging_fixed_window, charging_fixed_windows());
laws!(charging_sliding_window, charging_sliding_windows());
laws!(charging_sliding_log, charging_sliding_logs());
