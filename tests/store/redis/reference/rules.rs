//! Charge rules of random checks, compared with the memory store.

use sluicegate::kernel::decision::{Cost, Verdict, combine};
use sluicegate::kernel::units::Hits;
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::redis::reference;
use sluicegate::store::{Charge, ChargeMode, Charges, Outcomes};

use super::{
    ALL, any_rule, any_standing, charge, charge_all, charges, connected, native_charge, now,
    stored_count, verdict_and_remaining,
};
use crate::support::dice::{Dice, seed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_and_memory_agree_on_every_rule() {
    let at = connected(reference::CompatOptions::default());
    let memory = MemoryStore::new(10_000, WhenFull::Deny, [3; 16]);
    let (seed, now) = (seed(), now());
    let mut dice = Dice::new(seed);
    for trace in 0..60 {
        for step in 0..25 {
            let one = |dice: &mut Dice| {
                let limit = dice.pick(&[0, 3, 7, 20]);
                let hits = dice.pick(&[0, 1, 1, 1, 2, 3, 5, 21, 1 << 40]);
                let one = charge(&format!("{trace} {limit}"), limit, hits);
                let cost = if dice.once_in(7) { Cost::Refund(Hits(hits)) } else { one.cost };
                Charge { cost, standing: any_standing(dice), ..one }
            };
            let list: Vec<_> = (0..=dice.up_to(4)).map(|_| one(&mut dice)).collect();
            let asked = charges(list, any_rule(&mut dice));
            let expected = charge_all(&memory, now, &asked).await;
            let got = charge_all(&at.stores, now, &asked).await;
            assert_eq!(got, expected, "SLUICEGATE_SEED={seed} {trace}.{step}: {asked:?}");
        }
    }
}

/// A thousand charges of a few counters, large enough to exceed every limit.
fn random_charges(name: &str, counters: u32, dice: &mut Dice) -> Vec<Charge> {
    let one = |_| {
        let hits = if dice.once_in(400) { 1 << 52 } else { dice.pick(&[0, 1, 1, 2]) };
        let counter = dice.up_to(u64::from(counters) - 1);
        let one = charge(&format!("{name} {counter}"), 500 / counters, hits);
        let cost = if dice.once_in(7) { Cost::Refund(Hits(hits)) } else { one.cost };
        Charge { cost, standing: any_standing(dice), ..one }
    };
    (0..1_000).map(one).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_and_memory_agree_on_a_thousand_charges() {
    let at = connected(reference::CompatOptions::default());
    let memory = MemoryStore::new(10_000, WhenFull::Deny, [3; 16]);
    let (seed, now) = (seed(), now());
    let mut dice = Dice::new(seed);
    for trace in 0..6 {
        for step in 0..3 {
            let list = random_charges(&trace.to_string(), 1 + trace % 3, &mut dice);
            let asked = charges(list, dice.pick(&[ALL, ChargeMode::Preview]));
            let expected = charge_all(&memory, now, &asked).await;
            let got = charge_all(&at.stores, now, &asked).await;
            assert!(got == expected, "SLUICEGATE_SEED={seed} {trace}.{step}");
        }
    }
}

/// Several stores or key formats cannot be charged all-or-nothing, only each by itself.
fn mode_across_parts(charges: &Charges) -> ChargeMode {
    let part = |charge: &Charge| (charge.per_second, charge.key.compatible_bytes().is_some());
    match charges.mode {
        ChargeMode::AllOrNothing { .. }
            if charges.list.iter().any(|charge| part(charge) != part(&charges.list[0])) =>
        {
            ChargeMode::Each
        }
        mode => mode,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_keys_and_stores_match_memory() {
    let at = connected(reference::CompatOptions::default());
    let memory = MemoryStore::new(10_000, WhenFull::Deny, [3; 16]);
    let (seed, now) = (seed(), now());
    let mut dice = Dice::new(seed);
    for trace in 0..40 {
        for step in 0..20 {
            let one = |dice: &mut Dice| {
                let limit = dice.pick(&[2, 5, 9, 20]);
                let hits = dice.pick(&[0, 1, 1, 1, 2, 6]);
                let kind = dice.pick(&[native_charge, charge]);
                let one = kind(&format!("{trace} {limit}"), limit, hits);
                Charge { standing: any_standing(dice), per_second: limit < 6, ..one }
            };
            let list: Vec<_> = (0..=dice.up_to(4)).map(|_| one(&mut dice)).collect();
            let asked = charges(list, any_rule(&mut dice));
            let gists = |outcomes: Outcomes| {
                outcomes.into_iter().map(verdict_and_remaining).collect::<Vec<_>>()
            };
            let expected = Charges { mode: mode_across_parts(&asked), ..asked.clone() };
            let expected = gists(charge_all(&memory, now, &expected).await);
            let got = gists(charge_all(&at.stores, now, &asked).await);
            assert_eq!(got, expected, "SLUICEGATE_SEED={seed} {trace}.{step}: {asked:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_when_over_charges_only_the_denying_limits() {
    let options =
        reference::CompatOptions { stop_when_over: true, ..reference::CompatOptions::default() };
    let at = connected(options);
    let (seed, now) = (seed(), now());
    let mut dice = Dice::new(seed);
    // Every second trace uses two stores, so a check cannot be one script call.
    for trace in 0..60_usize {
        let limits = [0_u32, 3, 7, 20];
        let mut counts = [0_u64; 4];
        for step in 0..20 {
            let one = |which: usize, dice: &mut Dice| {
                let hits = dice.pick(&[0, 1, 1, 2, 5]);
                let per_second = trace % 2 == 1 && which % 2 == 1;
                let standing = any_standing(dice);
                let one = charge(&format!("{trace} {which}"), limits[which], hits);
                (which, hits, Charge { standing, per_second, ..one })
            };
            let list: Vec<_> = (0..4).filter(|_| !dice.once_in(3)).collect::<Vec<_>>();
            let list: Vec<_> = list.into_iter().map(|which| one(which, &mut dice)).collect();
            let over = |which: usize, hits: u64| u64::from(limits[which]) < counts[which] + hits;
            let votes = list.iter().map(|(which, hits, charge)| {
                (charge.standing.group, charge.standing.enforced_verdict(over(*which, *hits)))
            });
            let denied = combine(votes, false) == Verdict::Deny;
            let added: Vec<_> = list
                .iter()
                .map(|(which, hits, _)| if denied && !over(*which, *hits) { 0 } else { *hits })
                .collect();
            let asked = charges(list.iter().map(|it| it.2.clone()), ChargeMode::Each);
            let answered = charge_all(&at.stores, now, &asked).await;
            for ((which, _, charge), (added, outcome)) in
                list.iter().zip(added.iter().zip(answered))
            {
                counts[*which] += added;
                let store = if charge.per_second { &at.second } else { &at.main };
                let name = format!("{trace} {which}");
                let context = format!("SLUICEGATE_SEED={seed} {trace}.{step}: {asked:?}");
                assert_eq!(stored_count(store, &name, now), Some(counts[*which]), "{context}");
                let left = u64::from(limits[*which]).saturating_sub(counts[*which]);
                let is_over = u64::from(limits[*which]) < counts[*which];
                assert_eq!(verdict_and_remaining(outcome), (is_over, Some(left)), "{context}");
            }
        }
    }
}
