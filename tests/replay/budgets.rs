//! Tests of replays with budgets.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | a settle of a denied request charges | `a_settle_of_a_request_that_is_newly_denied_costs_nothing` |
//! | only the new decision selects the settles | `a_request_that_is_newly_allowed_costs_its_estimate_at_the_expiry` |
//! | a repeated id counts as a denied request | `a_repeated_id_keeps_the_settle_of_its_first_request` |
//! | checks without an id use no budgets | `checks_without_an_id_charge_their_hits` |
//! | prepaid budgets are empty | `a_prepaid_budget_denies_nothing` |
//! | renewals are left out | `holds_expire_unless_they_are_renewed` |
//! | a report has the whole descriptor, or leaves out reserves of 0 hits | `amounts_deny_as_computed_by_hand` |

use std::sync::Arc;

use sluicegate::config::prices::TokenCounts;
use sluicegate::config::tables::{Loading, RawRow, TableSpec};
use sluicegate::config::{Config, load};
use sluicegate::engine::budgets::RequestUsage;
use sluicegate::kernel::decision::Cost;
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use sluicegate::recording::hashed_values::ValueHasher;
use sluicegate::recording::{CheckOutcome, RecordedBudgets, RecordedReserve, RecordingHeader};
use sluicegate::replay::comparison::{
    Agreement, ChangedChecks, Changes, Comparison, ReplayLimits, compare,
};

use super::START;
use crate::recording::{OwnedCheck, header, write};

const SALT: [u8; 16] = [9; 16];

/// Holds expire after a minute.
const USAGE: &str = "estimate: max_tokens, time_limit: 1m";

/// Calls of the descriptor `org=acme, model=m`, one each second.
#[derive(Default)]
struct Calls {
    calls: Vec<OwnedCheck>,
    now: Nanos,
}

impl Calls {
    fn add(&mut self, outcome: CheckOutcome, budgets: RecordedBudgets<String>) {
        self.now = self.now.plus(Nanos::SECOND);
        let mut call = OwnedCheck::of_entry(START.plus(self.now), ("org", "acme"), 1);
        call.descriptors[0].0.push(("model".to_owned(), "m".to_owned()));
        (call.outcome, call.budgets) = (outcome, budgets);
        self.calls.push(call);
    }

    /// A reserve of 100 tokens that the recorded replica admitted or denied.
    fn reserve(&mut self, id: &str, outcome: CheckOutcome) {
        let is_admitted = outcome == CheckOutcome::Allow;
        let (id, covered, tokens) = (id.to_owned(), vec![0], Some(100));
        let reserve = RecordedReserve { id, covered, tokens, is_admitted };
        self.add(outcome, RecordedBudgets::Reserve(reserve));
    }

    fn admit(&mut self, id: &str) {
        self.reserve(id, CheckOutcome::Allow);
    }

    fn deny(&mut self, id: &str) {
        self.reserve(id, CheckOutcome::Deny);
    }

    fn end(&mut self, id: &str, usage: RequestUsage) {
        self.add(CheckOutcome::Unknown, RecordedBudgets::Settle(id.to_owned(), usage));
    }

    fn settle(&mut self, id: &str, any: u64) {
        self.end(id, RequestUsage::Tokens(TokenCounts { any, ..TokenCounts::default() }));
    }

    fn wait(&mut self, seconds: u64) {
        self.now = self.now.plus(Nanos::from_secs(seconds));
    }

    fn replay(&self, old: Config, new: Config) -> Comparison {
        let bytes = write(&RecordingHeader { started_at: START, ..header() }, &self.calls);
        compare(&*bytes, ReplayLimits { old, new: Some(new) }).unwrap()
    }

    /// Replays with two amounts of tokens.
    fn compare(&self, old: u64, new: u64) -> Changes {
        self.replay(tokens(old), tokens(new)).new.unwrap()
    }
}

fn config(usage: &str, descriptors: &str) -> Config {
    let file = format!("domain: d\nusage: {{{usage}}}\ndescriptors:\n{descriptors}");
    load([("limits.yaml", file.as_bytes())], Revision(1), false).unwrap().0
}

fn budget(usage: &str, budget: &str) -> Config {
    config(usage, &format!("- {{key: org, budget: {{{budget}}}}}\n"))
}

fn tokens(amount: u64) -> Config {
    budget(USAGE, &format!("amount: {amount} tokens, unit: hour"))
}

#[test]
fn amounts_deny_as_computed_by_hand() {
    // A reserve of 100 after k settles of 50 is admitted if 50 k + 100 is at most the amount: that of
    // 1,000 admits 19 requests, and that of 500 admits 9.
    let mut calls = Calls::default();
    for number in 0..19 {
        let id = format!("request-{number}");
        calls.admit(&id);
        calls.settle(&id, 50);
    }
    calls.deny("request-19");
    let compared = calls.replay(tokens(1_000), tokens(500));
    assert_eq!((compared.checks, compared.old_denied), (20, 1));
    assert_eq!(compared.recorded, Agreement { known: 20, equal: 20 });
    let changes = compared.new.unwrap();
    assert_eq!((changes.denied, changes.newly_denied, changes.newly_allowed), (11, 10, 0));
    let ten = ChangedChecks { newly_denied: 10, newly_allowed: 0 };
    assert_eq!((changes.rules["d.org"], changes.keys["d: org=acme"]), (ten, ten));
    let more = calls.compare(1_000, 1_050);
    assert_eq!((more.denied, more.newly_denied, more.newly_allowed), (0, 0, 1));
    assert_eq!(more.rules["d.org"], ChangedChecks { newly_denied: 0, newly_allowed: 1 });
    for one in &mut calls.calls {
        one.descriptors[0].1 = Cost::Charge(Hits(0));
    }
    let without_hits = calls.replay(tokens(1_000), tokens(500));
    assert_eq!((without_hits.checks, without_hits.new.unwrap().newly_denied), (20, 10));
}

#[test]
fn a_settle_of_a_request_that_is_newly_denied_costs_nothing() {
    let mut calls = Calls::default();
    calls.admit("request-1");
    // The amount of 150 has no 100 for the second request, but 50 + 100 for the third.
    calls.admit("request-2");
    calls.settle("request-1", 50);
    calls.settle("request-2", 90);
    calls.admit("request-3");
    let changes = calls.compare(1_000, 150);
    assert_eq!((changes.denied, changes.newly_denied), (1, 1));
}

#[test]
fn a_request_that_is_newly_allowed_costs_its_estimate_at_the_expiry() {
    let mut calls = Calls::default();
    calls.admit("request-1");
    calls.deny("request-2");
    // Proxies also end denied requests. The recorded replica had nothing to cancel.
    calls.end("request-2", RequestUsage::Nothing);
    calls.end("request-1", RequestUsage::Nothing);
    calls.wait(60);
    calls.admit("request-3");
    // Of 200, the expiry of the second request charged 100, and the third one holds 100.
    calls.deny("request-4");
    let changes = calls.compare(100, 200);
    assert_eq!((changes.denied, changes.newly_allowed, changes.newly_denied), (1, 1, 0));
    let release = format!("{USAGE}, on_expiry: release");
    let changes = calls.replay(tokens(100), budget(&release, "amount: 200 tokens, unit: hour"));
    assert_eq!(changes.new.unwrap().newly_allowed, 2);
}

#[test]
fn holds_expire_unless_they_are_renewed() {
    let usage = format!("{USAGE}, on_expiry: release");
    let release = || budget(&usage, "amount: 199 tokens, unit: hour");
    for (is_renewed, denied) in [(true, 1), (false, 0)] {
        let mut calls = Calls::default();
        calls.admit("request-1");
        calls.wait(40);
        if is_renewed {
            calls.add(CheckOutcome::Unknown, RecordedBudgets::Renew("request-1".to_owned()));
        }
        calls.wait(40);
        calls.admit("request-2");
        assert_eq!(calls.replay(tokens(1_000), release()).new.unwrap().denied, denied);
    }
}

#[test]
fn a_repeated_id_keeps_the_settle_of_its_first_request() {
    let mut calls = Calls::default();
    calls.admit("request-1");
    calls.deny("request-1");
    calls.settle("request-1", 10);
    calls.admit("request-2");
    let compared = calls.replay(tokens(1_000), tokens(110));
    assert_eq!(compared.recorded, Agreement { known: 3, equal: 3 });
    assert_eq!(compared.new.unwrap().newly_denied, 0);
}

#[test]
fn a_rate_limit_that_denies_only_now_returns_the_holds() {
    let limits = |amount, requests| {
        config(
            USAGE,
            &format!(
                "- key: org\n  budget: {{amount: {amount} tokens, unit: hour}}\n  descriptors:\n\
                 \x20 - {{key: model, rate_limit: {{unit: hour, requests_per_unit: {requests}}}}}\n"
            ),
        )
    };
    let mut calls = Calls::default();
    for id in ["request-1", "request-2", "request-3"] {
        calls.admit(id);
        calls.settle(id, 100);
    }
    let compared = calls.replay(limits(300, 3), limits(300, 1));
    assert_eq!((compared.old_denied, compared.recorded.equal), (0, 3));
    let changes = compared.new.unwrap();
    let two = ChangedChecks { newly_denied: 2, newly_allowed: 0 };
    assert_eq!((changes.rules["d.org.model"], changes.rules.len()), (two, 1));
    // A request that the budget denies charges no rate limit.
    let changes = calls.replay(limits(300, 3), limits(99, 0)).new.unwrap();
    assert_eq!(changes.rules["d.org"], ChangedChecks { newly_denied: 3, newly_allowed: 0 });
}

#[test]
fn checks_without_an_id_charge_their_hits() {
    let mut calls = Calls::default();
    for _ in 0..5 {
        calls.add(CheckOutcome::Allow, RecordedBudgets::Charge);
    }
    // A peek uses no budgets.
    calls.add(CheckOutcome::Allow, RecordedBudgets::Unused);
    let changes = calls.compare(1_000, 3);
    assert_eq!((changes.denied, changes.newly_denied), (2, 2));
}

#[test]
fn a_prepaid_budget_denies_nothing() {
    let prepaid = || budget(USAGE, "prepaid: true, of: tokens");
    let mut calls = Calls::default();
    calls.admit("request-1");
    calls.settle("request-1", 1 << 40);
    calls.add(CheckOutcome::Allow, RecordedBudgets::Charge);
    let compared = calls.replay(prepaid(), tokens(99));
    assert_eq!((compared.old_denied, compared.recorded.equal), (0, 2));
    assert_eq!(compared.new.unwrap().newly_denied, 1);
}

#[test]
fn the_largest_numbers_are_bounded() {
    let mut calls = Calls::default();
    calls.admit("request-1");
    let most = u64::MAX;
    let all = TokenCounts { input: most, cached_input: most, output: most, any: most };
    calls.end("request-1", RequestUsage::Tokens(all));
    calls.end("request-2", RequestUsage::Tokens(all));
    calls.admit("request-3");
    if let RecordedBudgets::Reserve(reserve) = &mut calls.calls[0].budgets {
        reserve.tokens = Some(most);
    }
    let compared = calls.replay(tokens(1_000_000), money("1 usd", u32::MAX));
    // The first estimate is bounded by `at_most`: 32,000 tokens, at 4.29 usd each.
    assert_eq!((compared.old_denied, compared.new.unwrap().denied), (1, 2));
}

/// A budget of money, with the price of an output token of the model `m` in billionths.
fn money(amount: &str, price: u32) -> Config {
    let spec = Arc::new(TableSpec::new("models", [].into(), 10).unwrap());
    let mut loading = Loading::new(spec, None);
    let row = format!(r#"{{"id": "m", "input": 1, "output": {price}}}"#);
    loading.add(Ok(RawRow::from_json(&row).unwrap()), &|_, _| Ok(())).unwrap();
    let table = Arc::new(loading.finish().unwrap().0);
    let budget =
        budget(&format!("{USAGE}, prices: models"), &format!("amount: {amount}, unit: hour"));
    budget.with_tables(Arc::from([table]))
}

#[test]
fn money_has_the_prices_of_each_configuration() {
    let mut calls = Calls::default();
    for id in ["request-1", "request-2"] {
        calls.admit(id);
        calls.settle(id, 100);
    }
    // 100 tokens cost 0.001 usd, or twice as much.
    let compared = calls.replay(money("0.002 usd", 10_000), money("0.002 usd", 20_000));
    assert_eq!((compared.old_denied, compared.new.unwrap().newly_denied), (0, 1));
    // A hashed model is restored, because the table has it.
    for one in &mut calls.calls {
        let hasher = ValueHasher::new(SALT);
        for (_, value) in &mut one.descriptors[0].0 {
            *value = hasher.hash(value);
        }
    }
    let header = RecordingHeader { salt: Some(SALT), started_at: START, ..header() };
    let recording = write(&header, &calls.calls);
    let limits = |old| ReplayLimits { old, new: None };
    let hashed = compare(&*recording, limits(money("0.001 usd", 10_000))).unwrap();
    assert_eq!((hashed.old_denied, &*hashed.warnings), (1, &[][..]));
    let usage = format!("{USAGE}, prices: models");
    let unknown = compare(&*recording, limits(budget(&usage, "amount: 1 usd, unit: hour")));
    let unknown = unknown.unwrap();
    assert_eq!(unknown.old_denied, 2);
    assert!(unknown.warnings[0].contains("table `models` is not given"), "{:?}", unknown.warnings);
}
