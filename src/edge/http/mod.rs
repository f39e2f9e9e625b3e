//! The HTTP ports.
