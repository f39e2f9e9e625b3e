//! Limits whose numbers come from tables.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | the number is part of the counter's key | `a_changed_row_decides_as_a_changed_rule` |
//! | a blocked id is charged | the same |

use std::fmt::Write as _;
use std::sync::Arc;

use sluicegate::config::table_limits::FromTable;
use sluicegate::config::tables::{Amount, Loading, RawRow, Table, TableSpec};
use sluicegate::config::{Limit, LimitMode, load};
use sluicegate::engine::{AdmissionOutcome, Decision, Engine, RequestPermits};
use sluicegate::kernel::decision::{Check, Cost, Descriptor, Reason, Verdict};
use sluicegate::kernel::lease::Overshoot;
use sluicegate::kernel::units::{Hits, Nanos, Revision};

use crate::edge::engine;
use crate::support::dice::{Dice, seed};
use crate::support::engine::advance_clock;

const STRATEGIES: [&str; 4] = ["fixed_window", "gcra", "sliding_window", "sliding_log"];

const IDS: [&str; 3] = ["a", "b", "c"];

fn table(rows: &str) -> Arc<[Arc<Table>]> {
    let plan = |number| [("api".into(), Amount::from_number(number))].into();
    let plans = [("small".into(), plan(3)), ("large".into(), plan(9))].into();
    let spec = Arc::new(TableSpec::new("customers", plans, 100).unwrap());
    let mut loading = Loading::new(spec, None);
    for line in rows.lines() {
        loading.add(Ok(RawRow::from_json(line).unwrap()), &|_, _| Ok(())).unwrap();
    }
    let (table, report) = loading.finish().unwrap();
    assert_eq!(report.bad, 0, "{report:?}");
    Arc::from([Arc::new(table)])
}

fn check(id: &str, cost: Cost) -> Check<'_> {
    let descriptor = Descriptor { entries: smallvec::smallvec![("c", id)], cost, limit: None };
    Check { domain: "d", descriptors: [descriptor].into_iter().collect() }
}

async fn ask(engine: &Engine, id: &str, hits: u64) -> Decision {
    engine.decide(&check(id, Cost::Charge(Hits(hits)))).await.unwrap()
}

/// The row of an id in the table, and the same as a rule of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Given {
    Unknown,
    Plan(&'static str, u32),
    Own(u32),
    Unlimited,
    Blocked,
}

fn any_row(dice: &mut Dice) -> Given {
    match dice.up_to(6) {
        0 => Given::Unknown,
        1 => Given::Plan("small", 3),
        2 => Given::Plan("large", 9),
        3 => Given::Unlimited,
        4 => Given::Blocked,
        _ => Given::Own(u32::try_from(1 + dice.up_to(11)).unwrap()),
    }
}

fn rows(given: &[Given; 3]) -> String {
    let row = |(id, row): (&str, &Given)| match row {
        Given::Unknown => String::new(),
        Given::Plan(plan, _) => format!("{{\"id\": \"{id}\", \"plan\": \"{plan}\"}}\n"),
        Given::Own(number) => {
            format!("{{\"id\": \"{id}\", \"plan\": \"small\", \"api\": {number}}}\n")
        }
        Given::Unlimited => format!("{{\"id\": \"{id}\", \"api\": \"unlimited\"}}\n"),
        Given::Blocked => {
            format!("{{\"id\": \"{id}\", \"plan\": \"large\", \"api\": \"blocked\"}}\n")
        }
    };
    IDS.into_iter().zip(given).map(row).collect()
}

/// The limits file with one rule for each id, as `requests_per_unit` of the row.
fn explicit_rules(strategy: &str, given: &[Given; 3]) -> String {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    for (id, given) in IDS.into_iter().zip(given) {
        let number = match given {
            Given::Plan(_, number) | Given::Own(number) => *number,
            Given::Unknown | Given::Blocked => 5,
            Given::Unlimited => {
                let _ =
                    writeln!(text, "- {{key: c, value: {id}, rate_limit: {{unlimited: true}}}}");
                continue;
            }
        };
        let limit = format!("unit: minute, requests_per_unit: {number}, strategy: {strategy}");
        let _ = writeln!(text, "- {{key: c, value: {id}, rate_limit: {{{limit}}}}}");
    }
    text
}

fn loaded(text: &str, revision: u64) -> sluicegate::config::Config {
    load([("f", text.as_bytes())], Revision(revision), false).unwrap().0
}

fn with_table(strategy: &str) -> Arc<Engine> {
    engine(loaded(
        &format!(
            "domain: d\ndescriptors:\n- {{key: c, rate_limit: {{unit: minute, requests_per_unit: 5, \
             strategy: {strategy}, from: customers.api}}}}\n"
        ),
        1,
    ))
}

/// The law of tables: a row decides as a rule with its number, also after it changed.
#[tokio::test]
async fn a_changed_row_decides_as_a_changed_rule() {
    let seed = seed();
    let mut dice = Dice::new(seed);
    for round in 0..80 {
        let strategy = dice.pick(&STRATEGIES);
        let mut given = [Given::Unknown; 3];
        let (of_table, of_rules) =
            (with_table(strategy), engine(loaded(&explicit_rules(strategy, &given), 1)));
        for step in 0..60 {
            match dice.up_to(5) {
                0 => {
                    given[usize::try_from(dice.up_to(2)).unwrap()] = any_row(&mut dice);
                    of_table.publish_tables(table(&rows(&given)));
                    of_rules.publish(Arc::new(loaded(&explicit_rules(strategy, &given), 2 + step)));
                }
                1 => {
                    let pause = Nanos::from_secs(dice.up_to(40));
                    advance_clock(&of_table, pause);
                    advance_clock(&of_rules, pause);
                }
                _ => {
                    let at = usize::try_from(dice.up_to(2)).unwrap();
                    let (id, hits) = (IDS[at], dice.up_to(4));
                    let found = ask(&of_table, id, hits).await;
                    let context =
                        format!("round {round}, {strategy}, {given:?}, SLUICEGATE_SEED={seed}");
                    if given[at] == Given::Blocked {
                        assert_eq!(found.verdict, Verdict::Deny, "{context}");
                        continue;
                    }
                    let expected = ask(&of_rules, id, hits).await;
                    let (found, expected) = (&found.all_limits()[0], &expected.all_limits()[0]);
                    let text =
                        |limit: &sluicegate::engine::LimitStatus| format!("{:?}", limit.decision);
                    assert_eq!(text(found), text(expected), "{context}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_raise_has_effect_at_once_for_a_denied_id() {
    for strategy in ["gcra", "sliding_window", "sliding_log"] {
        let engine = with_table(strategy);
        engine.publish_tables(table("{\"id\": \"a\", \"plan\": \"small\"}"));
        assert_eq!(ask(&engine, "a", 3).await.verdict, Verdict::Allow);
        for _ in 0..5 {
            assert_eq!(ask(&engine, "a", 1).await.verdict, Verdict::Deny, "{strategy}");
        }
        engine.publish_tables(table("{\"id\": \"a\", \"plan\": \"large\"}"));
        assert_eq!(
            ask(&engine, "a", 6).await.verdict,
            Verdict::Allow,
            "{strategy}: 9 - 3 are left"
        );
        assert_eq!(ask(&engine, "a", 1).await.verdict, Verdict::Deny, "{strategy}");
    }
}

#[tokio::test]
async fn own_amounts_end_at_until_without_another_load() {
    let engine = with_table("gcra");
    let until = engine.clock().now().plus(Nanos::from_secs(10));
    let until = jiff::Timestamp::from_nanosecond(until.0.into()).unwrap();
    engine.publish_tables(table(&format!(
        "{{\"id\": \"a\", \"plan\": \"small\", \"api\": \"blocked\", \"until\": \"{until}\"}}"
    )));
    assert_eq!(ask(&engine, "a", 1).await.verdict, Verdict::Deny);
    advance_clock(&engine, Nanos::from_secs(10));
    assert_eq!(ask(&engine, "a", 3).await.verdict, Verdict::Allow);
}

#[tokio::test]
async fn a_refund_of_a_blocked_id_changes_its_counter() {
    let engine = with_table("gcra");
    engine.publish_tables(table("{\"id\": \"a\", \"plan\": \"small\"}"));
    assert_eq!(ask(&engine, "a", 3).await.verdict, Verdict::Allow);
    engine.publish_tables(table("{\"id\": \"a\", \"api\": \"blocked\"}"));
    engine.decide(&check("a", Cost::Refund(Hits(3)))).await.unwrap();
    engine.publish_tables(table("{\"id\": \"a\", \"plan\": \"small\"}"));
    assert_eq!(ask(&engine, "a", 3).await.verdict, Verdict::Allow);
}

const IN_FLIGHT: &str = "domain: d\ndescriptors:\n\
    - {key: c, concurrency: {limit: 1, mode: local, from: customers.api}}\n";

async fn admit(engine: &Engine, id: &str) -> Result<RequestPermits, Reason> {
    match engine.admit(&check(id, Cost::Charge(Hits(1))), Some(Nanos(0))).await.unwrap() {
        AdmissionOutcome::Decided(_, permits) => Ok(permits),
        AdmissionOutcome::Rejected(rejection) => Err(rejection.reason),
    }
}

#[tokio::test]
async fn a_concurrency_limit_follows_its_row() {
    let engine = engine(loaded(IN_FLIGHT, 1));
    engine.publish_tables(table("{\"id\": \"a\", \"api\": 2}"));
    let mut held = vec![admit(&engine, "a").await.unwrap(), admit(&engine, "a").await.unwrap()];
    assert_eq!(admit(&engine, "a").await.unwrap_err(), Reason::ConcurrencyLimitReached);
    engine.publish_tables(table("{\"id\": \"a\", \"plan\": \"small\"}"));
    held.push(admit(&engine, "a").await.unwrap());
    assert!(admit(&engine, "a").await.is_err());
    engine.publish_tables(table("{\"id\": \"a\", \"api\": \"blocked\"}"));
    held.clear();
    assert!(admit(&engine, "a").await.is_err());
    engine.publish_tables(table("{\"id\": \"a\", \"api\": \"unlimited\"}"));
    for _ in 0..100 {
        held.push(admit(&engine, "a").await.unwrap());
    }
    // An id without a row has the number of the rule.
    let other = admit(&engine, "b").await.unwrap();
    assert!(admit(&engine, "b").await.is_err());
    drop(other);
}

#[tokio::test]
async fn a_later_configuration_reads_the_same_tables() {
    let engine = with_table("gcra");
    engine.publish_tables(table("{\"id\": \"a\", \"plan\": \"large\"}"));
    let text = "domain: d\ndescriptors:\n- {key: c, rate_limit: {unit: hour, requests_per_unit: 1, \
                from: customers.api}}\n";
    engine.publish(Arc::new(loaded(text, 2)));
    assert_eq!(ask(&engine, "a", 9).await.verdict, Verdict::Allow);
    assert_eq!(ask(&engine, "a", 1).await.verdict, Verdict::Deny);
    assert_eq!(ask(&engine, "b", 2).await.verdict, Verdict::Deny);
}

fn loaded_with(descriptors: &str, rows: &str) -> sluicegate::config::Config {
    loaded(&format!("domain: d\ndescriptors:\n{descriptors}"), 1).with_tables(table(rows))
}

/// The limit of the id `a` under the first rule.
fn sized(fields: &str, number: u32) -> Limit {
    let rule =
        format!("- {{key: c, rate_limit: {{unit: minute, {fields}, from: customers.api}}}}\n");
    let config = loaded_with(&rule, &format!("{{\"id\": \"a\", \"api\": {number}}}"));
    let own = &config.domains["d"].tree.rules().next().unwrap().limits[0];
    let found = config.tables.rate_limit(own.from.as_ref().unwrap(), "a", Nanos(0));
    let FromTable::Limit(limit) = found else { panic!("{found:?}") };
    limit.clone()
}

#[test]
fn burst_and_overshoot_follow_the_number_of_the_row() {
    let gcra = sized("requests_per_unit: 60, strategy: gcra, burst: 10", 120);
    assert_eq!((gcra.requests, gcra.strategy.max_at_once()), (120, 20));
    let overshoot = |fields: &str, number| {
        let fields = format!("requests_per_unit: 100, strategy: gcra, mode: leased, {fields}");
        match sized(&fields, number).mode {
            LimitMode::Leased(terms) => Some(terms.overshoot),
            _ => None,
        }
    };
    let at_most = |hits| Some(Overshoot::AtMost(Hits(hits)));
    assert_eq!(overshoot("max_overshoot: 10%", 1_000), at_most(100));
    assert_eq!(overshoot("max_overshoot: 10%", 9), None, "less than one hit: exact");
    assert_eq!(overshoot("max_overshoot: 50", 1_000), at_most(50));
    assert_eq!(overshoot("max_overshoot: 50", 20), at_most(20), "at most the limit");
}

#[tokio::test]
async fn by_names_the_entry_with_the_id() {
    let rule = "- {key: c, descriptors: [{key: path, rate_limit: {unit: day, requests_per_unit: 1, \
                from: customers.api, by: c}}]}\n";
    let engine = engine(loaded(&format!("domain: d\ndescriptors:\n{rule}"), 1));
    engine.publish_tables(table("{\"id\": \"a\", \"plan\": \"small\"}"));
    let ask = async |id: &str, hits: u64| {
        let entries = smallvec::smallvec![("c", id), ("path", "a")];
        let cost = Cost::Charge(Hits(hits));
        let descriptor = Descriptor { entries, cost, limit: None };
        let check = Check { domain: "d", descriptors: [descriptor].into_iter().collect() };
        engine.decide(&check).await.unwrap().verdict
    };
    assert_eq!(ask("a", 3).await, Verdict::Allow);
    // The path has the value of an id, and is none.
    assert_eq!(ask("b", 2).await, Verdict::Deny);
}

#[tokio::test]
async fn an_unlimited_item_of_a_list_leaves_the_others() {
    let list = "- {key: c, rate_limits: [{unit: minute, requests_per_unit: 1, from: customers.api}, \
                {unit: day, requests_per_unit: 4}]}\n";
    let engine = engine(loaded(&format!("domain: d\ndescriptors:\n{list}"), 1));
    engine.publish_tables(table("{\"id\": \"a\", \"api\": \"unlimited\"}"));
    assert_eq!(ask(&engine, "a", 4).await.verdict, Verdict::Allow);
    assert_eq!(ask(&engine, "a", 1).await.verdict, Verdict::Deny);
    engine.publish_tables(table("{\"id\": \"a\", \"api\": \"blocked\"}"));
    assert_eq!(ask(&engine, "a", 1).await.verdict, Verdict::Deny);
}
