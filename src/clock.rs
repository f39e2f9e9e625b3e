//! The only reader of time.
