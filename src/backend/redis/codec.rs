//! Stand-in until the scripts are here.

use fred::bytes::Bytes;
use fred::types::Value;

use crate::backend::{Cause, Charges, Outcomes};

/// The script.
pub const SCRIPT: &str = "return 0";

/// One run of the script.
#[derive(Debug)]
pub struct Call {
    /// KEYS.
    pub keys: Vec<Bytes>,
    /// ARGV.
    pub args: Vec<Bytes>,
}

/// The run that makes `charges`.
#[must_use]
pub fn encode(_prefix: &str, _charges: &Charges) -> Call {
    Call { keys: Vec::new(), args: Vec::new() }
}

/// What the script answered.
///
/// # Errors
/// What is not understood.
pub fn decode(_reply: &Value, _charges: &Charges) -> Result<Outcomes, Cause> {
    Err(Cause::NotUnderstood)
}
