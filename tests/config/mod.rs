//! Limits files: what is read, what is refused, and how a person is told.

mod bad;
mod diagnostics;
mod grammar;
mod hostile;
mod raw;
mod vectors;
