//! The laws of leases: the theorem over whole simulated worlds, and the parts one by one.
//!
//! Each law was shown to bite: the code was broken once per row, and the tests named failed (others
//! often too).
//!
//! | broken so | killed by |
//! |---|---|
//! | book: the budget blind to others; a report not believed | `no_world_admits_more_than_the_law_and_what_may_be_out` |
//! | book: a superseded message taken; a repetition charged anew | `a_superseded_message_charges_nothing`, `a_message_that_comes_again_is_answered_again_and_charged_once` |
//! | book: given back of another lease, beyond the newest part, in another window, newest entries first | `only_the_last_lease_is_taken_back`, `a_window_takes_back_what_the_last_lease_in_it_brought_and_no_older`, `a_window_takes_back_only_its_own`, `a_log_takes_back_the_entries_of_the_lease` |
//! | book: a coupled lease outlives its window; lent beside a denial | `a_coupled_lease_ends_with_its_window`, `nothing_is_lent_beside_a_denial` |
//! | ledger: no drift allowance; a deadline from the answer | `a_lease_ends_early_counted_from_when_the_question_was_sent` |
//! | ledger: any answer settled; kept what is not listed | `an_answer_to_a_message_given_up_is_ignored`, `what_the_store_does_not_list_is_not_kept` |
//! | ledger: still held when given back | `everything_is_given_back_once_and_an_answer_on_its_way_is_ignored` |

mod book;
mod hold;
mod ledger;
mod oracle;
mod sizer;
pub mod store;
mod theorem;
mod world;
