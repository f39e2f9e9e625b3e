//! The numbers of a limit and where they stop fitting.
