//! Compares cached denials with the counters that denied.

use proptest::prelude::*;

use super::{Call, Denial, Ledger, Ledgers, Shard, WAYS};
use crate::backend::{Charge, Home};
use crate::kernel::decision::{Cost, Standing};
use crate::kernel::key::{CounterKey, Counting};
use crate::kernel::rate::fixed_window::{Count, FixedWindow, Windows};
use crate::kernel::rate::gcra::{Gcra, Tat};
use crate::kernel::rate::sliding_log::{Log, SlidingLog};
use crate::kernel::rate::sliding_window::{Pair, SlidingWindow};
use crate::kernel::rate::{Room, Step, Strategy};
use crate::kernel::units::{Hits, Nanos, Revision};

const NOW: Nanos = Nanos::from_secs(1_000_000_007);

/// A counter of each strategy.
enum Counter {
    Gcra(Gcra, Tat),
    Fixed(FixedWindow, Count),
    Sliding(SlidingWindow, Pair),
    Log(SlidingLog, Log),
}

impl Counter {
    fn new(which: u8, limit: u32, period: Nanos) -> Self {
        match which {
            0 => Self::Gcra(Gcra::new(limit, period, limit).unwrap(), Tat::default()),
            1 => {
                let fixed = FixedWindow::new(limit, Windows::Every(period)).unwrap();
                Self::Fixed(fixed, Count::default())
            }
            2 => Self::Sliding(SlidingWindow::new(limit, period).unwrap(), Pair::default()),
            _ => Self::Log(SlidingLog::new(limit, period).unwrap(), Log::default()),
        }
    }

    fn strategy(&self) -> Strategy {
        match self {
            Self::Gcra(limit, _) => Strategy::Gcra(*limit),
            Self::Fixed(limit, _) => Strategy::FixedWindow(*limit),
            Self::Sliding(limit, _) => Strategy::SlidingWindow(*limit),
            Self::Log(limit, _) => Strategy::SlidingLog(*limit),
        }
    }

    fn step(&mut self, now: Nanos, hits: Hits) -> Step {
        match self {
            Self::Gcra(limit, state) => limit.step(state, now, hits),
            Self::Fixed(limit, state) => limit.step(state, now, hits),
            Self::Sliding(limit, state) => limit.step(state, now, hits),
            Self::Log(limit, state) => limit.step(state, now, hits),
        }
    }

    fn ask(&self, now: Nanos, hits: Hits) -> Step {
        match self {
            Self::Gcra(limit, state) => limit.ask(state, now, hits),
            Self::Fixed(limit, state) => limit.ask(state, now, hits),
            Self::Sliding(limit, state) => limit.ask(state, now, hits),
            Self::Log(limit, state) => limit.ask(state, now, hits),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn cached_denials_agree_with_the_counter_and_never_shorten_retry_after(
        which in 0_u8..4,
        limit in 1_u32..20,
        period in 1_u64..100,
        charges in prop::collection::vec((0_u64..3_000_000_000, 0_u64..10), 0..10),
        denied in 1_u64..20,
        took in 0_u64..1_000_000_000,
        later in 0_u64..200_000_000_000,
        hits in 1_u64..30,
    ) {
        let mut counter = Counter::new(which, limit, Nanos::from_secs(period));
        let mut sent = NOW;
        for (pause, cost) in charges {
            sent = sent.plus(Nanos(pause));
            counter.step(sent, Hits(cost));
        }
        // The store decides at some instant between sending and reply.
        let (stored, answered) = (sent.plus(Nanos(took / 2)), sent.plus(Nanos(took)));
        let Step::Deny { retry_after, room } = counter.step(stored, Hits(denied)) else {
            return Ok(());
        };
        let under = (Revision(1), counter.strategy());
        let call = Call { sent, answered, revision: Revision(1) };
        let denial = Denial::new(Hits(denied), retry_after, room, call);
        let ledger = Ledger { hash: [0; 2], under, denial };
        let now = answered.plus(Nanos(later));
        match (ledger.answer(under, Hits(hits), now), counter.ask(now, Hits(hits))) {
            (None, _) => {}
            (Some(Step::Never(_)), asked) => prop_assert!(matches!(asked, Step::Never(_))),
            (Some(Step::Deny { retry_after, room }), Step::Deny { retry_after: truly, .. }) => {
                prop_assert!(denied <= hits && truly <= retry_after);
                let slack = Nanos(took).plus(under.1.tick().size()).plus(under.1.tick().size());
                prop_assert!(retry_after <= truly.plus(slack), "{retry_after} {truly}");
                prop_assert!(room.remaining < Hits(hits));
                let rested = now.plus(room.reset_after);
                let admits = matches!(counter.ask(rested, Hits(limit.into())), Step::Admit(_));
                prop_assert!(admits, "told that it is rested before it is");
            }
            (Some(other), asked) => prop_assert!(false, "{other:?} for {asked:?}"),
        }
        let over = sent.plus(retry_after);
        prop_assert_eq!(ledger.answer(under, Hits(denied), over), None);
        if 0 < retry_after.0 {
            let last = ledger.answer(under, Hits(denied), Nanos(over.0 - 1));
            let denied = matches!(last, Some(Step::Deny { .. }));
            prop_assert!(denied);
        }
        prop_assert_eq!(ledger.answer((Revision(2), under.1), Hits(denied), sent), None);
    }
}

fn ledger(number: u64, hits: u64, over: u64) -> Ledger {
    let fixed = FixedWindow::new(9, Windows::Every(Nanos::from_secs(60))).unwrap();
    let call = Call { sent: Nanos(0), answered: Nanos(0), revision: Revision(1) };
    Ledger {
        hash: [0, number],
        under: (Revision(1), Strategy::FixedWindow(fixed)),
        denial: Denial::new(Hits(hits), Nanos(over), Room::default(), call),
    }
}

fn known(shard: &Shard) -> Vec<(u64, u64)> {
    shard.ledgers.iter().map(|held| (held.hash[1], held.denial.hits.0)).collect()
}

#[test]
fn full_shards_evict_the_soonest_expiry() {
    let mut shard = Shard::default();
    let most = u64::try_from(WAYS).unwrap();
    for number in 0..most {
        shard.put(ledger(number, 1, 100 + number), Nanos(0));
    }
    shard.put(ledger(most, 1, 500), Nanos(0));
    assert_eq!(shard.ledgers.len(), WAYS);
    assert!(!known(&shard).contains(&(0, 1)) && known(&shard).contains(&(most, 1)));
}

#[test]
fn the_denial_for_fewer_hits_is_kept_until_it_expires() {
    let mut shard = Shard::default();
    shard.put(ledger(1, 3, 100), Nanos(0));
    shard.put(ledger(1, 5, 200), Nanos(99));
    assert_eq!(known(&shard), [(1, 3)]);
    shard.put(ledger(1, 2, 150), Nanos(99));
    assert_eq!(known(&shard), [(1, 2)]);
    shard.put(ledger(1, 5, 300), Nanos(150));
    assert_eq!(known(&shard), [(1, 5)]);
}

#[test]
fn leases_shorten_how_long_a_denial_is_cached() {
    let (sent, answered, revision) = (Nanos(10), Nanos(15), Revision(1));
    let under = ledger(0, 1, 0).under;
    let known = |retry_after: u64, held_for: u64, at: u64| {
        let call = Call { sent, answered, revision };
        let denial = Denial::new(Hits(1), Nanos(retry_after), Room::default(), call);
        let denial = denial.held(Some(Nanos(held_for)), call);
        Ledger { hash: [0; 2], under, denial }.answer(under, Hits(1), Nanos(at))
    };
    let waits = |step| match step {
        Some(Step::Deny { retry_after, .. }) => Some(retry_after.0),
        _ => None,
    };
    assert_eq!(waits(known(1_000, 100, 109)), Some(906), "it passes at 1,015 for certain");
    assert_eq!(waits(known(1_000, 100, 110)), None);
    assert_eq!(waits(known(50, 100, 59)), Some(6));
    assert_eq!(waits(known(50, 100, 60)), None, "it is over before a hold would be");
}

#[test]
fn denials_from_before_a_refund_are_dropped() {
    let ledgers = Ledgers::new();
    let strategy = ledger(0, 1, 0).under.1;
    let key = CounterKey::injective("d", std::iter::empty(), Counting::Gcra);
    let charge = Charge {
        key: key.clone(),
        home: Home::Itself,
        strategy,
        cost: Cost::Charge(Hits(1)),
        standing: Standing::default(),
        per_second: false,
    };
    let learn = |sent: u64, answered: u64| {
        let (sent, answered, revision) = (Nanos(sent), Nanos(answered), Revision(1));
        let call = Call { sent, answered, revision };
        let denial = Denial::new(Hits(1), Nanos(1_000), Room::default(), call);
        ledgers.remember(&charge, denial, call);
        known(&ledgers.shard(ledgers.hash(&key))).len()
    };
    assert_eq!(learn(1, 2), 1);
    ledgers.forget(&key, Nanos(10));
    assert_eq!(learn(9, 11), 0, "sent before the refund was made");
    assert_eq!(learn(10, 11), 0);
    assert_eq!(learn(11, 12), 1);
    ledgers.forget(&key, Nanos(20));
    assert_eq!(learn(21, 1_021), 0, "over before it came");
}
