//! Shows the budgets of a check for `sluicegate ask --peek`.
//!
//! Guarantees:
//! - Charges nothing.
//! - A service without budgets has none to show.

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::config::budget_amount::{self, AmountText};
use crate::edge::grpc::budgets::api::budgets_client::BudgetsClient;
use crate::edge::grpc::budgets::api::{BudgetState, BudgetsResponse, GetBudgetsRequest};
use crate::edge::grpc::permits::api::{Descriptor, Entry};
use crate::kernel::budget::Amount;

/// Returns a line for each budget, such as `llm.org: 12 usd of 500 usd settled, 3 usd held`.
pub(super) async fn describe(
    channel: Channel,
    request: &RateLimitRequest,
) -> Result<String, Status> {
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entries = descriptor.entries.iter();
        let entries = entries.map(|it| Entry { key: it.key.clone(), value: it.value.clone() });
        Descriptor { entries: entries.collect(), hits: None }
    });
    let (domain, descriptors) = (request.domain.clone(), descriptors.collect());
    let read = BudgetsClient::new(channel).get(GetBudgetsRequest { domain, descriptors }).await;
    let BudgetsResponse { budgets } = match read {
        Ok(reply) => reply.into_inner(),
        Err(status) if status.code() == Code::Unimplemented => BudgetsResponse::default(),
        Err(status) => return Err(status),
    };
    Ok(budgets.iter().map(describe_one).collect())
}

fn describe_one(budget: &BudgetState) -> String {
    let BudgetState { path, unit, amount, settled, held, .. } = budget;
    let unit = budget_amount::parse_unit(unit);
    let text = |amount: &u64| match unit {
        Some(unit) => AmountText(Amount(*amount), unit).to_string(),
        None => amount.to_string(),
    };
    format!("{path}: {} of {} settled, {} held\n", text(settled), text(amount), text(held))
}
