//! Tests of the command `serve`.

mod first_answer;
mod log;
mod token_file;
