//! Answers the messages of one proxy.
//!
//! Guarantees:
//! - Each check is a trace span.

use tonic::Status;

use super::{replies as to_reply, requests};
use crate::engine::Engine;
use crate::engine::proxies::{LeaseOutcome, ProxyConnection, RowsChange};
use crate::telemetry::event::{Protocol, ProxyMessageKind};
use crate::telemetry::trace;
use crate::{check_error_outcome, permits, verdict_outcome};
use sluicegate_lease_protocol as wire;
use sluicegate_lease_protocol::api::lease_message::Message as Reply;
use sluicegate_lease_protocol::api::proxy_message::Message;
use sluicegate_lease_protocol::api::{
    BorrowMessage, BorrowResult, ChargeMessage, ChargeResult, CheckMessage, CheckResult,
    LeaseWelcome, LimitsChanged, RowsChanged, RuleReply, RuleRequest, UsageReport,
};

/// Returns the first message of the service, for the limits with this number.
pub(super) fn welcome(engine: &Engine, limits: u64) -> LeaseWelcome {
    let replica = engine.membership().map_or("", |membership| membership.replica_name());
    let pace = engine.proxy_share_pace();
    LeaseWelcome {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        replica: replica.to_owned(),
        limits,
        heartbeat_us: wire::micros(pace.heartbeat),
        share_expiry_us: wire::micros(pace.share_duration),
        replicas: engine.sharing_processes().get(),
    }
}

/// Returns the message about a change of rows.
pub(super) fn rows_changed(engine: &Engine, change: RowsChange) -> Reply {
    let message = |row| wire::proxy_rule::row_message(row);
    match change {
        RowsChange::Rows(rows) => {
            Reply::RowsChanged(RowsChanged { rows: rows.iter().map(message).collect() })
        }
        RowsChange::All => {
            Reply::LimitsChanged(LimitsChanged { limits: engine.proxies().limits() })
        }
    }
}

pub(super) const fn kind_of(message: &Message) -> ProxyMessageKind {
    match message {
        Message::Hello(_) => ProxyMessageKind::Hello,
        Message::Rule(_) => ProxyMessageKind::Rule,
        Message::Borrow(_) => ProxyMessageKind::Borrow,
        Message::Charge(_) => ProxyMessageKind::Charge,
        Message::Check(_) => ProxyMessageKind::Check,
        Message::Usage(_) => ProxyMessageKind::Usage,
        Message::Report(_) => ProxyMessageKind::Report,
        Message::Acquire(_) => ProxyMessageKind::Acquire,
    }
}

/// Returns the reply to a message; `None` for a report, which has none. An error ends the stream.
pub(super) async fn answer_message(
    (engine, connection): (&Engine, &ProxyConnection),
    message: Message,
) -> Result<Option<Reply>, Status> {
    match message {
        Message::Hello(_) => Err(Status::invalid_argument("hello must be the first message")),
        Message::Rule(request) => Ok(Some(Reply::Rule(find_rule((engine, connection), &request)?))),
        Message::Borrow(borrow) => {
            Ok(Some(Reply::Borrow(exchange((engine, connection), &borrow).await?)))
        }
        Message::Charge(message) => Ok(Some(Reply::Charge(charge(engine, &message).await?))),
        Message::Check(message) => Ok(Some(Reply::Check(check(engine, &message).await?))),
        Message::Usage(report) => count_usage((engine, connection), &report).map(|()| None),
        Message::Report(report) => {
            let report = requests::parse_report(&report, connection)?;
            let reply = engine.report_for_proxy(connection, report).await;
            Ok(Some(Reply::Report(to_reply::report(&reply))))
        }
        Message::Acquire(acquire) => {
            let acquire = requests::parse_acquire(&acquire)?;
            let reply = engine.acquire_for_proxy(connection, acquire).await;
            Ok(Some(Reply::Acquire(wire::permits::permit_result_message(&reply))))
        }
    }
}

fn find_rule(
    (engine, connection): (&Engine, &ProxyConnection),
    request: &RuleRequest,
) -> Result<RuleReply, Status> {
    let entries = requests::parse_entries(&request.domain, &request.entries)?;
    let rule = engine.proxy_rule(connection, &request.domain, &entries);
    Ok(wire::proxy_rule::proxy_rule_message(&rule))
}

async fn exchange(
    (engine, connection): (&Engine, &ProxyConnection),
    message: &BorrowMessage,
) -> Result<BorrowResult, Status> {
    let (counter, borrow) = requests::parse_borrow(message)?;
    let entries = requests::parse_entries(&counter.domain, &counter.entries)?;
    let counter = requests::parse_counter(counter, &entries)?;
    let outcome = engine.exchange_proxy_message(&counter, borrow, connection).await;
    if let Ok(LeaseOutcome::Applied(reply)) = &outcome {
        connection.count_borrowed(reply.granted);
    }
    Ok(to_reply::borrow(outcome))
}

async fn charge(engine: &Engine, message: &ChargeMessage) -> Result<ChargeResult, Status> {
    let counter = requests::required(message.counter.as_ref(), "charge.counter")?;
    let entries = requests::parse_entries(&counter.domain, &counter.entries)?;
    let counter = requests::parse_counter(counter, &entries)?;
    let hits = requests::parse_hits(message.hits)?;
    Ok(to_reply::charge(engine.charge_for_proxy(&counter, hits).await))
}

async fn check(engine: &Engine, message: &CheckMessage) -> Result<CheckResult, Status> {
    let (check, timeout) = requests::parse_check(message)?;
    let span = trace::check_span(Protocol::Leases, &|_: &str| None);
    let decided = permits::answer((engine, Protocol::Leases), async {
        let decided = span.scope(engine.decide_within(&check, timeout)).await;
        let outcome = match &decided {
            Ok(decision) => verdict_outcome(decision.verdict),
            Err(error) => check_error_outcome(error),
        };
        (outcome, decided)
    });
    to_reply::check(decided.await)
}

fn count_usage(
    (engine, connection): (&Engine, &ProxyConnection),
    report: &UsageReport,
) -> Result<(), Status> {
    let hits = requests::parse_usage_totals(report)?;
    for key in &report.keys {
        let entries = requests::parse_entries(&key.domain, &key.entries)?;
        engine.count_proxy_usage(&requests::parse_usage(key, &entries)?);
    }
    for usage in &report.concurrency {
        engine.count_proxy_permits(&requests::parse_permit_usage(usage)?);
    }
    connection.record_report(hits, requests::parse_buckets(report)?);
    Ok(())
}
