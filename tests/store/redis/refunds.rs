//! Refunds of counters with envoyproxy/ratelimit keys, while other checks charge the same counters.
//!
//! A proxy between Sluicegate and Redis delays replies until all concurrent operations have
//! happened.

use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use sluicegate::kernel::decision::Cost;
use sluicegate::kernel::units::Hits;
use sluicegate::store::redis::{Address, RedisStore, RedisTopology, StoreGroup, reference};
use sluicegate::store::{Charge, ChargeMode, ChargeOutcome, CounterStore as _};
use tokio::task::JoinHandle;

use super::fallback::redis_at;
use super::reference::{charge, charge_all, charges, now, stored_count, verdict_and_remaining};
use crate::support::proxy::{Flow, Proxy, Upstream, Way};
use crate::support::redis::Redis;
use crate::support::waiting::{PATIENCE, for_a_day_with_a_minute_left, until};

struct RefundRace {
    stores: StoreGroup,
    main: Redis,
    proxy: Proxy,
    _second: Redis,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for RefundRace {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn scene(denied_bytes: usize) -> RefundRace {
    for_a_day_with_a_minute_left();
    let servers = || {
        let (main, second) = (Redis::start(), Redis::start());
        let proxy = Proxy::before(Upstream::Unix(main.socket()));
        (main, second, proxy)
    };
    // A separate thread, because the proxy starts its own tokio runtime, which an async test may
    // not do.
    let (main, second, proxy) = std::thread::spawn(servers).join().unwrap();
    let connected = |place| {
        let (redis, connection) = RedisStore::new(redis_at(place, PATIENCE * 2));
        (redis, tokio::spawn(connection))
    };
    let address = proxy.address();
    let address = Address { host: address.ip().to_string(), port: address.port() };
    let (first, its_task) = connected(RedisTopology::Tcp(address));
    let (other, other_task) = connected(RedisTopology::Unix(second.socket()));
    let options = reference::CompatOptions {
        deny_cache_bytes: denied_bytes,
        ..reference::CompatOptions::default()
    };
    let stores = StoreGroup::new(first).with_per_second(other).with_reference(options);
    let scene = RefundRace { stores, main, proxy, _second: second, tasks: [its_task, other_task] };
    let answers =
        || scene.stores.current_failure().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
    until("both are connected", answers).unwrap();
    scene
}

fn poll_once(future: Pin<&mut impl Future>) {
    assert!(future.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refund_clears_a_remembered_denial_in_any_reply_order() {
    let (scene, now) = (scene(100_000), now());
    for denial_arrives_first in [true, false] {
        let name = if denial_arrives_first { "before" } else { "after" };
        let of = |charge| charges([charge], ChargeMode::Each);
        let (all, one) = (of(charge(name, 10, 10)), of(charge(name, 10, 1)));
        let back = of(Charge { cost: Cost::Refund(Hits(5)), ..charge(name, 10, 0) });
        charge_all(&scene.stores, now, &all).await;
        scene.proxy.set(Way::FromStore, Flow::Hold);
        let mut denied = pin!(charge_all(&scene.stores, now, &one));
        poll_once(denied.as_mut());
        until("it is counted", || match stored_count(&scene.main, name, now) {
            Some(11) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .unwrap();
        let mut refunded = pin!(charge_all(&scene.stores, now, &back));
        poll_once(refunded.as_mut());
        scene.proxy.pass();
        let (denied, refunded) = if denial_arrives_first {
            (denied.await, refunded.await)
        } else {
            let refunded = refunded.await;
            (denied.await, refunded)
        };
        assert_eq!(verdict_and_remaining(denied[0]), (true, Some(0)), "{name}");
        assert!(matches!(refunded[0], ChargeOutcome::Refunded(_)), "{name}: {refunded:?}");
        let outcome = charge_all(&scene.stores, now, &one).await[0];
        assert_eq!(
            verdict_and_remaining(outcome),
            (false, Some(3)),
            "{name}: 11 counted, 5 back, 1 more: 7 of 10"
        );
    }
}
