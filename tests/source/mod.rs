//! Where configuration comes from: trees of files, read and watched.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod tree;
mod watch;
