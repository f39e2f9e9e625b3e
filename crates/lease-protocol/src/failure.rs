//! The causes for which a store made no decision.

use sluicegate_kernel::decision::StoreFailure;

use crate::api::LeaseFailure;
use crate::api::lease_failure::Cause;

/// Returns the message of a failure. Only a message that was certainly not sent gets `OVERLOADED`,
/// because the proxy may then spend the returned hits again.
#[must_use]
pub fn failure_message(failure: StoreFailure) -> LeaseFailure {
    let cause = match failure {
        StoreFailure::TimedOut => Cause::TimedOut,
        StoreFailure::Unreachable | StoreFailure::ConnectionLost => Cause::Unreachable,
        StoreFailure::Overloaded | StoreFailure::BreakerOpen => Cause::Overloaded,
        _ => Cause::StoreFailed,
    };
    LeaseFailure { cause: cause.into() }
}

/// Returns the failure of a message.
#[must_use]
pub fn failure(message: LeaseFailure) -> StoreFailure {
    match Cause::try_from(message.cause) {
        Ok(Cause::TimedOut) => StoreFailure::TimedOut,
        Ok(Cause::Unreachable) => StoreFailure::Unreachable,
        Ok(Cause::Overloaded) => StoreFailure::Overloaded,
        _ => StoreFailure::Other,
    }
}
