//! Properties of the rate limit strategies, verified over whole traces.
//!
//! [`all_strategies`] covers all four strategies. The other modules compare one strategy with its bound or
//! with an exact model.
//!
//! Each property was verified by mutation: with each defect below, the named test failed.
//!
//! - gcra: no max(TAT, now) → `an_idle_key_accumulates_at_most_one_burst`
//! - gcra: fraction of a tick dropped → `no_interval_allows_more_than_burst_plus_rate`
//! - gcra: TAT rounded up to a tick → `a_greedy_client_gets_exactly_burst_plus_rate`
//! - any: `retry_after` rounded down, or late by a tick or window →
//!   `a_denied_client_succeeds_exactly_at_retry_after`
//! - gcra, windows, log: a denial is charged → `exactly_the_remaining_hits_are_allowed`
//! - gcra: debt not capped after a clock step back, or at each check →
//!   `a_clock_step_back_owes_at_most_one_burst`
//! - gcra: a product wraps → `a_state_centuries_ahead_owes_one_burst`
//! - gcra: carry rounds down, is not capped, keeps the old period →
//!   `a_changed_limit_carries_the_debt_up_to_its_burst`
//! - any: refund ignored, of the wrong window, oldest first →
//!   `a_refund_undoes_the_charge_up_to_the_limit`
//! - any: idle a tick early, reset without fraction or next window →
//!   `a_counter_is_empty_exactly_at_reset_after`
//! - any: `ExceedsLimit` returned at the limit itself → `only_checks_above_the_maximum_can_never_pass`
//! - fixed: `<` for `<=`, a denial not counted, a window restarted →
//!   `windows_count_like_envoyproxy_ratelimit`
//! - fixed, sliding window: counts follow the clock back →
//!   `a_clock_step_back_keeps_the_latest_window`
//! - fixed: a count wraps → `a_saturated_count_stays_over_the_limit`
//! - fixed: a calendar window off by one → `a_calendar_window_lasts_its_whole_day`
//! - fixed: not stale outside →
//!   `instants_outside_the_known_calendar_windows_are_stale_and_uncharged`
//! - sliding window: weight rounded down, wrong window, a tick ahead →
//!   `verdicts_match_exact_fractions`
//! - sliding window: a weight wraps → `a_weight_beyond_64_bits_still_denies`
//! - sliding window: a changed period misaligned → `a_changed_period_keeps_the_overlapping_counts`
//! - log: off by one at the period, instants not summed, head hits lost →
//!   `decisions_match_a_complete_log`
//! - log: future hits dropped, or kept → `a_clock_step_back_keeps_the_bound_and_expiry`
//! - log: a lowered limit keeps the oldest, or all → `a_lowered_limit_drops_the_oldest_hits`
//! - any: projected headroom too large, or of the wrong window →
//!   `projected_headroom_never_exceeds_the_counter`
//! - any: projected wait too short, missing, or two ticks too long →
//!   `projected_wait_is_long_enough`
//! - excess: a report not charged, charged without its excess, or an uncapped debt →
//!   `reports_are_charged_in_full_in_any_order`, `a_debt_is_at_most_1000_bursts`
//! - excess: a check of 0 hits allowed, or charged as 1 → `three_reports_of_40_exhaust_100`
//! - limit: coarsest tick, not reduced, largest off by one → `the_finest_fitting_tick_is_used`
//! - limit: 2^53 itself accepted → `a_product_of_exactly_2_pow_53_is_rejected`

mod all_strategies;
mod fixed_window;
mod gcra;
mod limit;
mod on_excess;
mod sliding_log;
mod sliding_window;
mod traffic;
