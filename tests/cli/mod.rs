//! Tests of the command line: arguments and commands.

mod args;
mod commands;
pub mod doctor;
mod serve;
