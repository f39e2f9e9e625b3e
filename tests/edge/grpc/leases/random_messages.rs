//! Random messages of a hostile proxy and a hostile program to a real process, with each store.

mod permits;

use sluicegate_lease_protocol::api::proxy_message::Message;
use sluicegate_lease_protocol::api::{
    self, DemandPoint, FleetReport, GrantInUse, LimitPermits, PermitAcquire, PermitInUse,
    PermitReport, ShareReport, ShareRound,
};

use tonic::transport::Channel;

use super::client::{ProxyStream, counter_of, entries};
use super::hostile::{LIMIT, LIMITS, Proxy, renamed_bucket};
use crate::support::dice::{Dice, seed};
use crate::support::postgres;
use crate::support::redis::Redis;
use crate::support::service::Service;

/// The messages of one hostile run, at most.
const MESSAGES: usize = 10_000;

/// The messages of one stream.
const STREAM_MESSAGES: usize = 200;

/// Any number: small, large, or at a bound.
fn any_number(dice: &mut Dice) -> u64 {
    let exact = 1 << 53;
    let bounds = [0, 1, 10, u64::from(u32::MAX), exact - 1, exact, 1_000 << 51, u64::MAX];
    if dice.once_in(2) { dice.pick(&bounds) } else { dice.up_to(1_000) }
}

fn any_bucket(dice: &mut Dice, known: &[Vec<u8>]) -> Vec<u8> {
    match dice.up_to(3) {
        0 => vec![7; usize::try_from(dice.up_to(2_000)).unwrap()],
        1 => renamed_bucket(&dice.up_to(1 << 40).to_string()),
        _ => known[usize::try_from(dice.up_to(known.len() as u64 - 1)).unwrap()].clone(),
    }
}

fn any_share_report(dice: &mut Dice, known: &[Vec<u8>]) -> ShareReport {
    let grant =
        GrantInUse { coordinator_incarnation: any_number(dice), generation: any_number(dice) };
    ShareReport {
        bucket: any_bucket(dice, known),
        incarnation: any_number(dice),
        number: any_number(dice),
        grant_in_use: dice.once_in(2).then_some(grant),
        in_flight: any_number(dice),
        demand: any_number(dice),
        curve: any_points(dice),
        vote: dice.once_in(2).then(|| u32::try_from(dice.up_to(1 << 17)).unwrap()),
        is_leaving: dice.once_in(5),
    }
}

/// The points of a curve, often invalid ones.
fn any_points(dice: &mut Dice) -> Vec<DemandPoint> {
    let count = u32::try_from(dice.up_to(9)).unwrap();
    let point = |class: u32| DemandPoint {
        class,
        level: u32::try_from(any_number(dice) % (1 << 28)).unwrap(),
        demand: u32::try_from(dice.up_to(1 << 27)).unwrap(),
    };
    (0..count).map(point).collect()
}

fn any_limit_permits(dice: &mut Dice, known: &[Vec<u8>]) -> LimitPermits {
    let count = dice.up_to(200);
    let permit =
        |dice: &mut Dice| PermitInUse { number: any_number(dice), time_left_ns: any_number(dice) };
    LimitPermits {
        bucket: any_bucket(dice, known),
        in_use: (0..count).map(|_| permit(dice)).collect(),
        released: (0..dice.up_to(20)).map(|_| any_number(dice)).collect(),
    }
}

fn any_message(dice: &mut Dice, known: &[Vec<u8>]) -> Message {
    let value = dice.up_to(1 << 30).to_string();
    match dice.up_to(9) {
        0 => {
            let entries = entries(&[(dice.pick(&["user", "shared", "none"]), &value)]);
            Message::Rule(api::RuleRequest { domain: "d".into(), entries })
        }
        1 => Message::Borrow(api::BorrowMessage {
            counter: Some(counter_of(&value, None)),
            number: any_number(dice),
            hits: any_number(dice),
            wanted: any_number(dice),
            demand: any_number(dice),
            balance: any_number(dice),
            returned: any_number(dice),
            last_lease: any_number(dice),
        }),
        2 => Message::Usage(api::UsageReport {
            leased_keys: any_number(dice),
            leased_hits: any_number(dice),
            ..api::UsageReport::default()
        }),
        3..=4 => Message::Acquire(PermitAcquire {
            bucket: any_bucket(dice, known),
            number: any_number(dice),
        }),
        5 => Message::Report(FleetReport {
            shares: None,
            permits: Some(PermitReport {
                limits: (0..dice.up_to(4)).map(|_| any_limit_permits(dice, known)).collect(),
            }),
        }),
        _ => Message::Report(FleetReport {
            shares: Some(ShareRound {
                coordinator_incarnation: dice.once_in(2).then(|| any_number(dice)),
                is_leaving: dice.once_in(9),
                reports: (0..dice.up_to(9)).map(|_| any_share_report(dice, known)).collect(),
            }),
            permits: None,
        }),
    }
}

/// Sends random messages on many streams and in single calls.
async fn send_random_messages(service: &Service, known: &[Vec<u8>], seed: u64) {
    let mut dice = Dice::new(seed);
    let channel = service.door().connect().await.unwrap();
    let mut sent = 0;
    while sent < MESSAGES {
        sent += match dice.up_to(4) {
            0 => permits::send_session(&channel, &mut dice).await,
            1 => permits::send_calls(&channel, &mut dice).await,
            _ => send_stream(&channel, known, &mut dice).await,
        };
    }
}

/// Sends the messages of a proxy. An invalid message ends its stream. Returns their number.
async fn send_stream(channel: &Channel, known: &[Vec<u8>], dice: &mut Dice) -> usize {
    let incarnation = 1_000 + dice.up_to(1 << 50);
    let mut stream = ProxyStream::connect(channel.clone(), incarnation).await;
    for sent in 1..=STREAM_MESSAGES {
        let message = any_message(dice, known);
        let has_reply = !matches!(message, Message::Usage(_));
        let id = if has_reply { u64::try_from(sent).unwrap() } else { 0 };
        stream.send(api::ProxyMessage { id, message: Some(message) }).await;
        if has_reply && stream.next().await.is_err() {
            return sent;
        }
    }
    STREAM_MESSAGES
}

fn resident_bytes(service: &Service) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.id())).unwrap();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix(" kB"));
    rss.unwrap().trim().parse::<u64>().unwrap() * 1_024
}

/// The most bytes by which the memory of the process may grow.
const MAX_GROWTH: u64 = 32 << 20;

/// Limits that no message names, and a limit with a queue.
const MORE_LIMITS: &str = "\
- {key: quiet, concurrency: {limit: 10, mode: shared, max_duration: 60s}}
- {key: quiet-strict, concurrency: {limit: 1, mode: strict, max_duration: 600s}}
- {key: queued, concurrency: {limit: 1, mode: local, max_duration: 60s, queue: {size: 50, timeout: 5ms}}}
";

async fn random_messages_change_no_limit_of_others(store: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let limits = format!("domain: d\ndescriptors:\n{LIMITS}{MORE_LIMITS}");
    std::fs::write(dir.path().join("d.yaml"), limits).unwrap();
    let mut flags: Vec<_> = store.iter().map(ToString::to_string).collect();
    flags.extend(["--store-timeout", "20s", "--fleet-share-expiry", "600s"].map(str::to_owned));
    let service = Service::start(dir.path(), &flags).unwrap();
    let channel = service.door().connect().await.unwrap();
    let mut honest = Proxy::new(ProxyStream::connect(channel.clone(), 7).await);
    let quiet = honest.bucket("quiet", "a").await;
    let mut known = Vec::new();
    for key in ["shared", "strict", "user"] {
        known.push(honest.bucket(key, "a").await);
    }
    let before = honest.beat(&quiet, LIMIT, 0).await;
    let mut program = permits::HonestProgram::acquire(channel).await;
    let memory = resident_bytes(&service);
    let seed = seed();
    send_random_messages(&service, &known, seed).await;
    let after = honest.beat(&quiet, LIMIT, 0).await;
    let lives = (after.coordinator_incarnation, before.coordinator_incarnation);
    assert_eq!(lives.0, lives.1, "SLUICEGATE_SEED={seed}");
    let both = (before.share, before.limit, before.is_recovering);
    let now = (after.share, after.limit, after.is_recovering);
    assert_eq!(now, both, "SLUICEGATE_SEED={seed}");
    program.expect_unchanged().await;
    let growth = resident_bytes(&service).saturating_sub(memory);
    assert!(growth < MAX_GROWTH, "{growth} bytes, SLUICEGATE_SEED={seed}");
}

#[tokio::test]
async fn random_messages_change_no_limit_of_others_in_memory() {
    random_messages_change_no_limit_of_others(&["--store-url", "memory"]).await;
}

#[tokio::test]
async fn random_messages_change_no_limit_of_others_in_redis() {
    let redis = Redis::start();
    random_messages_change_no_limit_of_others(&["--store-url", &redis.url()]).await;
}

#[tokio::test]
async fn random_messages_change_no_limit_of_others_in_postgres() {
    // Starting the server blocks, which this runtime does not allow.
    let server = tokio::task::spawn_blocking(postgres::shared).await.unwrap();
    let flags = ["--store-url", &server.url(), "--store-key-prefix", "hostile:"];
    random_messages_change_no_limit_of_others(&flags).await;
}
