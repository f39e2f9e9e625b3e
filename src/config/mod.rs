//! Text to meaning, without opening a file.
