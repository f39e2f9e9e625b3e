//! Parse the command line, run it, map the outcome to an exit code.

fn main() {}
