//! The table is unambiguous, and its keys fit into a token.

use super::{MAX_TOKEN_BYTES, PATHS};

#[test]
fn no_path_is_the_beginning_of_another() {
    for (at, row) in PATHS.iter().enumerate() {
        let mut others = PATHS.iter().enumerate().filter(|&(other, _)| other != at);
        assert!(others.all(|(_, other)| !other.path.starts_with(row.path)), "{row:?}");
        assert!(!row.path.is_empty(), "{row:?}");
    }
}

#[test]
fn a_fully_escaped_key_fits_into_a_token() {
    let longest = PATHS.iter().flat_map(|row| row.path).map(|key| key.len()).max();
    assert!(longest.is_some_and(|bytes| bytes * r"\u0000".len() + 2 <= MAX_TOKEN_BYTES));
}
