//! Compares the permit scripts of strict concurrency limits with the kernel.

mod corrupt_state;
mod expiry;

use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::units::{Nanos, Share};
use sluicegate::store::StoreFailure;
use sluicegate::store::heartbeat::BucketKey;
use sluicegate::store::memory::permits::StrictLimits;
use sluicegate::store::permits::{
    AcquireOutcome, LimitPermits, LimitPermitsReply, PermitCorrections, PermitId, PermitReport,
    PermitTiming, StrictAcquire, StrictPermitReply, StrictPermitRequest,
};
use sluicegate::store::redis::codec::permits::{
    PackedPermitCall, PermitCallContext, PermitPartition, pack_acquire, pack_report, read_acquire,
    read_report,
};
use sluicegate::store::redis::{ACQUIRE_SCRIPT, PERMIT_REPORT_SCRIPT};

use super::traces;
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;
use crate::support::resp::{Client, Value};

const START: Nanos = Nanos(1_763_632_345_678_912_000);

/// Number of random traces, with 24,000 steps in all.
const TRACES: u64 = 60;

const STEPS: usize = 400;

const CEILINGS: u64 = 3;

const REPLICAS: u64 = 4;

const GRACE: Nanos = Nanos::from_secs(3);

const TIMES: PermitTiming = PermitTiming {
    grace: GRACE,
    max_silence: Nanos::from_secs(20),
    max_lifetime: Nanos::from_secs(60),
};

struct Scripted {
    client: Client,
    acquire: String,
    tell: String,
}

impl Scripted {
    fn new(redis: &Redis) -> Self {
        let mut client = redis.connect();
        let acquire = client.call(&["SCRIPT", "LOAD", ACQUIRE_SCRIPT]).text();
        let tell = client.call(&["SCRIPT", "LOAD", PERMIT_REPORT_SCRIPT]).text();
        Self { client, acquire, tell }
    }

    fn queue(&mut self, sha: &str, call: PackedPermitCall) {
        let count = call.keys.len().to_string();
        let head = [b"EVALSHA".to_vec(), sha.as_bytes().to_vec(), count.into_bytes()];
        let parts: Vec<_> = head.into_iter().chain(call.keys).chain(call.args).collect();
        self.client.queue(&parts);
    }

    fn put(&mut self, act: &Act, params: PermitCallContext<'_>) {
        match act {
            Act::Acquire(asked) => {
                let sha = self.acquire.clone();
                self.queue(&sha, pack_acquire(asked, params));
            }
            Act::Tell(round) => {
                let sha = self.tell.clone();
                self.queue(&sha, pack_report(round.limits.iter(), params));
            }
        }
    }

    fn take(&mut self, act: &Act) -> ScriptReply {
        let reply = match self.client.receive() {
            reply @ Value::Array(_) => reply.ints(),
            other => panic!("{other:?}"),
        };
        match act {
            Act::Acquire(_) => ScriptReply::Answer(read_acquire(&reply).unwrap()),
            Act::Tell(round) => {
                ScriptReply::Heard(read_report(round.limits.iter(), &reply).unwrap())
            }
        }
    }

    fn ask(&mut self, act: &Act) -> ScriptReply {
        self.put(act, params("test:", "a", None));
        self.client.flush();
        self.take(act)
    }
}

fn params<'a>(prefix: &'a str, store: &'a str, at: Option<Nanos>) -> PermitCallContext<'a> {
    PermitCallContext {
        prefix: prefix.as_bytes(),
        partition: PermitPartition::Only,
        run_id: store,
        times: &TIMES,
        at,
    }
}

#[derive(Clone, Debug)]
enum Act {
    Acquire(StrictPermitRequest),
    Tell(PermitReport),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ScriptReply {
    Answer(Option<StrictPermitReply>),
    Heard(Vec<Result<LimitPermitsReply, StoreFailure>>),
}

fn bucket(number: u64) -> BucketKey {
    let number = number.to_string();
    CounterKey::concurrency_bucket("d", [("ceiling", &*number)].into_iter()).as_bytes().into()
}

/// Generates random permit calls of replicas that lose, repeat and delay messages.
struct PermitTrace {
    dice: Dice,
    now: Nanos,
    store: &'static str,
    strict: StrictLimits,
    limits: Vec<u64>,
    /// The last permit number of each replica.
    given: Vec<u64>,
}

impl PermitTrace {
    fn new(mut dice: Dice) -> Self {
        let limits = (0..CEILINGS).map(|_| dice.pick(&[1, 2, 3, 10, 10, 100])).collect();
        let given = (0..REPLICAS).map(|_| 0).collect();
        Self { dice, now: START, store: "a", strict: StrictLimits::default(), limits, given }
    }

    fn wait(&mut self) {
        let millis = match self.dice.up_to(20) {
            0..=9 => 0,
            10..=16 => self.dice.up_to(300),
            17..=18 => self.dice.up_to(1_500),
            19 => self.dice.pick(&[1_000, 3_000, 20_000, 60_000]),
            _ => self.dice.up_to(5_000),
        };
        let micros = if 1_000 <= millis || self.dice.once_in(2) { 0 } else { self.dice.up_to(9) };
        self.now = self.now.plus(Nanos(millis * Nanos::MILLI.0 + micros * 1_000));
        if self.dice.once_in(60) {
            let back = self.dice.pick(&[1, 700, 4_000, 100_000]);
            self.now = Nanos(self.now.0 - back * Nanos::MILLI.0);
        }
        if self.dice.once_in(150) {
            self.store = self.dice.pick(&["a", "b", ""]);
        }
    }

    /// A permit id of a random replica, usually a recently acquired one.
    fn id(&mut self) -> PermitId {
        let replica = self.dice.up_to(REPLICAS - 1);
        let newest = self.given[usize::try_from(replica).unwrap()];
        PermitId(replica + (1 << 63), newest.saturating_sub(self.dice.up_to(6)))
    }

    fn keep(&mut self) -> Nanos {
        let millis = self.dice.pick(&[0, 1, 400, 3_000, 3_000, 3_000, 60_000]);
        Nanos(millis * Nanos::MILLI.0)
    }

    fn ids(&mut self, most: u64) -> Vec<PermitId> {
        (0..self.dice.up_to(most)).map(|_| self.id()).collect()
    }

    fn act(&mut self) -> Act {
        let ceiling = self.dice.up_to(CEILINGS - 1);
        if self.dice.once_in(50) {
            self.limits[usize::try_from(ceiling).unwrap()] = 1 + self.dice.up_to(12);
        }
        if !self.dice.once_in(4) {
            let replica = usize::try_from(self.dice.up_to(REPLICAS - 1)).unwrap();
            self.given[replica] += 1;
            let id = if self.dice.once_in(6) {
                self.id()
            } else {
                PermitId(replica as u64 + (1 << 63), self.given[replica])
            };
            let limit = Share(self.limits[usize::try_from(ceiling).unwrap()]);
            let ask = StrictAcquire { id, limit, lifetime: self.keep(), timing: TIMES };
            return Act::Acquire(StrictPermitRequest { bucket: bucket(ceiling), permit: ask });
        }
        let count = self.dice.up_to(CEILINGS);
        let told = (0..count).map(|at| {
            let held = self.ids(5).into_iter().map(|id| (id, self.keep())).collect();
            LimitPermits {
                bucket: bucket((ceiling + at) % CEILINGS),
                in_use: held,
                released: self.ids(9),
                is_claimed: self.dice.once_in(4),
            }
        });
        Act::Tell(PermitReport { times: TIMES, to_all_nodes: true, limits: told.collect() })
    }

    fn step(&mut self) -> (Act, &'static str, Nanos, ScriptReply) {
        self.wait();
        let act = self.act();
        let said = match &act {
            Act::Acquire(asked) => {
                ScriptReply::Answer(Some(self.strict.acquire(self.now, self.store, asked)))
            }
            Act::Tell(round) => {
                let heard = self.strict.apply_report(self.now, self.store, round);
                ScriptReply::Heard(heard.into_iter().map(Ok).collect())
            }
        };
        (act, self.store, self.now, said)
    }
}

/// Counts of replies: acquired, limit reached, closed in the grace period, restored and released.
#[derive(Debug, Default)]
struct PermitCounts([u64; 5]);

impl PermitCounts {
    fn count(&mut self, reply: &ScriptReply) {
        match reply {
            ScriptReply::Answer(Some(answer)) => {
                self.0[match answer.result {
                    AcquireOutcome::Acquired => 0,
                    AcquireOutcome::LimitReached => 1,
                    AcquireOutcome::Closed(_) => 2,
                }] += 1;
            }
            ScriptReply::Answer(None) => {}
            ScriptReply::Heard(all) => {
                for heard in all.iter().flatten() {
                    self.0[3] += heard.changes.restored;
                    self.0[4] += heard.changes.freed;
                }
            }
        }
    }
}

#[test]
fn permit_scripts_match_the_kernel() {
    let (redis, seed) = (Redis::start(), seed());
    println!("SLUICEGATE_SEED={seed}");
    let mut scripted = Scripted::new(&redis);
    let mut tally = PermitCounts::default();
    for number in 0..traces(TRACES) {
        let mut generator = PermitTrace::new(Dice::new(seed ^ number << 32));
        let prefix = format!("{number}:");
        let trace: Vec<_> = (0..STEPS).map(|_| generator.step()).collect();
        for (act, store, now, _) in &trace {
            scripted.put(act, params(&prefix, store, Some(*now)));
        }
        scripted.client.flush();
        for (step, (act, store, now, wanted)) in trace.iter().enumerate() {
            let place = format!("SLUICEGATE_SEED={seed}, trace {number}, step {step}");
            assert_eq!(scripted.take(act), *wanted, "{place}: {act:?} to {store} at {now}");
            tally.count(wanted);
        }
    }
    println!("{tally:?}");
    assert!(tally.0.iter().all(|count| traces(200) < *count), "{tally:?}");
}

fn acquire(number: u64, keep: Nanos) -> Act {
    let ask =
        StrictAcquire { id: PermitId(1, number), limit: Share(2), lifetime: keep, timing: TIMES };
    Act::Acquire(StrictPermitRequest { bucket: bucket(0), permit: ask })
}

fn report(in_flight: &[(PermitId, Nanos)], released: &[PermitId]) -> Act {
    let told = LimitPermits {
        bucket: bucket(0),
        in_use: in_flight.to_vec(),
        released: released.to_vec(),
        is_claimed: false,
    };
    Act::Tell(PermitReport { times: TIMES, to_all_nodes: false, limits: vec![told] })
}

#[test]
fn new_store_counts_reported_permits_but_grants_none() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    let ScriptReply::Answer(Some(first)) = scripted.ask(&acquire(0, GRACE)) else { panic!() };
    assert_eq!((first.result, first.held), (AcquireOutcome::Closed(GRACE), Share(0)));
    let heard = scripted.ask(&report(&[(PermitId(1, 7), GRACE)], &[PermitId(1, 8)]));
    let found = PermitCorrections { restored: 1, freed: 0 };
    assert_eq!(
        heard,
        ScriptReply::Heard(vec![Ok(LimitPermitsReply { changes: found, held: Share(1) })])
    );
    let ScriptReply::Answer(Some(again)) = scripted.ask(&acquire(7, GRACE)) else { panic!() };
    assert_eq!(again.result, AcquireOutcome::Acquired, "it is held already");
}

#[test]
fn call_without_a_store_name_keeps_the_incarnation() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    let mut strict = StrictLimits::default();
    let mut number = 0;
    let mut closed = |seconds: u64, store: &str| {
        number += 1;
        let (act, at) = (acquire(number, Nanos::MILLI), START.plus(Nanos::from_secs(seconds)));
        let Act::Acquire(asked) = &act else { unreachable!() };
        scripted.put(&act, params("test:", store, Some(at)));
        scripted.client.flush();
        let ScriptReply::Answer(Some(answer)) = scripted.take(&act) else { panic!() };
        assert_eq!(answer, strict.acquire(at, store, asked), "{store}");
        match answer.result {
            AcquireOutcome::Closed(left) => left,
            _ => Nanos(0),
        }
    };
    let [none, second] = [Nanos(0), Nanos::from_secs(1)];
    // The first call starts one incarnation, for calls with and without the store name.
    assert_eq!([closed(0, "a"), closed(2, ""), closed(2, "a")], [GRACE, second, second]);
    assert_eq!([closed(3, ""), closed(3, "a"), closed(4, ""), closed(4, "a")], [none; 4]);
    assert_eq!([closed(5, "b"), closed(7, ""), closed(8, "b")], [GRACE, second, none]);
}

#[test]
fn first_call_with_a_store_name_restarts_the_grace_period() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    let mut closed = |seconds: u64, store: &str| {
        let (act, at) = (acquire(seconds, Nanos::MILLI), START.plus(Nanos::from_secs(seconds)));
        scripted.put(&act, params("test:", store, Some(at)));
        scripted.client.flush();
        let ScriptReply::Answer(Some(answer)) = scripted.take(&act) else { panic!() };
        matches!(answer.result, AcquireOutcome::Closed(_))
    };
    assert_eq!([closed(0, ""), closed(3, "")], [true, false]);
    assert_eq!(
        [closed(4, "a"), closed(5, ""), closed(7, ""), closed(8, "a")],
        [true, true, false, false]
    );
}
