//! Tests of the gRPC service `sluicegate.v1.Leases` over a real connection.

mod client;
mod counters;
mod fleet;
mod hostile;
mod random_messages;
mod rules;

use std::net::Ipv4Addr;
use std::sync::Arc;

use sluicegate::config::tables::{Loading, Table, TableSpec, read_rows};
use sluicegate::engine::proxies::{MAX_PEER_STREAMS, MAX_PROXY_STREAMS, PeerKey};
use sluicegate::engine::top_keys::TopKeysQuery;
use sluicegate::kernel::top_keys::TopWindow;
use sluicegate_lease_protocol::api::lease_message::Message as Reply;
use sluicegate_lease_protocol::api::leases_client::LeasesClient;
use sluicegate_lease_protocol::api::proxy_message::Message;
use sluicegate_lease_protocol::api::{
    BorrowMessage, ChargeMessage, CheckMessage, KeyUsage, LeaseMessage, LeaseWelcome,
    LimitsChanged, ProxyHello, ProxyMessage, RuleRequest, TableRow, UsageReport,
};
use tonic::Code;

use super::super::empty_engine;
use crate::support::engine::publish;
use crate::support::waiting::soon;
use client::{LEASED, ProxyStream, borrow, entries, hello, serve};

#[tokio::test]
async fn the_first_reply_names_version_and_limits() {
    let engine = empty_engine();
    publish(&engine, "", LEASED);
    let served = serve(&engine).await;
    let mut proxy = ProxyStream::open_unread(&served, hello(7)).await;
    let LeaseMessage { id, message } = proxy.next().await.unwrap().unwrap();
    let version = env!("CARGO_PKG_VERSION").into();
    let welcome = LeaseWelcome {
        version,
        replica: String::new(),
        limits: 1,
        // The defaults of `fleet.heartbeat` and `fleet.share_expiry`.
        heartbeat_us: 1_000_000,
        share_expiry_us: 5_000_000,
        replicas: 2,
    };
    assert_eq!((id, message), (0, Some(Reply::Welcome(welcome))));
}

#[tokio::test]
async fn another_protocol_version_is_a_failed_precondition() {
    let served = serve(&empty_engine()).await;
    let mut proxy = ProxyStream::open_unread(&served, ProxyHello { protocol: 2, ..hello(7) }).await;
    assert_eq!(proxy.end().await, Code::FailedPrecondition);
}

#[tokio::test]
async fn invalid_messages_end_the_stream_with_invalid_argument() {
    let engine = empty_engine();
    publish(&engine, "", LEASED);
    let served = serve(&engine).await;
    let rule =
        |domain: &str, entries| Some(Message::Rule(RuleRequest { domain: domain.into(), entries }));
    let numberless = Message::Borrow(BorrowMessage::default());
    let keys =
        vec![
            KeyUsage { domain: "d".into(), entries: entries(&[("k", "v")]), ..KeyUsage::default() };
            1_001
        ];
    let usage = |report| Some(Message::Usage(report));
    let huge = UsageReport { leased_hits: 1 << 53, ..UsageReport::default() };
    let messages = [
        (1, None),
        (0, rule("d", entries(&[("k", "v")]))),
        (1, rule("", entries(&[("k", "v")]))),
        (1, rule("d", vec![])),
        (1, Some(Message::Hello(hello(8)))),
        (1, Some(numberless)),
        (1, Some(Message::Check(CheckMessage::default()))),
        (1, Some(Message::Charge(ChargeMessage::default()))),
        (1, usage(UsageReport::default())),
        (0, usage(UsageReport { keys, ..UsageReport::default() })),
        (0, usage(huge)),
    ];
    for (index, (id, message)) in messages.into_iter().enumerate() {
        let mut proxy = ProxyStream::open(&served, 7).await;
        proxy.send(ProxyMessage { id, message }).await;
        assert_eq!(proxy.end().await, Code::InvalidArgument, "message {index}");
    }
    let incarnations = [0, 1 << 53];
    for incarnation in incarnations {
        let mut proxy = ProxyStream::open_unread(&served, hello(incarnation)).await;
        assert_eq!(proxy.end().await, Code::InvalidArgument, "{incarnation}");
    }
    let mut proxy =
        ProxyStream::open_with(&served, ProxyMessage { id: 1, message: rule("d", vec![]) }).await;
    assert_eq!(proxy.end().await, Code::InvalidArgument, "no hello");
}

#[tokio::test]
async fn a_newer_stream_replaces_the_older_of_one_incarnation() {
    let engine = empty_engine();
    publish(&engine, "", LEASED);
    let served = serve(&engine).await;
    let mut older = ProxyStream::open(&served, 7).await;
    let mut other = ProxyStream::open(&served, 8).await;
    let mut newer = ProxyStream::open(&served, 7).await;
    assert_eq!(older.end().await, Code::Aborted);
    for proxy in [&mut other, &mut newer] {
        proxy.rule("d", &[("k", "v")]).await;
    }
    assert_eq!(engine.proxies().count(), 2);
}

#[tokio::test]
async fn streams_above_the_maximum_are_refused() {
    let engine = empty_engine();
    let served = serve(&engine).await;
    let peers = (0..MAX_PROXY_STREAMS).map(|number| {
        let peer = u32::try_from(number / MAX_PEER_STREAMS).unwrap();
        engine.proxies().open_stream(PeerKey::of_address(Ipv4Addr::from_bits(peer).into()))
    });
    let slots: Vec<_> = peers.collect();
    assert!(slots.iter().all(Option::is_some));
    let mut client = LeasesClient::new(served.channel.clone());
    let refused = client.exchange(tokio_stream::pending()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    drop(slots);
    ProxyStream::open(&served, 7).await;
}

#[tokio::test]
async fn drain_ends_the_streams_without_an_error() {
    let served = serve(&empty_engine()).await;
    let mut proxy = ProxyStream::open(&served, 7).await;
    served.shut_down().await.unwrap();
    assert!(proxy.next().await.unwrap().is_none());
}

#[tokio::test]
async fn new_limits_are_announced_before_the_next_reply() {
    let engine = empty_engine();
    publish(&engine, "", LEASED);
    let served = serve(&engine).await;
    let mut proxy = ProxyStream::open(&served, 7).await;
    publish(&engine, "", LEASED);
    let rule = RuleRequest { domain: "d".into(), entries: entries(&[("k", "v")]) };
    proxy.send(ProxyMessage { id: 1, message: Some(Message::Rule(rule)) }).await;
    let changed = Reply::LimitsChanged(LimitsChanged { limits: 2 });
    let want = LeaseMessage { id: 0, message: Some(changed) };
    assert_eq!(proxy.next().await.unwrap(), Some(want));
    let reply = proxy.next().await.unwrap().unwrap();
    assert!(
        matches!(&reply.message, Some(Reply::Rule(rule)) if (reply.id, rule.limits) == (1, 2)),
        "{reply:?}"
    );
}

/// The table `customers` with these rows as CSV.
fn customers(rows: &str, before: Option<&Table>) -> Arc<Table> {
    let spec = Arc::new(TableSpec::new("customers", [].into(), 100).unwrap());
    let mut loading = Loading::new(spec, before);
    read_rows(format!("id,api\n{rows}").as_bytes(), &mut |row| {
        loading.add(row, &|_, _| Ok(())).map_err(std::io::Error::other)
    })
    .unwrap();
    Arc::new(loading.finish().unwrap().0)
}

/// Returns the rows in the next message, which has no id.
async fn changed_rows(proxy: &mut ProxyStream) -> Vec<TableRow> {
    match proxy.next().await.unwrap() {
        Some(LeaseMessage { id: 0, message: Some(Reply::RowsChanged(changed)) }) => changed.rows,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_proxy_hears_only_of_changed_rows_that_it_asked_for() {
    let engine = empty_engine();
    publish(&engine, "", &LEASED.replace("unit: day", "unit: day, from: customers.api"));
    let first = customers("a,10\nb,20\nc,30\n", None);
    engine.publish_tables([Arc::clone(&first)].into());
    let served = serve(&engine).await;
    let mut proxy = ProxyStream::open(&served, 7).await;
    for (id, requests) in [("a", 10), ("b", 20), ("new", 100)] {
        let rule = proxy.rule("d", &[("k", id)]).await;
        assert_eq!(rule.leased[0].requests, requests);
        assert_eq!(rule.rows, [TableRow { table: "customers".into(), id: id.into() }]);
    }
    // Of a full load, only `a` and `new` concern this proxy. A second proxy asked for nothing.
    let mut other = ProxyStream::open(&served, 8).await;
    let second = customers("a,11\nb,20\nc,31\nnew,7\n", Some(&first));
    engine.publish_tables([Arc::clone(&second)].into());
    let mut rows: Vec<_> = changed_rows(&mut proxy).await.into_iter().map(|row| row.id).collect();
    rows.sort();
    assert_eq!(rows, ["a", "new"]);
    assert_eq!(proxy.rule("d", &[("k", "a")]).await.leased[0].requests, 11);
    // A removed row and a change of one row.
    let third = customers("b,20\nc,31\nnew,7\n", Some(&second));
    engine.publish_tables([Arc::clone(&third)].into());
    assert_eq!(changed_rows(&mut proxy).await.len(), 1);
    let (fourth, _) =
        third.with_json_changes("{\"id\": \"b\", \"api\": 21}\n", &[], &|_, _| Ok(())).unwrap();
    engine.publish_tables([Arc::new(fourth)].into());
    assert_eq!(changed_rows(&mut proxy).await[0].id, "b");
    // A version that does not follow the last one changes all limits.
    engine.publish_tables([customers("b,20\n", None)].into());
    let limits = engine.proxies().limits();
    let want = Reply::LimitsChanged(LimitsChanged { limits });
    for proxy in [&mut proxy, &mut other] {
        assert_eq!(proxy.next().await.unwrap().unwrap().message, Some(want.clone()));
    }
}

#[tokio::test]
async fn a_rule_is_valid_until_its_row_ends() {
    let engine = empty_engine();
    publish(&engine, "", &LEASED.replace("unit: day", "unit: day, from: customers.api"));
    let spec = Arc::new(TableSpec::new("customers", [].into(), 100).unwrap());
    let rows = "{\"id\": \"a\", \"api\": 5, \"until\": \"2100-01-01T00:00:00Z\"}\n";
    let (table, _) = Table::empty(spec).with_json_changes(rows, &[], &|_, _| Ok(())).unwrap();
    engine.publish_tables([Arc::new(table)].into());
    let served = serve(&engine).await;
    let mut proxy = ProxyStream::open(&served, 7).await;
    assert!(proxy.rule("d", &[("k", "a")]).await.valid_for_us.is_some());
    assert_eq!(proxy.rule("d", &[("k", "b")]).await.valid_for_us, None);
}

#[tokio::test]
async fn reported_usage_counts_in_rules_and_top_keys() {
    let engine = empty_engine();
    publish(&engine, "", LEASED);
    let served = serve(&engine).await;
    let mut proxy = ProxyStream::open(&served, 7).await;
    let usage = KeyUsage {
        domain: "d".into(),
        entries: entries(&[("k", "v")]),
        allowed_requests: 5,
        denied_requests: 4,
        shadow_denied_requests: 3,
        fallback_allowed_requests: 2,
        fallback_denied_requests: 1,
        allowed_hits: 50,
        denied_hits: 40,
    };
    let unknown = KeyUsage { entries: entries(&[("unknown", "v")]), ..usage.clone() };
    let report = UsageReport {
        keys: vec![usage, unknown],
        leased_keys: 1,
        leased_hits: 9,
        ..UsageReport::default()
    };
    proxy.send(ProxyMessage { id: 0, message: Some(Message::Usage(report)) }).await;
    proxy.rule("d", &[("k", "v")]).await;
    let rules = engine.rule_decisions();
    let rule = rules.iter().find(|rule| &*rule.path == "d.k").unwrap();
    assert_eq!(rule.counts, [5, 4, 3, 2, 1]);
    let query = TopKeysQuery { window: TopWindow::Hour, domain: None, path: None, max: 20 };
    let page = engine.top_keys(&query);
    assert_eq!((page.all.total, page.denied.total), (90, 40));
    let [info] = &engine.proxies().list()[..] else { panic!("one proxy") };
    assert_eq!((info.hits.leased_keys, info.hits.leased_hits.0, info.messages), (1, 9, 2));
}

#[tokio::test]
async fn a_closed_stream_removes_the_proxy() {
    let engine = empty_engine();
    publish(&engine, "", LEASED);
    let served = serve(&engine).await;
    let mut proxy = ProxyStream::open(&served, 7).await;
    let strategy = proxy.rule("d", &[("k", "v")]).await.leased[0].strategy.clone();
    proxy.borrow(borrow(1, 0, 5), strategy).await;
    let [info] = &engine.proxies().list()[..] else { panic!("one proxy") };
    assert_eq!((&*info.identity.name, info.borrowed_hits), ("edge-1", 5));
    drop(proxy);
    let removed = async {
        while engine.proxies().count() != 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("the removal", removed).await;
}
