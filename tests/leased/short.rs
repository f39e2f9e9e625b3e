//! Questions that are charged as one and denied while a lease for them is on its way, or just came.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate::engine::{Answer, Engine, Refusal};
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};
use tokio::task::JoinHandle;

use super::handed_back::as_one;
use super::waiting::{K, TEN, asked, turns, verdict};
use super::{Far, admits, held, pass, question};

const STRATEGIES: [&str; 4] = ["gcra", "fixed_window", "sliding_window", "sliding_log"];
const STRICT: &str = "- key: s\n  rate_limit: {unit: day, requests_per_unit: 2}\n";
const SECOND: Nanos = Nanos::from_secs(1);

/// The message that borrows three stands, and whoever asks after it, at these places among all that stand.
pub(super) const LEASE: usize = 1;
pub(super) const DENIAL: usize = 2;

/// A hundred at one instant, of which ten may be out, borrowed by three.
pub(super) fn three(strategy: &str) -> String {
    TEN.replace("gcra", strategy).replace("lease_hits: 10", "lease_hits: 3")
}

/// An engine whose message has yet to be taken by the store, which counted two hits. What comes stands.
pub(super) struct Borrowing {
    pub(super) store: Arc<Far>,
    pub(super) one: Arc<Engine>,
    other: Engine,
}

impl Borrowing {
    pub(super) async fn under(limits: &str) -> Self {
        let store = Far::new();
        let (one, other) = (Arc::new(as_one(&store, limits)), as_one(&store, limits));
        assert!(admits(&one, K, 1).await);
        store.stands.store(true, Relaxed);
        let second = asked(&one, 1).await;
        store.take(0);
        store.answer(0);
        assert_eq!(verdict(second).await, Verdict::Admit);
        turns().await;
        Self { store, one, other }
    }

    pub(super) async fn lend(&self) {
        self.store.take(LEASE);
        turns().await;
    }

    /// Others leave the store `rest` of what it has.
    pub(super) async fn leave(&self, has: u64, rest: u64) {
        self.store.stands.store(false, Relaxed);
        assert!(admits(&self.other, K, has - rest).await);
        self.store.stands.store(true, Relaxed);
    }

    /// Asks for `hits`, which the store denies; it does not say so yet.
    async fn deny(&self, hits: u64) -> JoinHandle<Result<Answer, Refusal>> {
        let asks = asked(&self.one, hits).await;
        self.store.take(DENIAL);
        turns().await;
        // What is asked after it does not stand.
        self.store.stands.store(false, Relaxed);
        asks
    }

    async fn answer(&self, order: [usize; 2]) {
        for at in order {
            self.store.answer(at);
            turns().await;
        }
    }
}

/// What `hits` come to that are denied after a lease was made; of the store others leave `rest`.
async fn after_a_lease(strategy: &str, rest: u64, hits: u64, order: [usize; 2]) -> Verdict {
    let all = Borrowing::under(&three(strategy)).await;
    all.lend().await;
    all.leave(95, rest).await;
    let asks = all.deny(hits).await;
    all.answer(order).await;
    verdict(asks).await
}

#[tokio::test]
async fn who_is_denied_while_a_lease_is_on_its_way_is_answered_with_what_it_brings() {
    for strategy in STRATEGIES {
        for order in [[LEASE, DENIAL], [DENIAL, LEASE]] {
            let beside = async |rest, hits| after_a_lease(strategy, rest, hits, order).await;
            let case = format!("{strategy}, {order:?}");
            assert_eq!(beside(0, 3).await, Verdict::Admit, "{case}: the lease does");
            assert_eq!(beside(0, 4).await, Verdict::Deny, "{case}: nobody has a fourth");
            if strategy == "gcra" {
                assert_eq!(beside(1, 4).await, Verdict::Admit, "{case}: the store has the fourth");
            }
        }
    }
}

/// Three were left when five were denied, and are lent since: who took them for left and for held would hand them back.
#[tokio::test]
async fn what_is_lent_after_a_denial_is_not_taken_for_left_beside_it() {
    for order in [[LEASE, DENIAL], [DENIAL, LEASE]] {
        let all = Borrowing::under(&three("gcra")).await;
        all.leave(98, 3).await;
        let asks = all.deny(5).await;
        all.lend().await;
        all.answer(order).await;
        assert_eq!(verdict(asks).await, Verdict::Deny, "{order:?}");
        assert_eq!(held(&all.one), 3, "{order:?}: nothing goes back for a question that is denied");
    }
}

#[tokio::test]
async fn who_is_denied_more_than_may_come_does_not_wait_for_it() {
    let all = Borrowing::under(&three("gcra")).await;
    all.lend().await;
    all.leave(95, 2).await;
    let asks = all.deny(6).await;
    all.store.answer(DENIAL);
    assert_eq!(verdict(asks).await, Verdict::Deny, "two are left and three lent");
    assert_eq!(held(&all.one), 0, "the lease is still on its way");
}

#[tokio::test]
async fn where_nothing_came_of_a_message_the_store_is_not_asked_again() {
    for limits in [three("gcra"), three("fixed_window").replace("10%", "0")] {
        let all = Borrowing::under(&limits).await;
        all.leave(98, 0).await;
        let asks = all.deny(1).await;
        let before = all.store.calls();
        all.store.is_away.store(limits.contains("fixed_window"), Relaxed);
        all.lend().await;
        all.answer([DENIAL, LEASE]).await;
        assert_eq!(verdict(asks).await, Verdict::Deny, "{limits}");
        assert_eq!(all.store.calls(), before, "{limits}");
    }
}

/// Asks in the background, for a caller that gives up in two seconds.
async fn in_two_seconds(engine: &Arc<Engine>, hits: u64) -> JoinHandle<Result<Answer, Refusal>> {
    let engine = Arc::clone(engine);
    let asks = tokio::spawn(async move {
        let question = question(K, Cost::Charge(Hits(hits)));
        engine.decide_within(&question, Some(SECOND.plus(SECOND))).await
    });
    turns().await;
    asks
}

/// A caller that gives up would be answered by the limit's word for a store that is away.
#[tokio::test]
async fn a_denial_is_told_before_its_caller_gives_up_whatever_is_on_its_way() {
    let all = Borrowing::under(&three("gcra")).await;
    all.lend().await;
    all.leave(95, 0).await;
    let asks = in_two_seconds(&all.one, 1).await;
    all.store.take(DENIAL);
    turns().await;
    pass(&all.one, Nanos(1_999_000_000));
    all.store.answer(DENIAL);
    assert_eq!(verdict(asks).await, Verdict::Deny, "the lease is still on its way");
}

/// The lease does for one limit; the other's store is cut off when both are put once more.
#[tokio::test]
async fn who_is_denied_stays_so_where_the_second_time_something_is_not_answered() {
    let all = Borrowing::under(&format!("{}{STRICT}", three("gcra"))).await;
    all.lend().await;
    all.leave(95, 0).await;
    let one = Arc::clone(&all.one);
    let asks = tokio::spawn(async move {
        one.decide(&question(&[("k", "v"), ("s", "v")], Cost::Charge(Hits(1)))).await
    });
    turns().await;
    all.store.take(DENIAL);
    turns().await;
    all.store.is_cut_off.store(true, Relaxed);
    all.answer([DENIAL, LEASE]).await;
    assert_eq!(verdict(asks).await, Verdict::Deny);
    assert_eq!(held(&all.one), 3, "who is denied takes nothing");
}

/// Three are held, and others leave the store `rest`.
async fn holding(rest: u64) -> Borrowing {
    let all = Borrowing::under(&three("gcra")).await;
    all.lend().await;
    all.store.answer(LEASE);
    turns().await;
    all.leave(95, rest).await;
    assert_eq!(held(&all.one), 3);
    all
}

/// What is held would do with what is left, but not in time.
#[tokio::test]
async fn nothing_goes_back_for_a_question_whose_time_is_over() {
    for (late, verdict_in_time) in [(false, Verdict::Admit), (true, Verdict::Deny)] {
        let all = holding(3).await;
        let asks = in_two_seconds(&all.one, 5).await;
        all.store.take(DENIAL);
        turns().await;
        all.store.stands.store(false, Relaxed);
        pass(&all.one, Nanos(if late { 1_999_000_000 } else { 0 }));
        all.store.answer(DENIAL);
        assert_eq!(verdict(asks).await, verdict_in_time);
        assert_eq!(held(&all.one), if late { 3 } else { 0 });
    }
}

/// Three go back beside a question for four, and are lent again: nobody has a fourth.
#[tokio::test]
async fn what_goes_back_and_may_be_lent_again_is_not_counted_twice() {
    const BACK: usize = 3;
    const AFTER: usize = 4;
    let all = holding(4).await;
    let admitted = asked(&all.one, 4).await;
    all.store.take(DENIAL);
    all.store.answer(DENIAL);
    assert_eq!(verdict(admitted).await, Verdict::Admit);
    let asks = asked(&all.one, 4).await;
    all.store.take(AFTER);
    turns().await;
    let before = all.store.calls();
    all.store.stands.store(false, Relaxed);
    all.store.answer(AFTER);
    assert_eq!(verdict(asks).await, Verdict::Deny, "it does not wait");
    all.store.take(BACK);
    all.store.answer(BACK);
    turns().await;
    assert_eq!((all.store.calls(), held(&all.one)), (before, 3), "the store need not be asked");
}
