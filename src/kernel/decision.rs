//! Questions and answers.
