//! The laws of the rate strategies, over whole traces.
//!
//! [`every`] holds for all four; the rest is per strategy, against the law itself or an oracle that
//! forgets nothing. Each law was shown to bite: the code was broken once per row, and the tests
//! named failed (others often too).
//!
//! | broken so | killed by |
//! |---|---|
//! | gcra: no max(TAT, now) | `an_idle_key_banks_no_second_burst` |
//! | gcra: fraction of a tick dropped | `no_interval_admits_more_than_the_burst_and_what_it_earned` |
//! | gcra: TAT rounded up to a tick | `the_worst_client_gets_all_that_the_law_allows_and_no_more` |
//! | any: `retry_after` rounded down, a tick late, a window late | `a_denied_client_is_admitted_at_retry_after_and_not_a_tick_sooner` |
//! | gcra, windows, log: a denial is charged | `what_remains_passes_and_one_more_does_not` |
//! | gcra: debt not cut, or cut anew at each question, when the clock steps back | `a_clock_that_steps_back_owes_at_most_one_burst_and_admits_no_more_for_it` |
//! | gcra: a product wraps | `a_state_centuries_ahead_owes_one_burst` |
//! | gcra: carry rounds down, is not cut to the burst, keeps the old period | `a_changed_limit_keeps_the_debt_in_hits_rounded_up_and_no_more_than_its_burst` |
//! | any: refund ignored, from the wrong window, oldest first | `a_refund_undoes_a_charge_and_gives_no_more` |
//! | any: rested a tick early, reset without the fraction or the next window | `a_state_at_rest_is_one_never_seen_from_reset_after_on` |
//! | any: never at the limit itself | `never_means_more_than_a_rested_counter_admits` |
//! | fixed: `<` for `<=`, a denial not counted, a window restarted | `every_window_counts_as_the_reference_does` |
//! | fixed, sliding window: counts go back with the clock | `the_window_never_goes_back` |
//! | fixed: a count wraps | `a_count_saturates_and_stays_over` |
//! | fixed: a calendar window off by one, or not stale outside | `a_calendar_window_lasts_as_long_as_its_day`, `outside_the_calendar_the_answer_is_stale_and_nothing_changes` |
//! | sliding window: weight rounded down, wrong window carried, a tick ahead | `the_verdict_is_that_of_naive_fractions` |
//! | sliding window: a weight wraps; a changed period misaligned | `a_weight_beyond_64_bits_still_denies`; `a_changed_period_keeps_the_counts_that_the_new_windows_hold` |
//! | log: off by one at the period, instants not summed, head moved without its hits | `every_answer_is_that_of_a_log_that_forgets_nothing` |
//! | log: hits of the future forgotten, or left there | `a_clock_that_steps_back_admits_no_more_and_holds_no_hit_longer_than_a_period` |
//! | log: a lowered limit keeps the oldest, or all | `hits_beyond_a_lowered_limit_are_forgotten_oldest_first` |
//! | any: what is left later above what it is, not all of it at rest, another window's end | `what_is_left_later_is_told_by_what_was_left` |
//! | any: hits that pass later than they are told to, never where they do, by two ticks too late where it can be said | `when_hits_pass_is_told_by_what_was_left` |
//! | limit: coarsest tick, not reduced, 2^53 itself, largest off by one | `the_finest_tick_that_fits_is_taken`, `a_product_of_two_to_the_53_itself_does_not_fit` |

mod every;
mod fixed_window;
mod gcra;
mod key;
mod limit;
mod sliding_log;
mod sliding_window;
mod traffic;
