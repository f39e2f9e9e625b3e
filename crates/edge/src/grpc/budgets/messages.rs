//! Converts the messages of `sluicegate.v1.Budgets`.
//!
//! Guarantees:
//! - Times are rounded up, so that clients do not retry too early.

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use tonic::Status;

use super::api::{BudgetState, BudgetsResponse, ReserveResponse, TokenUsage, reserve_response};
use crate::config::prices::TokenCounts;
use crate::engine::budgets::{BudgetStatus, RequestUsage};
use crate::engine::{AdmissionOutcome, CheckError};
use crate::grpc::permits::api::{AcquireRequest, Descriptor};
use crate::grpc::permits::{self, messages as permit_messages};
use crate::kernel::units::Nanos;

/// Converts the descriptors of a call.
pub(super) fn to_request(domain: String, descriptors: Vec<Descriptor>) -> RateLimitRequest {
    let request = AcquireRequest { domain, descriptors, ..AcquireRequest::default() };
    permit_messages::to_rate_limit_request(request)
}

/// Converts the usage of a request.
///
/// # Errors
/// Cached input tokens are a part of the input tokens.
pub(super) fn usage_of(usage: TokenUsage) -> Result<RequestUsage, Status> {
    let TokenUsage { input, cached_input, output, other: any } = usage;
    let Some(input) = input.checked_sub(cached_input) else {
        return Err(Status::invalid_argument("usage.cached_input must be a part of usage.input"));
    };
    Ok(RequestUsage::Tokens(TokenCounts { input, cached_input, output, any }))
}

pub(super) fn to_reserve_response(admitted: &AdmissionOutcome) -> ReserveResponse {
    let permits::api::AcquireResponse { verdict, reason, status, retry_after_us, .. } =
        permit_messages::to_acquire_response(admitted, None);
    // Both enums have the same numbers.
    let verdict = reserve_response::Verdict::try_from(verdict).unwrap_or_default().into();
    ReserveResponse { verdict, reason, status, retry_after_us }
}

pub(super) fn to_budgets_response(budgets: &[BudgetStatus], now: Nanos) -> BudgetsResponse {
    BudgetsResponse { budgets: budgets.iter().map(|budget| to_state(budget, now)).collect() }
}

fn to_state(budget: &BudgetStatus, now: Nanos) -> BudgetState {
    let BudgetStatus { path, unit, total, view, .. } = budget;
    BudgetState {
        path: path.to_string(),
        unit: unit.to_string(),
        amount: total.0,
        settled: view.usage.settled.0,
        held: view.held.0,
        open_holds: view.open_holds,
        excess: view.usage.excess.0,
        resets_in_us: view.end.map(|end| permit_messages::to_micros(end.since(now))),
    }
}

pub(super) fn error_status(error: &CheckError) -> Status {
    permit_messages::error_status(error)
}
