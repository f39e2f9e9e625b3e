//! Tests of the YAML reader of limits files: accepted input, refused input, and the form of
//! findings.

mod grammar;
mod hostile;
mod recorded;
