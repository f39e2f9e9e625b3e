//! What the store holds: for how long, and what is not ours.
