//! Hits that are given back under the reference's keys while others are under way to the same counter. The
//! store is behind a proxy, which holds back what it answers until all that is to come between has come.

use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use sluicegate::backend::redis::{Address, Place, Redis, Stores, reference};
use sluicegate::backend::{Backend as _, Charge, Outcome, Rule};
use sluicegate::kernel::decision::{Cost, Standing};
use sluicegate::kernel::units::Hits;
use tokio::task::JoinHandle;

use super::Store;
use super::degrade::redis_at;
use super::reference::{ALL, DAY, ask, charge, charges, gist, held, now, ours};
use crate::support::proxy::{Flow, Proxy, Upstream, Way};
use crate::waiting::{PATIENCE, for_a_day_with_a_minute_left, until};

/// The most that a counter can hold.
const MOST: u64 = 9_223_372_036_854_775_807;

/// Stores, and what keeps them connected; the main one is behind the proxy.
struct Scene {
    stores: Stores,
    main: Store,
    proxy: Proxy,
    _second: Store,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn scene(denied_bytes: usize) -> Scene {
    for_a_day_with_a_minute_left();
    let servers = || {
        let (main, second) = (Store::running(), Store::running());
        let proxy = Proxy::before(Upstream::Unix(main.socket()));
        (main, second, proxy)
    };
    // Elsewhere: the proxy has a runtime of its own.
    let (main, second, proxy) = std::thread::spawn(servers).join().unwrap();
    let connected = |place| {
        // Three steps, each of which may take as long as a test waits for anything.
        let (redis, connection) = Redis::new(redis_at(place, PATIENCE * 3));
        (redis, tokio::spawn(connection))
    };
    let address = proxy.address();
    let address = Address { host: address.ip().to_string(), port: address.port() };
    let (first, its_task) = connected(Place::Tcp(address));
    let (other, other_task) = connected(Place::Unix(second.socket()));
    let options = reference::Options { denied_bytes, ..reference::Options::default() };
    let stores = Stores::new(first).with_per_second(other).with_reference(options);
    let scene = Scene { stores, main, proxy, _second: second, tasks: [its_task, other_task] };
    let answers = || scene.stores.trouble().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
    until("both are connected", answers).unwrap();
    scene
}

/// How often the store was asked what a key holds.
fn looks(store: &Store) -> u64 {
    let stats = store.tell(&["INFO", "commandstats"]).text();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_get:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// Begins to ask, and no more.
fn begin(asked: Pin<&mut impl Future>) {
    assert!(asked.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_second_step_charged_is_given_back_to_the_key_that_denied_it_too() {
    for denied_bytes in [0, 100_000] {
        let (scene, now) = (scene(denied_bytes), now());
        let key = |name| format!("d_k_{name}_{}", now.0 / DAY.0 * 86_400);
        scene.main.tell(&["SET", &key("full"), &MOST.to_string()]);
        let elsewhere = |hits| Charge { per_second: true, ..ours("log", 10, hits) };
        let reported = Standing { shadow: true, ..Standing::default() };
        let full = Charge { standing: reported, ..charge("full", 10, 7) };
        let asked = charges([charge("few", 10, 7), full, elsewhere(7)], ALL);
        scene.proxy.set(Way::FromStore, Flow::Hold);
        let between = async {
            until("both keys are looked at", || match looks(&scene.main) {
                2 => Ok(()),
                other => Err(other.to_string()),
            })
            .unwrap();
            scene.main.tell(&["INCRBY", &key("few"), "5"]);
            scene.proxy.pass();
        };
        let (outcomes, ()) = tokio::join!(ask(&scene.stores, now, &asked), between);
        assert_eq!(
            gist(outcomes[0]),
            (true, Some(0)),
            "as the reference, which leaves nothing beside a denial"
        );
        assert_eq!(held(&scene.main, "few", now), Some(5), "nothing was admitted");
        assert_eq!(held(&scene.main, "full", now), Some(MOST), "it took nothing");
        let rest = charges([charge("few", 10, 5), elsewhere(10)], ALL);
        let outcomes = ask(&scene.stores, now, &rest).await;
        assert!(outcomes.iter().all(|outcome| !outcome.denies()), "{outcomes:?}");
        assert_eq!(held(&scene.main, "few", now), Some(10));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_given_back_are_heeded_whenever_a_denial_from_before_them_is_heard() {
    let (scene, now) = (scene(100_000), now());
    for is_heard_first in [true, false] {
        let name = if is_heard_first { "before" } else { "after" };
        let of = |charge| charges([charge], Rule::Each);
        let (all, one) = (of(charge(name, 10, 10)), of(charge(name, 10, 1)));
        let back = of(Charge { cost: Cost::Refund(Hits(5)), ..charge(name, 10, 0) });
        ask(&scene.stores, now, &all).await;
        scene.proxy.set(Way::FromStore, Flow::Hold);
        let mut denied = pin!(ask(&scene.stores, now, &one));
        begin(denied.as_mut());
        until("it is counted", || match held(&scene.main, name, now) {
            Some(11) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .unwrap();
        let mut given = pin!(ask(&scene.stores, now, &back));
        begin(given.as_mut());
        scene.proxy.pass();
        let (denied, given) = if is_heard_first {
            (denied.await, given.await)
        } else {
            let given = given.await;
            (denied.await, given)
        };
        assert_eq!(gist(denied[0]), (true, Some(0)), "{name}");
        assert!(matches!(given[0], Outcome::Refunded(_)), "{name}: {given:?}");
        let outcome = ask(&scene.stores, now, &one).await[0];
        assert_eq!(gist(outcome), (false, Some(3)), "{name}: 11 counted, 5 back, 1 more: 7 of 10");
    }
}
