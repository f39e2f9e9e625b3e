//! How soon a joiner has its part, and how much of a ceiling is used.
