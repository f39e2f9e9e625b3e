//! Tests of explanations.

mod limit_list;
mod near_miss;
