//! Tests of the command line: arguments and commands.

mod args;
mod commands;
pub mod doctor;
mod fleet;
mod limits_input;
mod record;
mod serve;
mod table;
