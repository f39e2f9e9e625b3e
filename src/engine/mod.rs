//! The one path from question to answer.
