//! The failures of a call to Sluicegate.

use crate::kernel::decision::StoreFailure;

/// The reason why a call has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallFailure {
    /// There is no connection, or it has stalled. The message was not sent.
    NotConnected,
    /// Too many calls are in flight. The message was not sent.
    Overloaded,
    /// No reply before the deadline.
    TimedOut,
    /// The connection was lost after the message was sent.
    Lost,
    /// The protocol does not define the reply.
    InvalidReply,
}

impl CallFailure {
    pub(crate) const fn as_store_failure(self) -> StoreFailure {
        match self {
            // Like an open breaker: the message never left the process.
            Self::NotConnected => StoreFailure::BreakerOpen,
            Self::Overloaded => StoreFailure::Overloaded,
            Self::TimedOut => StoreFailure::TimedOut,
            Self::Lost => StoreFailure::ConnectionLost,
            Self::InvalidReply => StoreFailure::InvalidReply,
        }
    }
}
