//! What begins or comes while a question that was denied looks for what may do for it.

use std::sync::atomic::Ordering::Relaxed;

use sluicegate::kernel::decision::Verdict;

use super::held;
use super::short::{Borrowing, DENIAL, LEASE, three};
use super::waiting::{TEN, asked, turns, verdict};

/// The store does not say what a window that denied has left, so it is asked.
const LEFT: usize = DENIAL + 1;

/// Of a window that ends with its leases, what a lease brings is held, and others leave the store `rest`. What comes stands.
async fn coupled(limits: &str, rest: u64) -> Borrowing {
    let limits = limits.replace("gcra", "fixed_window").replace("10%", "0");
    let all = Borrowing::under(&limits).await;
    all.lend().await;
    all.store.answer(LEASE);
    turns().await;
    all.leave(98 - held(&all.one), rest).await;
    all
}

impl Borrowing {
    async fn goes_on(&self, at: usize) {
        self.store.take(at);
        self.store.answer(at);
        turns().await;
    }

    /// What comes now does not stand, and the answer to what stood is there.
    async fn answered(&self, at: usize) {
        self.store.stands.store(false, Relaxed);
        self.store.answer(at);
        turns().await;
    }
}

/// Three are held and three left, which two want, five each. One hands the three back, and is gone before they are there.
#[tokio::test]
async fn what_another_hands_back_is_waited_for() {
    let [others, left, others_left, back] = [1, 2, 3, 4].map(|after| DENIAL + after);
    let all = coupled(&three("gcra"), 3).await;
    let (asks, other) = (asked(&all.one, 5).await, asked(&all.one, 5).await);
    all.goes_on(DENIAL).await;
    all.goes_on(others).await;
    all.store.take(left);
    all.goes_on(others_left).await;
    assert_eq!(held(&all.one), 0, "on their way back");
    other.abort();
    turns().await;
    all.answered(left).await;
    all.goes_on(back).await;
    assert_eq!(verdict(asks).await, Verdict::Admit);
}

/// Three of ten are held and twelve left, and thirteen are wanted. Who asks for one of the three borrows ten more.
#[tokio::test]
async fn what_another_borrows_meanwhile_is_neither_held_nor_left_until_it_is_there() {
    const AHEAD: usize = LEFT + 1;
    for is_lent_first in [false, true] {
        let all = coupled(TEN, 12).await;
        assert_eq!(verdict(asked(&all.one, 7).await).await, Verdict::Admit);
        let asks = asked(&all.one, 13).await;
        all.goes_on(DENIAL).await;
        if !is_lent_first {
            all.store.take(LEFT);
            turns().await;
        }
        assert_eq!(verdict(asked(&all.one, 1).await).await, Verdict::Admit);
        if is_lent_first {
            all.store.take(AHEAD);
            turns().await;
            all.store.take(LEFT);
        }
        all.answered(LEFT).await;
        assert_eq!(held(&all.one), 2, "ten are on their way");
        all.goes_on(AHEAD).await;
        assert_eq!(
            verdict(asks).await,
            Verdict::Admit,
            "lent before it was asked: {is_lent_first}"
        );
    }
}

/// Three are held and three left, and five are wanted. The three go back after the store was asked, and are there before it is
/// known what it said.
#[tokio::test]
async fn what_went_back_meanwhile_is_left() {
    let [back, others_denial] = [2, 3].map(|after| DENIAL + after);
    let all = coupled(&three("gcra"), 3).await;
    let other = asked(&all.one, 5).await;
    all.goes_on(DENIAL).await;
    all.goes_on(LEFT).await;
    assert_eq!(held(&all.one), 0, "on their way back");
    other.abort();
    turns().await;
    let asks = asked(&all.one, 5).await;
    all.store.take(others_denial);
    turns().await;
    all.store.take(back);
    turns().await;
    all.store.answer(back);
    all.answered(others_denial).await;
    assert_eq!(verdict(asks).await, Verdict::Admit);
}

/// Three of ten are held and twelve left, which two want, thirteen each. Both wait for ten more; one hands all back, and is
/// gone. Which of them hears of the ten first is chance.
#[tokio::test]
async fn what_another_hands_back_who_waited_for_the_same_is_waited_for() {
    let [left, ahead, denial] = [1, 2, 3].map(|after| DENIAL + after);
    for _ in 0..16 {
        let all = coupled(TEN, 12).await;
        assert_eq!(verdict(asked(&all.one, 7).await).await, Verdict::Admit);
        let other = asked(&all.one, 13).await;
        all.goes_on(DENIAL).await;
        all.store.take(left);
        turns().await;
        assert_eq!(verdict(asked(&all.one, 1).await).await, Verdict::Admit);
        all.goes_on(left).await;
        let asks = asked(&all.one, 13).await;
        all.goes_on(denial).await;
        all.goes_on(ahead).await;
        assert_eq!(held(&all.one), 0, "twelve are on their way back");
        other.abort();
        turns().await;
        all.store.stands.store(false, Relaxed);
        all.store.go_on();
        assert_eq!(verdict(asks).await, Verdict::Admit);
    }
}
