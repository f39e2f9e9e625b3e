//! Tests of the command line: arguments and commands.

mod args;
mod bench;
mod budget;
mod commands;
pub mod doctor;
mod fleet;
mod limits_input;
mod record;
mod replay_tables;
mod serve;
mod table;
