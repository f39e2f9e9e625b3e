//! The laws of ceilings on requests in flight.
//!
//! Each law was shown to bite: the code was broken once per row, and the tests named failed.
//!
//! | broken so | killed by |
//! |---|---|
//! | limiter: `<=` for `<` on arrival, or when waiters are admitted | `in_any_order_of_events_nobody_is_above_the_limit_lost_overtaken_or_woken_twice` |
//! | queue: last come, first served; late a tick late | the same |
//! | permits: a deadline a tick late | the same |
//! | permits: an earlier life of a slot is known | `a_permit_of_an_earlier_life_of_its_slot_is_unknown` |
//! | register: no bound per source | `a_full_table_refuses_unknown_releases_and_evicts_nobody` |
//! | register: no tombstone answers | `a_release_that_comes_first_answers_its_acquire_once`, and the model finds the leak |
//! | register: a release leaves its deadline behind | `whatever_is_acquired_comes_back_exactly_once` |
//! | gradient: a share's in-flight is not scaled; aimd: use judged against the estimate | `use_is_judged_against_the_share_and_latency_lowers_what_is_hardly_used` |
//! | gradient: ignored requests are samples | `ignored_requests_teach_nothing` |
//! | gradient: a drain does not end with time | `a_lowered_limit_comes_back_although_nothing_succeeds` |
//! | gradient: looks without jitter | `a_look_at_the_ideal_is_short_shallow_and_spread_by_the_jitter` |
//! | gradient: a slower backend is believed slowly | `a_backend_that_became_slower_is_not_taken_for_a_queue` |
//! | gradient: far too many are looked for in whole windows | `far_too_many_in_flight_are_found_before_half_of_them_have_returned` |
//! | gradient: it doubles without a queue, doubt or none | `of_a_handful_in_flight_a_quick_window_is_no_reason_to_double` |
//! | gradient: a drain of one sample is over, whatever that says | `one_slow_request_in_a_drain_does_not_move_the_ideal`, `four_slow_requests_in_a_drain_are_the_ideal_from_then_on` |
//! | gradient: the same is asked for where latencies vary | `one_slow_request_holds_a_drain_up_only_where_latencies_hardly_vary` |
//! | gradient: it doubles without a queue, doubt or none; a drain of one sample is over | `with_a_handful_of_workers_gradient_keeps_its_bounds_in_every_phase` |
//! | gradient: windows of one sample tell of the spread | `a_window_of_a_sample_or_three_tells_nothing_of_the_spread` |
//! | gradient: Little's law is believed of a limit that nobody uses | `of_requests_that_come_now_and_then_the_ideal_is_their_latency_and_not_the_time_between_them` |
//! | gradient: at the least limit an ideal that is too small stays | `at_its_least_a_limit_finds_out_that_its_ideal_is_too_small` |
//! | together: each looks by its own clock | `all_members_look_at_one_instant_of_the_store_s_clock_whatever_their_own_show` |
//! | together: a look does not end | `a_look_lowers_the_share_admits_somebody_and_ends_although_nobody_leaves`, and three more |
//! | together: the first look is no deeper than others; nobody lowers its own part at once | `a_queue_that_was_there_from_the_beginning_is_found_by_having_fewer_in_flight` |
//! | together: a look never raises the ideal | `a_backend_that_became_slower_is_not_taken_for_a_queue_for_long` |
//! | together: a part that is gone still counts | `one_that_goes_on_alone_follows_its_own_limit` |
//! | together: without samples it says that all is well | `who_has_not_looked_says_nothing` |
//! | together: one that is unsure asks for growth | `a_backend_that_became_quicker_is_looked_at_before_anybody_asks_for_more` |
//! | policy: a reload forgets | `a_reload_keeps_what_the_same_law_learnt_and_forgets_what_another_did` |
//! | strict: one too many, a deadline late, asked twice counted twice, nothing put back, open too soon | the tests of `permits.rs`, one or more each |
//! | strict: silence is not doubt | `a_store_that_stood_still_admits_nobody_for_what_ended_unseen` |
//! | strict: what was not answered is not given back, or is told as held | `one_that_is_dropped_while_the_store_is_asked_leaks_nothing` |
//! | strict: given back once where a call may come late | `one_whose_answer_is_lost_is_given_back_and_again_for_three_beats` |
//! | strict: an answer of a beat ago is believed | `an_answer_that_took_a_beat_admits_nobody_because_what_it_granted_may_be_over` |
//! | strict: a release that was not heard is forgotten | `a_release_that_the_store_did_not_hear_is_told_again` |
//! | strict: an id kept as a stream is, or beyond its time | `an_id_whose_replica_is_gone_is_free_at_its_max_duration_and_no_sooner`, `an_id_that_is_never_released_is_over_at_its_max_duration` |
//! | strict: a place in line given up twice | `who_waits_is_let_pass_when_one_of_this_replica_leaves_and_in_the_order_of_coming` |
//! | ids: one that was turned away is not noted | `the_release_of_one_that_was_turned_away_is_expected_and_remembered_no_longer` |
//! | ids: claimed once it is admitted | `who_is_refused_for_the_id_has_charged_no_rate_limit`, `an_id_that_waits_is_refused_until_it_waits_no_more` |
//! | ids: claimed although it holds permits | `an_id_that_holds_permits_is_refused_whatever_its_next_question_meets` |
//! | ids: over when it is swept | `an_id_whose_time_is_over_may_ask_anew_before_anybody_has_swept` |
//! | ids: to be renewed within the longest time | `under_two_ceilings_all_is_to_be_renewed_within_the_shorter_time` |
//! | bucket: an older configuration's rules are put back | `who_asks_by_an_older_configuration_puts_nothing_of_it_back` |
//! | the same, and who has waited goes on by the configuration of before | `a_question_that_began_before_a_reload_does_not_undo_it`, `a_question_that_began_before_a_reload_finds_the_new_ceiling_where_nobody_was_yet` |
//! | permits: a renewal renews nothing | `a_place_that_is_renewed_is_kept_for_max_duration_from_then` |
//! | engine: a reload puts nothing in force | `a_reload_wakes_at_once_whom_a_higher_ceiling_or_none_lets_pass` |
//! | fleet: a round takes in all that come, for ever | `a_round_ends_though_somebody_new_comes_with_every_call_and_a_share_from_before_does_not_run_out` |
//! | fleet: in no order | `of_many_shares_that_are_to_be_renewed_the_one_that_ends_first_is_spoken_of_first` |
//! | fleet: who waits for another's share is silent for half a term, too | `who_waits_for_what_another_holds_has_its_part_two_heartbeats_after_that_has_ended_however_long_it_has_waited` |
//! | fleet: what a replica admits alone is reported | `a_ceiling_that_a_replica_holds_alone_from_now_on_is_spoken_of_until_what_it_admitted_before_is_over`, `what_a_replica_holds_alone_keeps_a_store_that_begins_anew_in_doubt_no_longer_than_what_it_admitted_before` |
//! | fleet: who waits for its turn is silent for half a term | `a_permit_that_replicas_hold_in_turns_lies_idle_for_a_heartbeat_at_most` |
//! | bucket: failures feed the latency that is shown | `latency_is_that_of_successes_and_each_counts_for_an_eighth` |

mod admit;
mod engine;
mod fleet;
mod fleet_backend;
mod latent;
mod limiter;
mod model;
mod peers;
mod permits;
mod policy;
mod real_backend;
mod register;
mod seen;
mod strict;
mod together;
