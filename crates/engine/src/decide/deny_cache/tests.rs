//! Compares cached denials with the denials of the counters.

use proptest::prelude::*;

use super::{
    COUNTERS_PER_SHARD, CounterDenial, DenialShard, DenyCache, RememberedDenial, StoreCallTimes,
};
use crate::kernel::decision::{Cost, Enforcement};
use crate::kernel::key::{CounterKey, KeyStrategy};
use crate::kernel::rate::fixed_window::{FixedWindow, WindowCount, Windows};
use crate::kernel::rate::gcra::{Gcra, Tat};
use crate::kernel::rate::sliding_log::{ArrivalLog, SlidingLog};
use crate::kernel::rate::sliding_window::{SlidingWindow, WindowPair};
use crate::kernel::rate::{CounterDecision, Headroom, Strategy};
use crate::kernel::units::{Hits, Nanos, Revision};
use crate::store::{Charge, Placement};

const NOW: Nanos = Nanos::from_secs(1_000_000_007);

/// A counter of each strategy.
enum Counter {
    Gcra(Gcra, Tat),
    Fixed(FixedWindow, WindowCount),
    Sliding(SlidingWindow, WindowPair),
    Log(SlidingLog, ArrivalLog),
}

impl Counter {
    fn new(which: u8, limit: u32, period: Nanos) -> Self {
        match which {
            0 => Self::Gcra(Gcra::new(limit, period, limit).unwrap(), Tat::default()),
            1 => {
                let fixed = FixedWindow::new(limit, Windows::Every(period)).unwrap();
                Self::Fixed(fixed, WindowCount::default())
            }
            2 => Self::Sliding(SlidingWindow::new(limit, period).unwrap(), WindowPair::default()),
            _ => Self::Log(SlidingLog::new(limit, period).unwrap(), ArrivalLog::default()),
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

    fn step(&mut self, now: Nanos, hits: Hits) -> CounterDecision {
        match self {
            Self::Gcra(limit, state) => limit.charge(state, now, hits),
            Self::Fixed(limit, state) => limit.charge(state, now, hits),
            Self::Sliding(limit, state) => limit.charge(state, now, hits),
            Self::Log(limit, state) => limit.charge(state, now, hits),
        }
    }

    fn ask(&self, now: Nanos, hits: Hits) -> CounterDecision {
        match self {
            Self::Gcra(limit, state) => limit.peek(state, now, hits),
            Self::Fixed(limit, state) => limit.peek(state, now, hits),
            Self::Sliding(limit, state) => limit.peek(state, now, hits),
            Self::Log(limit, state) => limit.peek(state, now, hits),
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
        let CounterDecision::Deny { retry_after, headroom } = counter.step(stored, Hits(denied)) else {
            return Ok(());
        };
        let under = (Revision(1), counter.strategy());
        let call = StoreCallTimes { sent_at: sent, replied_at: answered, revision: Revision(1) };
        let denial = RememberedDenial::new(Hits(denied), retry_after, headroom, call);
        let ledger = CounterDenial { hash: [0; 2], under, denial };
        let now = answered.plus(Nanos(later));
        match (ledger.decide(under, Hits(hits), now), counter.ask(now, Hits(hits))) {
            (None, _) => {}
            (Some(CounterDecision::ExceedsLimit(_)), asked) => prop_assert!(matches!(asked, CounterDecision::ExceedsLimit(_))),
            (Some(CounterDecision::Deny { retry_after, headroom }), CounterDecision::Deny { retry_after: counter_wait, .. }) => {
                prop_assert!(denied <= hits && counter_wait <= retry_after);
                let slack = Nanos(took).plus(under.1.tick().size()).plus(under.1.tick().size());
                prop_assert!(retry_after <= counter_wait.plus(slack), "{retry_after} {counter_wait}");
                prop_assert!(headroom.remaining < Hits(hits));
                let rested = now.plus(headroom.reset_after);
                let admits = matches!(counter.ask(rested, Hits(limit.into())), CounterDecision::Allow(_));
                prop_assert!(admits, "told that it is rested before it is");
            }
            (Some(other), asked) => prop_assert!(false, "{other:?} for {asked:?}"),
        }
        let over = sent.plus(retry_after);
        prop_assert_eq!(ledger.decide(under, Hits(denied), over), None);
        if 0 < retry_after.0 {
            let last = ledger.decide(under, Hits(denied), Nanos(over.0 - 1));
            let denied = matches!(last, Some(CounterDecision::Deny { .. }));
            prop_assert!(denied);
        }
        prop_assert_eq!(ledger.decide((Revision(2), under.1), Hits(denied), sent), None);
    }
}

fn denial_of(number: u64, hits: u64, over: u64) -> CounterDenial {
    let fixed = FixedWindow::new(9, Windows::Every(Nanos::from_secs(60))).unwrap();
    let call = StoreCallTimes { sent_at: Nanos(0), replied_at: Nanos(0), revision: Revision(1) };
    CounterDenial {
        hash: [0, number],
        under: (Revision(1), Strategy::FixedWindow(fixed)),
        denial: RememberedDenial::new(Hits(hits), Nanos(over), Headroom::default(), call),
    }
}

fn denials_in(shard: &DenialShard) -> Vec<(u64, u64)> {
    shard.denials.iter().map(|held| (held.hash[1], held.denial.hits.0)).collect()
}

#[test]
fn full_shards_evict_the_denial_that_ends_first() {
    let mut shard = DenialShard::default();
    let most = u64::try_from(COUNTERS_PER_SHARD).unwrap();
    for number in 0..most {
        shard.insert(denial_of(number, 1, 100 + number), Nanos(0));
    }
    shard.insert(denial_of(most, 1, 500), Nanos(0));
    assert_eq!(shard.denials.len(), COUNTERS_PER_SHARD);
    assert!(!denials_in(&shard).contains(&(0, 1)) && denials_in(&shard).contains(&(most, 1)));
}

#[test]
fn the_denial_for_fewer_hits_is_kept_until_it_expires() {
    let mut shard = DenialShard::default();
    shard.insert(denial_of(1, 3, 100), Nanos(0));
    shard.insert(denial_of(1, 5, 200), Nanos(99));
    assert_eq!(denials_in(&shard), [(1, 3)]);
    shard.insert(denial_of(1, 2, 150), Nanos(99));
    assert_eq!(denials_in(&shard), [(1, 2)]);
    shard.insert(denial_of(1, 5, 300), Nanos(150));
    assert_eq!(denials_in(&shard), [(1, 5)]);
}

#[test]
fn denials_sent_before_a_refund_are_not_cached() {
    let ledgers = DenyCache::new();
    let strategy = denial_of(0, 1, 0).under.1;
    let key = CounterKey::unique("d", std::iter::empty(), KeyStrategy::Gcra);
    let charge = Charge {
        key: key.clone(),
        placement: Placement::ByKey,
        strategy,
        cost: Cost::Charge(Hits(1)),
        standing: Enforcement::default(),
        per_second: false,
    };
    let cache_denial = |sent: u64, answered: u64| {
        let (sent, answered, revision) = (Nanos(sent), Nanos(answered), Revision(1));
        let call = StoreCallTimes { sent_at: sent, replied_at: answered, revision };
        let denial = RememberedDenial::new(Hits(1), Nanos(1_000), Headroom::default(), call);
        ledgers.insert(&charge, denial, call);
        denials_in(&ledgers.lock_shard(ledgers.hash_key(&key))).len()
    };
    assert_eq!(cache_denial(1, 2), 1);
    ledgers.remove(&key, Nanos(10));
    assert_eq!(cache_denial(9, 11), 0, "sent before the refund was made");
    assert_eq!(cache_denial(10, 11), 0);
    assert_eq!(cache_denial(11, 12), 1);
    ledgers.remove(&key, Nanos(20));
    assert_eq!(cache_denial(21, 1_021), 0, "over before it came");
}
