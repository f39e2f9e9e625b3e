//! Tests of limits on requests in flight, in the kernel.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | limiter: `<=` for `<` on admission | `invariants_survive_random_events_with_a_fixed_limit` |
//! | queue: last in, first out | the same |
//! | queue: a timeout is one tick late | the same |
//! | permits: a deadline is one tick late | the same |
//! | permits: a reused slot accepts old permits | `reused_slot_does_not_accept_its_old_permit` |
//! | pace: an interval is rounded down | `success_adds_increase_by_rate_and_overload_multiplies` |
//! | pace: unused turns are credit | `a_constant_rate_admits_one_request_an_interval` |
//! | pace: a late wake moves later turns | `a_late_wake_delays_no_later_turn` |
//! | pace: each overload answer decreases | `one_congestion_event_decreases_the_rate_once` |
//! | pace: unused rate grows | `rate_grows_only_by_requests_that_use_half_of_it` |
//! | pace: a shorter pause replaces a longer one | `rate_does_not_grow_while_the_backend_asks_to_wait` |
//! | pace: any turn can be given back, or none | `newest_turn_can_be_given_back_and_no_other` |
//! | pace: a reload loses the rate | `reload_keeps_turns_and_the_learned_rate` |
//! | pace: an idle limiter forgets its turn | `a_limiter_is_not_idle_before_its_next_turn` |
//! | registry: no bound per source | `full_table_refuses_early_releases_and_evicts_none` |
//! | registry: early releases are ignored | `an_early_release_ends_its_acquire_once` |
//! | the same | `no_order_of_events_leaks_a_permit` |
//! | registry: a release keeps its deadline | `every_acquired_value_is_returned_exactly_once` |
//! | gradient: share not scaled to limit | `full_share_grows_the_limit_and_latency_lowers_it` |
//! | aimd: usage is compared with the estimate | the same |
//! | gradient: ignored requests are samples | `ignored_requests_do_not_change_the_limit` |
//! | gradient: a drain never times out | `a_lowered_limit_recovers_without_successful_requests` |
//! | gradient: probes without jitter | `min_rtt_probes_are_short_shallow_and_jittered` |
//! | gradient: slow increase of min RTT | `gradient_distinguishes_a_slower_backend_from_a_queue` |
//! | gradient: late overload check | `large_overload_is_detected_before_half_the_requests_return` |
//! | gradient: growth × 2 in spite of doubt | `few_samples_do_not_double_the_limit` |
//! | gradient: one sample ends a drain | `one_slow_drain_sample_hardly_changes_min_rtt` |
//! | the same | `four_high_latencies_with_a_drained_limit_raise_the_min_rtt` |
//! | gradient: both of these faults | `gradient_keeps_its_bounds_with_few_workers` |
//! | gradient: long drains | `a_slow_request_extends_a_drain_only_if_latency_is_steady` |
//! | gradient: spread of one sample | `windows_with_few_samples_do_not_change_the_spread` |
//! | gradient: Little's law at low usage | `sparse_requests_set_the_min_rtt_to_their_latency` |
//! | gradient: a low min RTT stays | `gradient_at_its_minimum_corrects_a_low_min_rtt` |
//! | fleet share: probes by the local clock | `replicas_probe_together_by_the_stores_clock` |
//! | fleet share: a probe does not end | `probe_lowers_the_share_and_ends_by_time` and three more |
//! | fleet share: the first probe is not deeper | `probe_detects_a_queue_from_the_start` |
//! | fleet share: overload lowers no share | the same |
//! | fleet share: probes keep a low min RTT | `probe_distinguishes_a_slower_backend_from_a_queue` |
//! | fleet share: an old share still counts | `replica_without_a_share_follows_its_own_limit` |
//! | fleet share: an estimate without samples | `replica_without_a_probe_has_no_estimate` |
//! | fleet share: doubt votes for growth | `faster_backend_is_probed_before_a_growth_vote` |
//! | adaptive: a reload loses the state | `reload_keeps_an_unchanged_algorithms_state` |
//! | strict: limit + 1, or a late deadline | the tests of `permit_table.rs` |
//! | strict: a repeated acquire counts twice | the same |
//! | strict: reports restore nothing | the same |
//! | strict: the store opens too early | the same |

mod adaptive;
mod event_orders;
mod fair;
mod limiter;
mod pace;
mod permit_registry;
mod permit_table;
mod reported_outcome;
