//! The values of fields that are lists of texts or numbers, or mappings with keys of the user.

use crate::diagnostic::Spanned;

/// A list of texts and numbers, each as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextList(pub Vec<Spanned<String>>);

/// A mapping of texts and numbers, each as written, in the order of the file. Repeated keys stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextMap {
    /// The keys with their values.
    pub entries: Vec<(Spanned<String>, Spanned<String>)>,
    /// `true` if a value could not be read. A finding then says which one.
    pub is_incomplete: bool,
}
