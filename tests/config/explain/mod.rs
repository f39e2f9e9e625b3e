//! Tests of explanations.

mod near_miss;
