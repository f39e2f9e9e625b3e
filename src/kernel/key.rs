//! Injective counter keys.
