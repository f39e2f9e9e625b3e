//! What holds for every strategy.

use proptest::prelude::*;
use sluicegate::kernel::rate::{Step, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};

use super::traffic::{
    Client, Limit, Trace, cases, fixed_windows, gcras, is_admitted, room, sliding_logs,
    sliding_windows, traces,
};

type Outcome = Result<(), TestCaseError>;

/// Plays a trace and holds `law` against the state before, the question and the answer.
fn at_every_step<L: Limit>(
    limit: L,
    trace: &Trace,
    mut law: impl FnMut(&L::State, &L::State, Nanos, Hits, Step) -> Outcome,
) -> Outcome {
    let (mut state, mut client) = (L::State::default(), Client::new());
    for question in trace {
        let hits = client.next(&limit, &state, *question);
        let before = state.clone();
        let step = limit.step(&mut state, client.now, hits);
        law(&before, &state, client.now, hits, step)?;
        client.hear(step);
    }
    Ok(())
}

/// `other` answers the rest of a trace, from `now` on, as `state` does.
fn same_future<L: Limit>(limit: L, a: &L::State, b: &L::State, now: Nanos, t: &Trace) -> Outcome {
    let (mut a, mut b, mut client) = (a.clone(), b.clone(), Client::new());
    client.now = now;
    for question in t {
        let hits = client.next(&limit, &a, *question);
        let (step_a, step_b) =
            (limit.step(&mut a, client.now, hits), limit.step(&mut b, client.now, hits));
        prop_assert_eq!(step_a, step_b);
        client.hear(step_a);
    }
    Ok(())
}

fn ask_is_step<L: Limit>(limit: L, trace: &Trace, back: u64) -> Outcome {
    at_every_step(limit, trace, |before, after, now, hits, step| {
        prop_assert_eq!(limit.ask(before, now, hits), step);
        // The same at an instant the clock stepped back to.
        let earlier = Nanos(now.0.saturating_sub(back));
        let mut state = after.clone();
        let asked = limit.ask(&state, earlier, hits);
        prop_assert_eq!(asked, limit.step(&mut state, earlier, hits));
        Ok(())
    })
}

fn retry_is_exact<L: Limit>(limit: L, trace: &Trace) -> Outcome {
    at_every_step(limit, trace, |_, after, now, hits, step| {
        let Step::Deny { retry_after, .. } = step else { return Ok(()) };
        let tick = limit.tick().size();
        prop_assert!(tick <= retry_after);
        let sooner = now.plus(Nanos(retry_after.0 - tick.0));
        let early = limit.ask(after, sooner, hits);
        prop_assert!(!is_admitted(early), "{:?}", early);
        prop_assert!(is_admitted(limit.ask(after, now.plus(retry_after), hits)));
        Ok(())
    })
}

fn remaining_is_exact<L: Limit>(limit: L, trace: &Trace) -> Outcome {
    at_every_step(limit, trace, |_, after, now, _, step| {
        let remaining = room(step).unwrap().remaining;
        if remaining.0 != 0 {
            prop_assert!(is_admitted(limit.ask(after, now, remaining)));
        }
        prop_assert!(!is_admitted(limit.ask(after, now, remaining.plus(Hits(1)))));
        Ok(())
    })
}

fn never_is_exact<L: Limit>(limit: L, trace: &Trace) -> Outcome {
    at_every_step(limit, trace, |_, _, _, hits, step| {
        prop_assert_eq!(matches!(step, Step::Never(_)), limit.most() < hits.0);
        Ok(())
    })
}

fn all_at_once<L: Limit>(limit: L, at: u64, chunks: u64) -> Outcome {
    let (mut state, now) = (L::State::default(), Nanos(at));
    let chunk = Hits(limit.most().div_ceil(chunks).max(1));
    let fit = limit.most() / chunk.0;
    for _ in 0..fit {
        prop_assert!(is_admitted(limit.step(&mut state, now, chunk)));
    }
    // What is left of the most would pass too, and not one more.
    let rest = Hits(limit.most() % chunk.0);
    prop_assert!(rest.0 == 0 || is_admitted(limit.ask(&state, now, rest)));
    prop_assert!(!is_admitted(limit.ask(&state, now, rest.plus(Hits(1)))));
    Ok(())
}

fn peek_is_free<L: Limit>(limit: L, trace: &Trace, rest: &Trace) -> Outcome {
    at_every_step(limit, trace, |_, after, now, _, _| {
        let mut peeked = after.clone();
        limit.step(&mut peeked, now, Hits(0));
        same_future(limit, after, &peeked, now, rest)
    })
}

fn rested_is_never_seen<L: Limit>(limit: L, trace: &Trace, rest: &Trace) -> Outcome {
    at_every_step(limit, trace, |before, after, now, _, _| {
        if limit.rested(before, now) {
            same_future(limit, before, &L::State::default(), now, rest)?;
        }
        let Some(room) = room(limit.ask(after, now, Hits(0))) else { return Ok(()) };
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

/// What was left is enough to say what is left later: never more than the counter says if nobody came, and
/// the same from when it is at rest.
fn later_is_known<L: Limit>(limit: L, trace: &Trace, shares: &[u16]) -> Outcome {
    at_every_step(limit, trace, |_, after, now, _, step| {
        let Some(before) = room(step) else { return Ok(()) };
        let spans = shares.iter().map(|share| {
            let span = u128::from(limit.span().0) * u128::from(*share) / 1_000;
            Nanos(u64::try_from(span).unwrap())
        });
        // And just before and after what it said itself: its clock ticks, and the instants between do not.
        let reset = before.reset_after;
        let edges = [reset.since(Nanos(1)), reset, reset.since(Nanos::MICRO), reset.plus(Nanos(1))];
        for later in spans.chain(edges).map(|span| now.plus(span)) {
            let Some(is) = room(limit.ask(after, later, Hits(0))) else { continue };
            let said = limit.strategy().later(before, now, later);
            prop_assert!(said.remaining <= is.remaining, "{said:?}, {is:?}");
            prop_assert!(before.remaining <= said.remaining, "{said:?}");
            let tick = limit.tick().size();
            prop_assert!(
                is.reset_after.0.abs_diff(said.reset_after.0) <= tick.0,
                "{said:?}, {is:?}"
            );
            if before.reset_after <= later.since(now) {
                prop_assert_eq!(said.remaining, is.remaining);
            }
        }
        Ok(())
    })
}

/// What was left is enough to say when hits pass: then they do, if nobody came; and where that is exact, not two ticks sooner.
fn passing_is_known<L: Limit>(limit: L, trace: &Trace, shares: &[u16]) -> Outcome {
    at_every_step(limit, trace, |_, after, now, _, step| {
        let Some(left) = room(step) else { return Ok(()) };
        let most = limit.most();
        let some = shares.iter().map(|share| u128::from(most) * u128::from(*share) / 3_000);
        let some = some.map(|hits| u64::try_from(hits).unwrap());
        for hits in some.chain([1, left.remaining.0 + 1, most, most + 1]).filter(|hits| 0 < *hits) {
            let (strategy, passes) =
                (limit.strategy(), |at| is_admitted(limit.ask(after, at, Hits(hits))));
            let Some(wait) = strategy.passes_in(left, Hits(hits)) else {
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

/// A refund at the instant of the charge leaves what was left before; one of more than was
/// charged leaves no more than a counter at rest has.
fn refund_undoes<L: Limit>(limit: L, trace: &Trace) -> Outcome {
    at_every_step(limit, trace, |before, after, now, hits, step| {
        let (mut undone, mut emptied) = (after.clone(), after.clone());
        let refunded = limit.refund(&mut undone, now, hits);
        prop_assert_eq!(room(limit.ask(&undone, now, Hits(0))), room(refunded));
        if is_admitted(step) {
            prop_assert_eq!(room(refunded), room(limit.ask(before, now, Hits(0))));
        }
        let room = room(limit.refund(&mut emptied, now, Hits(u64::MAX))).unwrap();
        prop_assert!(room.remaining.0 <= limit.most());
        Ok(())
    })
}

/// Whatever the clock does, no verdict is lost and, once the clock goes on, the counter rests.
fn clock_may_jump<L: Limit>(limit: L, trace: &Trace, jumps: &[i64]) -> Outcome {
    let (mut state, mut client) = (L::State::default(), Client::new());
    for (question, jump) in trace.iter().zip(jumps.iter().cycle()) {
        let hits = client.next(&limit, &state, *question);
        client.now = Nanos(client.now.0.saturating_add_signed(*jump));
        let (asked, mut copy) = (limit.ask(&state, client.now, hits), state.clone());
        prop_assert_eq!(asked, limit.step(&mut copy, client.now, hits));
        client.hear(limit.step(&mut state, client.now, hits));
        let room = room(limit.ask(&state, client.now, Hits(0))).unwrap();
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
                fn ask_answers_what_step_answers(
                    limit in $limits, trace in traces(), back in 0..100_000_000_000_u64,
                ) {
                    ask_is_step(limit, &trace, back)?;
                }

                #[test]
                fn a_denied_client_is_admitted_at_retry_after_and_not_a_tick_sooner(
                    limit in $limits, trace in traces(),
                ) {
                    retry_is_exact(limit, &trace)?;
                }

                #[test]
                fn what_remains_passes_and_one_more_does_not(
                    limit in $limits, trace in traces(),
                ) {
                    remaining_is_exact(limit, &trace)?;
                }

                #[test]
                fn never_means_more_than_a_rested_counter_admits(
                    limit in $limits, trace in traces(),
                ) {
                    never_is_exact(limit, &trace)?;
                }

                #[test]
                fn a_rested_counter_admits_exactly_its_most_at_one_instant(
                    limit in $limits, at in 0..=4_000_000_000_000_000_000_u64, chunks in 1..20_u64,
                ) {
                    all_at_once(limit, at, chunks)?;
                }

                #[test]
                fn a_question_of_no_hits_charges_nothing(
                    limit in $limits, trace in traces(), rest in traces(),
                ) {
                    peek_is_free(limit, &trace, &rest)?;
                }

                #[test]
                fn a_state_at_rest_is_one_never_seen_from_reset_after_on(
                    limit in $limits, trace in traces(), rest in traces(),
                ) {
                    rested_is_never_seen(limit, &trace, &rest)?;
                }

                #[test]
                fn a_refund_undoes_a_charge_and_gives_no_more(
                    limit in $limits, trace in traces(),
                ) {
                    refund_undoes(limit, &trace)?;
                }

                #[test]
                fn what_is_left_later_is_told_by_what_was_left(
                    limit in $limits,
                    trace in traces(),
                    shares in prop::collection::vec(0..3_000_u16, 1..5),
                ) {
                    later_is_known(limit, &trace, &shares)?;
                }

                #[test]
                fn when_hits_pass_is_told_by_what_was_left(
                    limit in $limits,
                    trace in traces(),
                    shares in prop::collection::vec(0..3_000_u16, 1..5),
                ) {
                    passing_is_known(limit, &trace, &shares)?;
                }

                #[test]
                fn a_clock_that_jumps_loses_no_question_and_no_rest(
                    limit in $limits,
                    trace in traces(),
                    jumps in prop::collection::vec(-200_000_000_000_i64..100_000_000_000, 1..5),
                ) {
                    clock_may_jump(limit, &trace, &jumps)?;
                }
            }
        }
    };
}

laws!(gcra, gcras());
laws!(fixed_window, fixed_windows());
laws!(sliding_window, sliding_windows());
laws!(sliding_log, sliding_logs());
