//! The replicas that a sum counts.

/// The replicas that a sum counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewScope {
    /// All live replicas.
    Fleet,
    /// This replica, because it has no fleet or other replicas do not report.
    Replica,
}

impl ViewScope {
    /// Returns the name of the scope.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fleet => "fleet",
            Self::Replica => "replica",
        }
    }

    pub(crate) const fn from_parts<T>(parts: Option<&Vec<T>>) -> Self {
        if parts.is_some() { Self::Fleet } else { Self::Replica }
    }
}
