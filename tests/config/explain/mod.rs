//! Tests of explanations.

mod budgets;
mod limit_list;
mod near_miss;
mod requesters;
