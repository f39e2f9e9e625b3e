//! The value of a field that is a list of texts or numbers.

use crate::diagnostic::Spanned;

/// A list of texts and numbers, each as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextList(pub Vec<Spanned<String>>);
