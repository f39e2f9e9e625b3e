//! What happened, counted and logged.
