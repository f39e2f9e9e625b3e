//! The limiter of the module alone: the time of a decision, and calls per decision.
//!
//! Sluicegate runs in this process, on threads of its own.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::config::hooks::Hooks;
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::body_memory::BodyLimits;
use sluicegate::edge::grpc::incoming::GrpcListener;
use sluicegate::edge::grpc::{GrpcPort, serve};
use sluicegate::edge::health::{Health, Readiness};
use sluicegate::engine::{DecisionPolicy, Engine};
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::units::Revision;
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate_proxy::settings::{LimiterSettings, ProxyIdentity, ServiceSettings, WaitSettings};
use sluicegate_proxy::{Admission, Check, DescriptorEntries, Limiter, PendingAnswer, Started};

use super::patiently;

/// The budget of 100 hits for the only proxy.
const LIMITS: &str = "domain: shop\ndescriptors:\n- key: user\n  rate_limit: {unit: second, \
    requests_per_unit: 100000, strategy: fixed_window, mode: leased, max_overshoot: 100}\n\
    - key: route\n  rate_limit: {unit: second, requests_per_unit: 4000000, \
    strategy: fixed_window, mode: leased, max_overshoot: 100000}\n";

const KNOWN_KEYS: u32 = 1_000_000;

/// The keys with leased hits while [`KNOWN_KEYS`] are known.
const LEASED_KEYS: u32 = 2_000;

const WAIT: WaitSettings =
    WaitSettings { deadline: Duration::from_secs(1), failure: Verdict::Deny };

pub fn measure() {
    let (engine, address) = service();
    let service = ServiceSettings { address: address.to_string(), tls: None };
    let identity = ProxyIdentity { name: "bench".into(), software: "bench/1".into() };
    // Enough for all known keys.
    let settings = LimiterSettings { service, identity, memory_bytes: 8 << 30 };
    let limiter = Limiter::start_thread(settings, |_| {}, |_, _| {}).unwrap();
    patiently("the connection", || limiter.is_connected().then_some(()));
    println!("\nthe limiter alone");
    calls_per_decision(&limiter, &engine);
    decision_time(&limiter, 1_000);
    let began = Instant::now();
    (0..KNOWN_KEYS).for_each(|key| drop(decide(&limiter, key)));
    println!("{KNOWN_KEYS} keys became known in {:.1} s", began.elapsed().as_secs_f64());
    // Leases of the first keys have expired by now.
    (0..LEASED_KEYS).for_each(|key| drop(decide(&limiter, key)));
    decision_time(&limiter, LEASED_KEYS);
}

fn calls_per_decision(limiter: &Limiter, engine: &Engine) {
    let messages = || engine.proxies().list()[0].messages;
    for _ in 0..200 {
        (0..1_000).for_each(|key| drop(decide(limiter, key)));
    }
    let (before, rounds) = (messages(), 1_000);
    for _ in 0..rounds {
        (0..1_000).for_each(|key| drop(decide(limiter, key)));
    }
    let calls = messages() - before;
    println!("calls per decision, 1,000 keys, budget 100 hits: {:.4}", calls as f64 / 1e6);
}

/// Prints the mean time of decisions about two descriptors, one of them of `keys` values.
fn decision_time(limiter: &Limiter, keys: u32) {
    let (mut in_place, mut spent) = (0, Duration::ZERO);
    for number in 0..200_000_u32 {
        let key = number.wrapping_mul(2_654_435_761) % keys;
        let text = format!("user-{key:07}");
        let descriptors = [entries("route", "all"), entries("user", &text)];
        let check = Check { domain: "shop", descriptors: &descriptors, wait: WAIT };
        let began = Instant::now();
        let started = limiter.start(&check);
        let elapsed = began.elapsed();
        match started {
            Started::Decided(_) => {
                in_place += 1;
                spent += elapsed;
            }
            Started::Waiting(pending) => drop(wait(&pending)),
        }
    }
    let mean = spent.as_nanos() as f64 / f64::from(in_place);
    println!(
        "decision without a call, 2 descriptors, {keys} keys: {mean:.0} ns mean of {in_place}"
    );
}

fn decide(limiter: &Limiter, key: u32) -> Option<Admission> {
    let text = format!("user-{key:07}");
    let descriptors = [entries("user", &text)];
    let check = Check { domain: "shop", descriptors: &descriptors, wait: WAIT };
    match limiter.start(&check) {
        Started::Decided(admission) => Some(admission),
        Started::Waiting(pending) => wait(&pending),
    }
}

fn wait(pending: &PendingAnswer) -> Option<Admission> {
    let (sender, receiver) = mpsc::sync_channel(1);
    pending.wake_with(Box::new(move || sender.send(()).unwrap()));
    receiver.recv().unwrap();
    pending.take()
}

fn entries<'e>(key: &'e str, value: &'e str) -> DescriptorEntries<'e> {
    [(key, Cow::Borrowed(value))].into_iter().collect()
}

fn service() -> (Arc<Engine>, SocketAddr) {
    let store = Arc::new(MemoryStore::new(2 * KNOWN_KEYS as usize, WhenFull::Deny, [7; 16]));
    let engine = Arc::new(Engine::new(Clock::system(), store, DecisionPolicy::default()));
    let (config, _) = config::load([("shop.yaml", LIMITS.as_bytes())], Revision(1), false).unwrap();
    engine.publish(Arc::new(config));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let grpc = GrpcPort {
        engine: Arc::clone(&engine),
        reporting: ReplyOptions::default(),
        health: Health::new(Readiness::Ready),
        hooks: Arc::new(Hooks::default()),
        reflection: false,
        tls: None,
        max_connections: 100,
        connection_age: None,
        mirror: None,
        proxies: sluicegate::config::settings::ProxyAccess::Auto,
        bodies: BodyLimits::default(),
    };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            serve(GrpcListener::Tcp(listener), grpc, std::future::pending()).await.unwrap();
        });
    });
    (engine, address)
}
