//! Compares calls to budgets on rows with the kernel, in a table whose empty rows are deleted at once.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::budgets::BudgetOperation;
use super::super::queue::StoreOperation as _;
use super::{Generator, START, Table};
use crate::Placement;
use crate::budgets::{BudgetAction, BudgetCall, BudgetOutcome, BudgetPart, BudgetReply};
use crate::kernel::budget::{
    Amount, Budget, BudgetPeriod, BudgetTerms, Ended, HoldId, OnExpiry, Reserved,
};
use crate::kernel::key::CounterKey;
use crate::kernel::rate::fixed_window::Windows;
use crate::kernel::units::Nanos;

/// The number of ids in a trace. Some of them share a bucket.
const IDS: u64 = 200;

fn terms(index: usize) -> BudgetTerms {
    let period = match index {
        0 => BudgetPeriod::Prepaid,
        // The traces are shorter than the periods that are kept.
        _ => BudgetPeriod::Each(Windows::Every(Nanos::from_secs(100))),
    };
    let on_expiry = if index == 1 { OnExpiry::Release } else { OnExpiry::Charge };
    let time_limit = Nanos::from_secs(30);
    BudgetTerms { amount: Amount(100), period, time_limit, on_expiry, is_enforced: index != 0 }
}

fn part(index: usize, amount: u64) -> BudgetPart {
    let key = CounterKey::budget("d", [("budget", &*index.to_string())].into_iter(), 0);
    BudgetPart { key, placement: Placement::ByKey, terms: terms(index), amount: Amount(amount) }
}

fn call(action: BudgetAction, id: u64, first: usize, amounts: &[u64]) -> BudgetCall {
    // Only the first budget is prepaid.
    let budgets = if action == BudgetAction::TopUp { 0..1 } else { first..3 };
    let budgets = budgets.zip(amounts).map(|(index, amount)| part(index, *amount)).collect();
    BudgetCall { id: HoldId(7, id), action, budgets }
}

fn any_call() -> impl Generator<Value = BudgetCall> {
    let action = prop_oneof![
        4 => Just(BudgetAction::Reserve),
        2 => Just(BudgetAction::Settle),
        1 => Just(BudgetAction::SettleHeld),
        1 => Just(BudgetAction::Cancel),
        1 => Just(BudgetAction::Renew),
        1 => Just(BudgetAction::Charge),
        1 => Just(BudgetAction::TopUp),
        1 => Just(BudgetAction::Read),
    ];
    let id = prop_oneof![0..6_u64, 0..IDS];
    let amounts = proptest::collection::vec(0_u64..60, 1..4);
    (action, id, 0_usize..3, amounts)
        .prop_map(|(action, id, first, amounts)| call(action, id, first, &amounts))
}

/// Applies a call to a model that forgets nothing.
fn apply_to_model(
    model: &mut HashMap<CounterKey, Budget>,
    call: &BudgetCall,
    now: Nanos,
) -> BudgetReply {
    let keys = || call.budgets.iter().map(|part| &part.key);
    let mut budgets: Vec<Budget> =
        keys().map(|key| model.remove(key).unwrap_or_default()).collect();
    let reply = call.apply(&mut budgets, now);
    model.extend(keys().cloned().zip(budgets));
    reply
}

proptest! {
    #[test]
    fn rows_of_budgets_decide_like_the_kernel(
        steps in proptest::collection::vec(
            (prop_oneof![4 => 0_u64..5_000, 1 => 0_u64..40_000], any_call()),
            1..60,
        )
    ) {
        let (mut table, mut model, mut now) = (Table::default(), HashMap::new(), START);
        for (pause, call) in steps {
            now = now.plus(Nanos(pause * Nanos::MILLI.0));
            let law = apply_to_model(&mut model, &call, now);
            let before = table.0.clone();
            let reply = table.run(now, &BudgetOperation::new(&call, "p"));
            prop_assert_eq!(&reply, &law, "{:?}", call);
            let has_row = |key| before.iter().any(|(old, ..)| old == key);
            if matches!(law.outcome, BudgetOutcome::Reserved(Reserved::Denied(_))) {
                prop_assert!(table.0.iter().all(|(key, ..)| has_row(key)), "a denial created a row");
            }
            if call.action == BudgetAction::Read {
                prop_assert!(table.0.iter().all(|row| before.contains(row)), "a read wrote a row");
            }
        }
    }
}

#[test]
fn ended_ids_do_not_enlarge_the_row_of_a_budget() {
    assert_ended_ids_are_apart(BudgetAction::Settle, Ended::Before);
    assert_ended_ids_are_apart(BudgetAction::Cancel, Ended::Corrected);
}

fn assert_ended_ids_are_apart(end: BudgetAction, known_as: Ended) {
    let (mut table, now) = (Table::default(), START);
    let mut lengths = Vec::new();
    for id in 0..IDS {
        for action in [BudgetAction::Reserve, end] {
            table.run(now, &BudgetOperation::new(&call(action, id, 1, &[0]), "p"));
        }
        let row = BudgetOperation::new(&call(BudgetAction::Read, 0, 1, &[0]), "p");
        let row = table.0.iter().find(|(key, ..)| key == &row.keys()[0]);
        lengths.push(row.map(|(_, value, _)| value.len()));
    }
    assert!(
        lengths[0] < Some(64)
            && lengths[1..].iter().all(|length| *length <= lengths[0].map(|it| it + 2))
    );
    assert!(8 < table.0.len(), "the ids are in several buckets");
    for id in 0..IDS {
        let reply =
            table.run(now, &BudgetOperation::new(&call(BudgetAction::Settle, id, 1, &[9]), "p"));
        let BudgetOutcome::Ended(ended) = reply.outcome else { panic!() };
        assert_eq!(ended[0].ended, known_as, "id {id}");
    }
}

#[test]
fn a_full_bucket_forgets_the_ids_that_end_first() {
    let (mut table, mut now) = (Table::default(), START);
    let top_up = call(BudgetAction::TopUp, u64::MAX, 0, &[9]);
    table.run(now, &BudgetOperation::new(&top_up, "p"));
    let bucket =
        |id| BudgetOperation::new(&call(BudgetAction::Settle, id, 0, &[0]), "p").keys()[1].clone();
    let ids: Vec<u64> = (0..).filter(|id| bucket(*id) == bucket(u64::MAX)).take(2_050).collect();
    for id in &ids {
        now = now.plus(Nanos::MICRO);
        table.run(now, &BudgetOperation::new(&call(BudgetAction::Settle, *id, 0, &[0]), "p"));
    }
    let mut ended = |id| {
        let call = call(BudgetAction::Settle, id, 0, &[0]);
        match table.run(now, &BudgetOperation::new(&call, "p")).outcome {
            BudgetOutcome::Ended(ended) => ended[0].ended,
            other => panic!("{other:?}"),
        }
    };
    // 2,048 ids fit: the last 2,047 and the top-up.
    assert_eq!([ids[3], ids[2_049], u64::MAX].map(&mut ended), [Ended::Before; 3]);
    assert_eq!(ended(ids[2]), Ended::Unknown);
}
