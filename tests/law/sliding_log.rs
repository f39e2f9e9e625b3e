//! Laws to come.
