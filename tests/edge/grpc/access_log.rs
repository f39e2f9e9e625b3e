//! Tests of permits that Envoy's gRPC access log releases: parsing of entries, and real
//! connections.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::data::accesslog::v3::{
    AccessLogCommon, AccessLogType, HttpAccessLogEntry, HttpRequestProperties,
    HttpResponseProperties, ResponseFlags,
};
use envoy_types::pb::envoy::service::accesslog::v3::StreamAccessLogsMessage;
use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_client::AccessLogServiceClient;
use envoy_types::pb::envoy::service::accesslog::v3::stream_access_logs_message::{
    HttpAccessLogEntries, LogEntries,
};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Duration, Struct, UInt32Value, Value};
use futures_util::future::poll_immediate;
use prost::Message as _;
use sluicegate::config::hooks::Hooks;
use sluicegate::edge::grpc::access_log::{
    AccessLogService, EntryEvent, decode_entries, entry_event, entry_owner,
};
use sluicegate::edge::health::Readiness;
use sluicegate::engine::Engine;
use sluicegate::kernel::concurrency::{OverloadAnswers, RequestOutcome};
use sluicegate::kernel::decision::{Check, Cost, Descriptor};
use sluicegate::kernel::units::{Hits, Nanos};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::body::Body;
use tonic::codegen::{Service as _, http};

use super::served_with;
use crate::edge::{empty_engine, engine_with_concurrency};
use crate::support::waiting::soon;

const ID: &str = "0123456789abcdef";

fn millis(ms: i32) -> Duration {
    Duration { seconds: 1, nanos: ms * 1_000_000 }
}

/// An access log entry of a request whose upstream responded with `code` after 5 ms.
fn entry(kind: AccessLogType, code: u32) -> HttpAccessLogEntry {
    let common_properties = Some(AccessLogCommon {
        access_log_type: kind.into(),
        time_to_first_upstream_tx_byte: Some(millis(2)),
        time_to_last_upstream_rx_byte: Some(millis(7)),
        response_flags: Some(ResponseFlags::default()),
        ..AccessLogCommon::default()
    });
    let response_code = Some(UInt32Value { value: code });
    let response = Some(HttpResponseProperties { response_code, ..Default::default() });
    HttpAccessLogEntry { common_properties, response, ..HttpAccessLogEntry::default() }
}

fn ended(code: u32, change: impl FnOnce(&mut AccessLogCommon)) -> (RequestOutcome, Option<Nanos>) {
    let mut entry = entry(AccessLogType::DownstreamEnd, code);
    change(entry.common_properties.as_mut().unwrap());
    by_default(&entry)
}

/// The outcome for a limit with the default list of answers that mean overload.
fn by_default(entry: &HttpAccessLogEntry) -> (RequestOutcome, Option<Nanos>) {
    match entry_event(entry) {
        EntryEvent::Ended { outcome, rtt } => (OverloadAnswers::DEFAULT.classify(outcome), rtt),
        other => panic!("{other:?}"),
    }
}

#[test]
fn access_log_entries_are_decoded_one_at_a_time() {
    let [end, periodic] = [AccessLogType::DownstreamEnd, AccessLogType::DownstreamPeriodic];
    let log_entry = vec![entry(end, 200), entry(periodic, 0), entry(end, 503)];
    let logs = HttpAccessLogEntries { log_entry: log_entry.clone() };
    let log_entries = Some(LogEntries::HttpLogs(logs));
    let message = StreamAccessLogsMessage { log_entries, ..StreamAccessLogsMessage::default() };
    let read: Result<Vec<_>, _> = decode_entries(&message.encode_to_vec()).collect();
    assert_eq!(read.unwrap(), log_entry);

    // Field 2 of an access log message, with 4,000,000 bytes: two million empty entries.
    let empty = [b"\x12\x80\x92\xf4\x01".to_vec(), b"\n\0".repeat(2_000_000)].concat();
    let made =
        allocation_counter::measure(|| assert_eq!(decode_entries(&empty).count(), 2_000_000));
    assert!(made.bytes_max < 100_000, "{made:?}");
    let broken = b"\x12\x03\n\x01\xff";
    assert!(decode_entries(broken).next().unwrap().is_err(), "an entry that is none");
}

#[test]
fn owner_in_ext_authz_metadata_overrides_the_owner_header() {
    let mut entry = entry(AccessLogType::DownstreamEnd, 200);
    assert_eq!(entry_owner(&entry), None);
    let headers = &mut entry.response.as_mut().unwrap().response_headers;
    headers.insert("x-sluicegate-owner".into(), "header".into());
    assert_eq!(entry_owner(&entry), Some("header"));
    let value = Value { kind: Some(Kind::StringValue("metadata".into())) };
    let owner_field = Struct { fields: HashMap::from([("x-sluicegate-owner".into(), value)]) };
    for (filter, wanted) in [("a.filter", "header"), ("envoy.filters.http.ext_authz", "metadata")] {
        let filter_metadata = HashMap::from([(filter.to_owned(), owner_field.clone())]);
        let metadata = Some(Metadata { filter_metadata, ..Metadata::default() });
        entry.common_properties.as_mut().unwrap().metadata = metadata;
        assert_eq!(entry_owner(&entry), Some(wanted));
    }
}

fn flagged(code: u32, set: impl FnOnce(&mut ResponseFlags)) -> RequestOutcome {
    ended(code, |common| set(common.response_flags.as_mut().unwrap())).0
}

#[test]
fn final_access_log_entry_has_latency_and_request_outcome() {
    let rtt = Some(Nanos(5_000_000));
    assert_eq!(ended(200, |_| {}), (RequestOutcome::Success, rtt));
    assert_eq!(ended(404, |_| {}), (RequestOutcome::Success, rtt));
    assert_eq!(ended(429, |_| {}), (RequestOutcome::Dropped, rtt));
    assert_eq!(ended(503, |_| {}), (RequestOutcome::Dropped, rtt));
    assert_eq!(ended(0, |_| {}), (RequestOutcome::Ignored, rtt));
}

#[test]
fn logged_grpc_status_determines_the_request_outcome() {
    for (code, outcome) in [
        ("0", RequestOutcome::Success),
        ("8", RequestOutcome::Dropped),
        ("14", RequestOutcome::Dropped),
        ("5", RequestOutcome::Ignored),
    ] {
        for in_trailers in [true, false] {
            let mut entry = entry(AccessLogType::DownstreamEnd, 200);
            let response = entry.response.as_mut().unwrap();
            let headers = if in_trailers {
                &mut response.response_trailers
            } else {
                &mut response.response_headers
            };
            headers.insert("grpc-status".into(), code.into());
            assert_eq!(by_default(&entry).0, outcome, "{code}, in trailers: {in_trailers}");
        }
    }
}

#[test]
fn logged_retry_after_is_reported() {
    let mut entry = entry(AccessLogType::DownstreamEnd, 429);
    let response = entry.response.as_mut().unwrap();
    response.response_headers.insert("retry-after".into(), "7".into());
    let EntryEvent::Ended { outcome, .. } = entry_event(&entry) else { panic!() };
    assert_eq!(outcome.retry_after(), Some(Nanos::from_secs(7)));
}

#[test]
fn latency_without_an_upstream_response_is_ignored() {
    let local = |common: &mut AccessLogCommon| {
        common.time_to_first_upstream_tx_byte = None;
        common.time_to_last_upstream_rx_byte = None;
    };
    assert_eq!(ended(200, local), (RequestOutcome::Ignored, None), "a direct response");
    assert_eq!(ended(403, local), (RequestOutcome::Ignored, None), "another filter's denial");
    assert_eq!(ended(503, local), (RequestOutcome::Ignored, None), "a ceiling's denial");
    assert_eq!(
        flagged(200, |flags| flags.downstream_connection_termination = true),
        RequestOutcome::Ignored
    );
    assert_eq!(flagged(200, |flags| flags.downstream_remote_reset = true), RequestOutcome::Ignored);
    let backwards =
        |common: &mut AccessLogCommon| common.time_to_last_upstream_rx_byte = Some(millis(1));
    assert_eq!(ended(200, backwards), (RequestOutcome::Ignored, None));
    let negative = |common: &mut AccessLogCommon| {
        common.time_to_last_upstream_rx_byte = Some(Duration { seconds: -1, nanos: 0 });
    };
    assert_eq!(ended(200, negative), (RequestOutcome::Ignored, None));
}

#[test]
fn upstream_failure_flags_override_the_status_code() {
    let failures: [fn(&mut ResponseFlags); 6] = [
        |flags| flags.upstream_connection_failure = true,
        |flags| flags.upstream_connection_termination = true,
        |flags| flags.upstream_remote_reset = true,
        |flags| flags.upstream_request_timeout = true,
        |flags| flags.upstream_overflow = true,
        |flags| flags.no_healthy_upstream = true,
    ];
    for fail in failures {
        assert_eq!(flagged(200, fail), RequestOutcome::Dropped);
    }
}

#[test]
fn only_final_access_log_entries_end_a_request() {
    let kind = |kind| entry_event(&entry(kind, 200));
    assert!(
        matches!(kind(AccessLogType::NotSet), EntryEvent::Ended { .. }),
        "an Envoy that names none"
    );
    assert_eq!(kind(AccessLogType::DownstreamPeriodic), EntryEvent::InFlight);
    for other in [
        AccessLogType::DownstreamStart,
        AccessLogType::UpstreamPoolReady,
        AccessLogType::UpstreamEnd,
        AccessLogType::TcpConnectionEnd,
        AccessLogType::DownstreamTunnelSuccessfullyEstablished,
    ] {
        assert_eq!(kind(other), EntryEvent::Other, "{other:?}");
    }
    assert!(matches!(
        entry_event(&HttpAccessLogEntry::default()),
        EntryEvent::Ended { rtt: None, .. }
    ));
}

fn with_id(id: &str, mut entry: HttpAccessLogEntry) -> HttpAccessLogEntry {
    let request_headers = HashMap::from([("x-sluicegate-id".to_owned(), id.to_owned())]);
    entry.request = Some(HttpRequestProperties { request_headers, ..Default::default() });
    entry
}

async fn acquire(engine: &Engine) {
    acquire_as(engine, ID).await;
}

async fn acquire_as(engine: &Engine, id: &str) {
    let descriptors = [Descriptor {
        entries: [("k", "v")].into_iter().collect(),
        cost: Cost::Charge(Hits(1)),
        limit: None,
    }];
    let asked = Check { domain: "d", descriptors: descriptors.into_iter().collect() };
    engine.acquire((id, 0), &asked, &asked, None).await.unwrap();
}

/// A gRPC message with the final access log entry of the request `id`.
fn framed(id: &str) -> Vec<u8> {
    let log_entry = vec![with_id(id, entry(AccessLogType::DownstreamEnd, 200))];
    let log_entries = Some(LogEntries::HttpLogs(HttpAccessLogEntries { log_entry }));
    let message = StreamAccessLogsMessage { identifier: None, log_entries }.encode_to_vec();
    [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), &message].concat()
}

#[tokio::test]
async fn draining_replica_reads_access_log_entries_in_transit() {
    let engine = engine_with_concurrency("limit: 101");
    let ids: Vec<_> = (0..101).map(|number| format!("{ID}{number}")).collect();
    for id in &ids {
        acquire_as(&engine, id).await;
    }
    assert_eq!(engine.concurrency_limits().totals().in_flight, 101);
    let (leave, leaving) = watch::channel(true);
    let mut logs = AccessLogService::new(Arc::clone(&engine), leaving);
    let (sender, receiver) = mpsc::channel(2);
    let body = axum::body::Body::from_stream(ReceiverStream::new(receiver));
    let path = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs";
    let request = http::Request::post(path).body(Body::new(body)).unwrap();
    let mut call = logs.call(request);
    let first_hundred: Vec<u8> = ids[..100].iter().flat_map(|id| framed(id)).collect();
    sender.send(Ok::<_, Infallible>(first_hundred)).await.unwrap();
    assert!(poll_immediate(&mut call).await.is_none(), "it listens on");
    assert_eq!(engine.concurrency_limits().totals().in_flight, 1);
    sender.send(Ok(framed(&ids[100]))).await.unwrap();
    drop(sender);
    soon("the end", call).await.unwrap();
    assert_eq!(engine.concurrency_limits().totals().in_flight, 0);
    drop(leave);
}

#[tokio::test]
async fn only_a_final_access_log_entry_releases_the_permit() {
    let engine = engine_with_concurrency("limit: 1");
    let served = served_with(Arc::clone(&engine), Readiness::Ready, Hooks::default()).await;
    let send_entries = async |entries: Vec<HttpAccessLogEntry>| {
        let log_entries = Some(LogEntries::HttpLogs(HttpAccessLogEntries { log_entry: entries }));
        let message = StreamAccessLogsMessage { identifier: None, log_entries };
        let mut client = AccessLogServiceClient::new(served.channel.clone());
        client.stream_access_logs(tokio_stream::iter([message])).await.unwrap();
        engine.concurrency_limits().totals().in_flight
    };
    acquire(&engine).await;
    let end = entry(AccessLogType::DownstreamEnd, 200);
    let others = vec![
        end.clone(),
        with_id("no id", end.clone()),
        with_id("fedcba9876543210", end.clone()),
        with_id(ID, entry(AccessLogType::DownstreamStart, 200)),
        with_id(ID, entry(AccessLogType::DownstreamPeriodic, 200)),
    ];
    assert_eq!(send_entries(others).await, 1);
    assert_eq!(send_entries(vec![with_id(ID, end.clone()), with_id(ID, end)]).await, 0);
}

#[tokio::test]
async fn invalid_access_log_entry_ends_the_stream_after_valid_ones() {
    let engine = engine_with_concurrency("limit: 1");
    let served = served_with(Arc::clone(&engine), Readiness::Ready, Hooks::default()).await;
    acquire(&engine).await;
    let end = with_id(ID, entry(AccessLogType::DownstreamEnd, 200)).encode_to_vec();
    // Entries are field 1 of the message. The first entry has a user agent that is not UTF-8.
    let broken = b"\x1a\x03\x2a\x01\xff".to_vec();
    assert!(HttpAccessLogEntry::decode(&*broken).is_err());
    let logs = [broken, end].map(|entry| field(1, &entry)).concat();
    let path = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs";
    assert_eq!(served.code(path, field(2, &logs)).await, Code::Internal);
    assert_eq!(engine.concurrency_limits().totals().in_flight, 0);
}

/// Encodes a length-delimited field of fewer than 2^14 bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap();
    let varint = [(length & 0x7f | 0x80).to_le_bytes()[0], (length >> 7).to_le_bytes()[0]];
    [&[number << 3 | 2], &varint[..], content].concat()
}

#[tokio::test]
async fn an_open_log_stream_does_not_delay_shutdown() {
    let served = served_with(empty_engine(), Readiness::Ready, Hooks::default()).await;
    let mut client = AccessLogServiceClient::new(served.channel.clone());
    let open = tokio::spawn(async move {
        client.stream_access_logs(tokio_stream::pending::<StreamAccessLogsMessage>()).await
    });
    tokio::task::yield_now().await;
    served.shut_down().await.unwrap();
    // Ignores the result: the stream ended normally or was never accepted.
    let _ended = soon("the end", open).await.unwrap();
}
