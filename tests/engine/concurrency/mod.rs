//! Tests of limits on requests in flight, in the engine.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | strict: silence does not close the store | `unreported_permits_survive_a_store_outage` |
//! | strict: an acquire without reply is kept | `a_canceled_acquire_leaks_no_permit` |
//! | strict: reported as active | the same |
//! | strict: released only once | `permit_with_a_lost_reply_is_released_for_three_heartbeats` |
//! | strict: an old reply grants a permit | `reply_that_took_a_heartbeat_grants_nothing` |
//! | strict: a failed release is not retried | `an_undelivered_release_is_retried` |
//! | strict: ids expire like streams | `lost_replicas_ids_expire_a_heartbeat_after_max_duration` |
//! | strict: an id outlives its deadline | `an_unreleased_id_expires_at_max_duration` |
//! | strict: a queue entry is removed twice | `local_release_wakes_queued_requests_in_order` |
//! | ids: denied acquires are not noted | `releases_of_denied_acquires_are_not_remembered` |
//! | ids: the claim follows the admission | `a_duplicate_id_charges_no_rate_limit` |
//! | the same | `queued_id_is_refused_until_it_leaves_the_queue` |
//! | ids: a claim ignores existing permits | `id_with_permits_is_refused_for_any_check` |
//! | ids: only a sweep ends an id | `expired_id_can_acquire_before_a_sweep` |
//! | ids: renewal period too long | `two_limits_require_renewal_within_the_shorter_max_duration` |
//! | bucket: an old revision restores its limit | `older_revision_does_not_replace_a_newer_limit` |
//! | bucket: queued checks restore an old limit | `check_from_before_a_reload_does_not_undo_it` |
//! | the same | `check_from_before_a_reload_uses_the_new_limit` |
//! | permits: a renewal has no effect | `renewal_extends_a_permit_by_max_duration` |
//! | engine: a reload applies no limit | `reload_wakes_requests_that_the_new_limit_allows` |
//! | fleet: a round never ends | `new_limits_cannot_extend_a_share_round_past_share_expiry` |
//! | fleet: reports are not ordered | `share_that_expires_first_is_reported_first` |
//! | fleet: a share wait delays reports | `waiting_replica_gets_its_share_within_two_heartbeats` |
//! | fleet: local requests are reported | `limit_made_local_is_reported_until_old_requests_end` |
//! | the same | `local_requests_do_not_prolong_a_restarted_stores_grace` |
//! | fleet: a turn wait delays reports | `permit_that_moves_between_replicas_is_idle_at_most_one_heartbeat_interval` |
//! | bucket: failures count as latency | `latency_averages_successes_with_weight_one_eighth` |

mod adaptive_fleet;
mod bucket;
mod fleet;
mod metrics;
mod pace;
pub mod path;
mod queue_time;
mod strict;
