//! The reasons why a recording cannot start.

/// The reason why a recording cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Another recording runs.
    #[error("another recording runs; wait for its end, or disconnect its client")]
    AlreadyRecording,
    /// No configuration is loaded.
    #[error("no limits are loaded; see the log, or /config on the admin port")]
    NoConfig,
    /// The duration is shorter than 1 s or longer than 1 h.
    #[error("a recording takes 1s to 1h")]
    InvalidDuration,
    /// The operating system has no random numbers for the salt of hashes.
    #[error("the operating system returned no random numbers; retry, or record clear keys")]
    NoRandomNumbers,
}
