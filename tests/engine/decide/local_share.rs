//! Local shares of a limit are whole hits, and their sum never exceeds the limit.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use sluicegate::engine::local_share::{FleetDivision, local_share, rank};
use sluicegate::kernel::key::{CounterKey, KeyStrategy};
use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::sliding_log::SlidingLog;
use sluicegate::kernel::rate::sliding_window::SlidingWindow;
use sluicegate::kernel::units::Nanos;

use crate::support::dice::{Dice, seed};

fn key(value: u64) -> CounterKey {
    let value = value.to_string();
    CounterKey::unique("d", [("k", &*value)].into_iter(), KeyStrategy::Gcra)
}

fn strategy(dice: &mut Dice) -> Strategy {
    let most = dice.pick(&[5, 50, 5_000]);
    let mut below = |most| u32::try_from(1 + dice.up_to(most)).unwrap();
    let (limit, burst) = (below(most), below(most));
    let period = Nanos::from_secs(below(100_000).into());
    match dice.up_to(3) {
        0 => Strategy::Gcra(Gcra::new(limit, period, burst).unwrap()),
        1 => Strategy::FixedWindow(FixedWindow::new(limit, Windows::Every(period)).unwrap()),
        2 => Strategy::SlidingWindow(SlidingWindow::new(limit, period).unwrap()),
        _ => Strategy::SlidingLog(SlidingLog::new(limit, period).unwrap()),
    }
}

/// The rate of a GCRA limit: hits, and the nanoseconds in which these hits become free.
fn rate(gcra: &Gcra) -> (u128, u128) {
    let nanos = u128::from(gcra.refill_rate().ticks.get()) * u128::from(gcra.tick().size().0);
    (gcra.refill_rate().hits.into(), nanos)
}

/// The local shares of all `members`, each computed by its own replica.
fn local_shares(
    whole: &Strategy,
    key: &CounterKey,
    members: &[String],
    replicas: u32,
) -> Vec<Strategy> {
    let replicas = NonZeroU32::new(replicas).unwrap();
    let each = members.iter().filter_map(|me| {
        let rank = rank(key, me, members.iter().map(String::as_str));
        local_share(whole, FleetDivision { replicas, rank: Some(rank) })
    });
    each.collect()
}

#[test]
fn local_shares_add_up_to_the_limit_and_gcra_rate() {
    let seed = seed();
    println!("SLUICEGATE_SEED={seed}");
    let mut dice = Dice::new(seed);
    for round in 0..5_000 {
        let whole = strategy(&mut dice);
        let count = 1 + dice.up_to(19);
        let members: Vec<_> = (0..count).map(|n| format!("m{n}-{}", dice.up_to(999))).collect();
        let replicas = u32::try_from(members.len()).unwrap();
        let parts = local_shares(&whole, &key(dice.roll()), &members, replicas);
        let sum: u32 = parts.iter().map(Strategy::max_at_once).sum();
        assert_eq!(sum, whole.max_at_once(), "{round}: {whole:?} over {replicas}: {parts:?}");
        let holders = u32::try_from(parts.len()).unwrap();
        assert_eq!(holders, replicas.min(whole.max_at_once()), "nobody goes without who need not");
        for one in &parts {
            let (Strategy::Gcra(one), Strategy::Gcra(whole)) = (one, &whole) else { continue };
            let ((hits, nanos), (all_hits, all_nanos)) = (rate(one), rate(whole));
            assert_eq!(hits * u128::from(holders) * all_nanos, all_hits * nanos);
        }
    }
}

#[test]
fn local_shares_of_an_incomplete_membership_never_exceed_the_limit() {
    let seed = seed();
    println!("SLUICEGATE_SEED={seed}");
    let mut dice = Dice::new(seed);
    for _ in 0..5_000 {
        let whole = strategy(&mut dice);
        let (known_to_all, unseen) = (1 + dice.up_to(9), dice.up_to(9));
        let members: Vec<_> = (0..known_to_all).map(|n| format!("m{n}")).collect();
        let replicas = u32::try_from(known_to_all + unseen).unwrap();
        let known: u32 = local_shares(&whole, &key(dice.roll()), &members, replicas)
            .iter()
            .map(Strategy::max_at_once)
            .sum();
        let division = FleetDivision { replicas: NonZeroU32::new(replicas).unwrap(), rank: None };
        let share_without_membership =
            local_share(&whole, division).map_or(0, |part| part.max_at_once());
        assert_eq!(
            share_without_membership,
            if replicas == 1 { whole.max_at_once() } else { whole.max_at_once() / replicas }
        );
        assert!(
            known + share_without_membership * u32::try_from(unseen).unwrap()
                <= whole.max_at_once()
        );
    }
}

#[test]
fn indivisible_hits_of_many_limits_are_spread_evenly_across_replicas() {
    let members = ["a", "b", "c"].map(str::to_owned);
    let mut firsts: BTreeMap<&str, u32> = BTreeMap::new();
    for number in 0..3_000 {
        let ranks = members
            .each_ref()
            .map(|me| (rank(&key(number), me, members.iter().map(String::as_str)), me.as_str()));
        let mut order = ranks.map(|(rank, _)| rank);
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2], "no two share a place");
        *firsts.entry(ranks.iter().min().unwrap().1).or_default() += 1;
    }
    assert!(firsts.values().all(|&firsts| (900..1_100).contains(&firsts)), "{firsts:?}");
}
