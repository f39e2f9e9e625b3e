//! Protocols in, protocols out; no decisions.
