//! The roles of callers of the admin port.

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read all pages.
    View,
    /// Read all pages and make changes.
    Operate,
}

impl Role {
    pub(in crate::http::admin) const fn as_str(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Operate => "operate",
        }
    }
}
