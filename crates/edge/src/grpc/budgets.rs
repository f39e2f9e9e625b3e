//! Serves `sluicegate.v1.Budgets`: programs without a proxy reserve and settle in budgets.
//!
//! Guarantees:
//! - Decisions are the same as in the other protocols.
//! - A reserve that is canceled leaves no hold.
//!
//! Not covered:
//! - Top-ups: they need an operator, so the admin port makes them.
//!
//! The protobuf messages are documented in `proto/sluicegate/v1/budgets.proto`.

pub mod api;
mod messages;

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::call_timeout::caller_timeout;
use super::{bounded_body, convert};
use crate::body_memory::{BodyLimits, BodyMemory};
use crate::engine::budgets::{BudgetStatus, RequestUsage};
use crate::engine::{CheckError, Engine, validate_id};
use crate::kernel::decision::Check;
use crate::kernel::units::Nanos;
use crate::permits::{Holder, Permits, ReservedPart, outcome_of_result};
use crate::telemetry::event::{EdgeOutcome, Protocol};
use crate::{ReplyOptions, check_error_outcome};

use api::{
    BudgetsResponse, CancelRequest, GetBudgetsRequest, RenewHoldsResponse, ReserveRequest,
    ReserveResponse, SettleRequest,
};
use messages::{error_status, to_budgets_response, to_request, to_reserve_response, usage_of};

/// The gRPC service that reserves and settles in budgets.
#[derive(Clone, Debug)]
pub struct BudgetsService {
    engine: Arc<Engine>,
    reporting: ReplyOptions,
    bodies: BodyLimits,
}

/// A call without its message's own fields.
struct BudgetsCall {
    request: RateLimitRequest,
    timeout: Option<Nanos>,
    /// The memory of the message, until the reply.
    _memory: Arc<BodyMemory>,
}

impl BudgetsService {
    /// Creates the service. Calls that wait for the store take memory of `bodies`.
    #[must_use]
    pub const fn new(engine: Arc<Engine>, reporting: ReplyOptions, bodies: BodyLimits) -> Self {
        Self { engine, reporting, bodies }
    }

    fn permits(&self) -> Permits<'_> {
        Permits::new(&self.engine, &self.reporting, Protocol::Budgets)
    }

    fn open(
        &self,
        metadata: &MetadataMap,
        request: RateLimitRequest,
    ) -> Result<BudgetsCall, Status> {
        let memory = self.bodies.charge(convert::memory_bytes(&request));
        let memory = memory.map_err(bounded_body::memory_full)?;
        Ok(BudgetsCall { request, timeout: caller_timeout(metadata), _memory: memory })
    }

    fn check<'r>(&self, request: &'r RateLimitRequest) -> Result<Check<'r>, Status> {
        let check = convert::to_check(request, &self.reporting);
        check.map_err(|error| error_status(&error))
    }

    /// Counts and times a call, and converts its error.
    async fn answer<T>(
        &self,
        reply: impl Future<Output = Result<T, CheckError>>,
    ) -> Result<Response<T>, Status> {
        let answered = self.permits().answer(async {
            let reply = reply.await;
            (reply.as_ref().map_or_else(check_error_outcome, |_| EdgeOutcome::Allow), reply)
        });
        answered.await.map(Response::new).map_err(|error| error_status(&error))
    }

    async fn end(
        &self,
        call: &BudgetsCall,
        id: &str,
        usage: RequestUsage,
    ) -> Result<Response<BudgetsResponse>, Status> {
        validate_id(id).map_err(Status::invalid_argument)?;
        let check = self.check(&call.request)?;
        let now = self.engine.clock().now();
        self.answer(async {
            let settled = self.engine.settle(&check, id, usage, call.timeout).await;
            settled.map(|budgets| to_budgets_response(&budgets, now))
        })
        .await
    }
}

#[tonic::async_trait]
impl api::budgets_server::Budgets for BudgetsService {
    async fn reserve(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveResponse>, Status> {
        let (metadata, _, ReserveRequest { id, domain, descriptors, tokens }) =
            request.into_parts();
        validate_id(&id).map_err(Status::invalid_argument)?;
        let call = self.open(&metadata, to_request(domain, descriptors))?;
        let reserve = ReservedPart { id: &id, budgets: None, tokens };
        let permits = self.permits().reserving(Some(reserve));
        let admitted = permits.answer(async {
            let admitted = permits.acquire(&call.request, Holder::Nobody, call.timeout).await;
            (outcome_of_result(&admitted), admitted)
        });
        let admitted = admitted.await.map_err(|error| error_status(&error))?;
        Ok(Response::new(to_reserve_response(&admitted)))
    }

    async fn settle(
        &self,
        request: Request<SettleRequest>,
    ) -> Result<Response<BudgetsResponse>, Status> {
        let (metadata, _, SettleRequest { id, domain, descriptors, usage }) = request.into_parts();
        let call = self.open(&metadata, to_request(domain, descriptors))?;
        let usage = usage.map_or(Ok(RequestUsage::Unknown), usage_of)?;
        self.end(&call, &id, usage).await
    }

    async fn cancel(
        &self,
        request: Request<CancelRequest>,
    ) -> Result<Response<BudgetsResponse>, Status> {
        let (metadata, _, CancelRequest { id, domain, descriptors }) = request.into_parts();
        let call = self.open(&metadata, to_request(domain, descriptors))?;
        self.end(&call, &id, RequestUsage::Nothing).await
    }

    async fn renew(
        &self,
        request: Request<CancelRequest>,
    ) -> Result<Response<RenewHoldsResponse>, Status> {
        let (metadata, _, CancelRequest { id, domain, descriptors }) = request.into_parts();
        validate_id(&id).map_err(Status::invalid_argument)?;
        let call = self.open(&metadata, to_request(domain, descriptors))?;
        let check = self.check(&call.request)?;
        self.answer(async {
            let renewed = self.engine.renew_budgets(&check, &id, call.timeout).await;
            renewed.map(|renewed| RenewHoldsResponse { renewed })
        })
        .await
    }

    async fn get(
        &self,
        request: Request<GetBudgetsRequest>,
    ) -> Result<Response<BudgetsResponse>, Status> {
        let (metadata, _, GetBudgetsRequest { domain, descriptors }) = request.into_parts();
        let call = self.open(&metadata, to_request(domain, descriptors))?;
        let (check, now) = (self.check(&call.request)?, self.engine.clock().now());
        self.answer(async {
            let read: Result<Vec<BudgetStatus>, _> =
                self.engine.read_budgets(&check, call.timeout).await;
            read.map(|budgets| to_budgets_response(&budgets, now))
        })
        .await
    }
}
