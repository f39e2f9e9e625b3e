//! Tests the Redis keys of counters: their names, their expiry, and foreign values under them.

use std::collections::HashSet;

use sluicegate::kernel::decision::Cost;
use sluicegate::kernel::key::{CounterKey, KeyStrategy};
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::sliding_log::SlidingLog;
use sluicegate::kernel::rate::sliding_window::SlidingWindow;
use sluicegate::kernel::rate::{CounterDecision, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::redis::CHARGE_SCRIPT;
use sluicegate::store::redis::codec::{ChargeResult, MAX_KEY_BYTES, counter_key};
use sluicegate::store::{ChargeMode, ChargeOutcome, Charges, Placement};

use super::model::charge;
use super::{PREFIX, Scripted, answers, call, decode};
use crate::support::redis::Redis;
use crate::support::resp::{Client, Value};

/// An instant on 2025-11-20, in the middle of a minute.
const NOW: Nanos = Nanos::from_secs(1_763_632_345);

fn strategies(limit: u32, period: Nanos) -> [Strategy; 5] {
    let end_of_time = |window| Nanos::from_secs(1_000_000_000 + window * 6_000_000_000);
    let starts = std::array::from_fn(|window| end_of_time(window as u64));
    [
        Strategy::Gcra(Gcra::new(limit, period, limit).unwrap()),
        Strategy::FixedWindow(FixedWindow::new(limit, Windows::Every(period)).unwrap()),
        Strategy::FixedWindow(FixedWindow::new(limit, Windows::Calendar { starts }).unwrap()),
        Strategy::SlidingWindow(SlidingWindow::new(limit, period).unwrap()),
        Strategy::SlidingLog(SlidingLog::new(limit, period).unwrap()),
    ]
}

fn each(charges: impl IntoIterator<Item = (&'static str, Strategy, u64)>) -> Charges {
    let charges = charges.into_iter();
    let list = charges.map(|(name, limit, hits)| charge(name, limit, Cost::Charge(Hits(hits))));
    Charges { list: list.collect(), mode: ChargeMode::Each }
}

fn is_allowed(result: ChargeResult) -> bool {
    matches!(result, ChargeResult::Outcome(ChargeOutcome::Decided(CounterDecision::Allow(_))))
}

/// Converts a reply to the Redis command `TIME` to microseconds.
pub(super) fn micros(time: &Value) -> u64 {
    let parts: Vec<u64> = time.array().iter().map(|part| part.text().parse().unwrap()).collect();
    parts[0] * 1_000_000 + parts[1]
}

/// Charges by the store's clock. Returns the least and the most microseconds by which the first key
/// outlives its counter, because the clock is read before and after the charge.
fn outlives(scripted: &mut Scripted, charges: &Charges) -> [i64; 2] {
    let first = &charges.list[0];
    scripted.client.queue(&["MULTI"]);
    scripted.client.queue(&["TIME"]);
    scripted.queue(charges, None);
    scripted
        .client
        .queue(&[b"PEXPIRETIME".to_vec(), counter_key(&first.key, Placement::ByKey, PREFIX)]);
    scripted.client.queue(&["TIME"]);
    scripted.client.queue(&["EXEC"]);
    scripted.client.flush();
    let replies: Vec<_> = (0..6).map(|_| scripted.client.receive()).collect();
    let [before, reply, expires, after] = replies[5].array() else { panic!() };
    let ChargeResult::Outcome(ChargeOutcome::Decided(CounterDecision::Allow(room))) =
        answers(charges, reply)[0]
    else {
        panic!("{reply:?}")
    };
    let (reset, tick) = (room.reset_after.0 / 1_000, first.strategy.tick().size().0 / 1_000);
    // The reset-after counts from the tick in which the charge was made.
    let rests = |time| (micros(time) / tick * tick + reset).cast_signed();
    [after, before].map(|time| expires.int() * 1_000 - rests(time))
}

/// The microseconds by which a GCRA key outlives its stored debt, or `None` if the key does not
/// exist.
#[expect(clippy::cast_possible_truncation, reason = "they are integers below 2^53")]
pub(super) fn outlives_its_debt(client: &mut Client, key: &[u8]) -> Option<i64> {
    let Value::Text(state) = client.call(&[b"GET", key]) else { return None };
    let double = |at: usize| f64::from_le_bytes(state[at..at + 8].try_into().unwrap()) as i64;
    let int = |at: usize| i64::from(u32::from_le_bytes(state[at..at + 4].try_into().unwrap()));
    let [since, owed, limit, tick] = [double(1), double(9), int(17), int(33)];
    let rests = (since + (owed + limit - 1) / limit) * tick;
    Some(client.call(&[b"PEXPIRETIME", key]).int() * 1_000 - rests)
}

#[test]
fn key_expires_within_3_ms_after_its_counter_empties() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    for strategy in &strategies(7, Nanos(3_600_000_007_000))[1..] {
        for hits in [1, 3, 2, 1] {
            let [least, most] = outlives(&mut scripted, &each([("a", *strategy, hits)]));
            assert!(0 <= most && least <= 3_000, "{strategy:?}: {least} to {most}");
        }
    }
}

#[test]
fn gcra_key_expires_within_101_ms_of_its_debt() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    // Limits with ticks of a microsecond, a millisecond and a second, and rates from many hits per
    // tenth of a second to one hit in many seconds.
    for (limit, period) in [
        (50_000, Nanos(700_000_001_000)),
        (50_000, Nanos::from_secs(700)),
        (1_000, Nanos::from_secs(1_000_000_000)),
        (7, Nanos(3_600_000_007_000)),
        (1_000_000_000, Nanos::from_secs(86_400)),
    ] {
        let strategy = Strategy::Gcra(Gcra::new(limit, period, limit).unwrap());
        scripted.client.call(&["FLUSHALL"]);
        for number in 0..300 {
            let (name, hits) = (["a", "b", "c"][number % 3], 1 + number as u64 % 4);
            // Charges the key alone, or in a batch of one limit.
            let names = if number % 2 == 0 { vec![name] } else { vec![name, "d"] };
            if limit < 1_000 && 3 <= number {
                break;
            }
            let charges = each(names.into_iter().map(|name| (name, strategy, hits)));
            let [least, most] = outlives(&mut scripted, &charges);
            assert!(0 <= most && least <= 101_000, "{strategy:?}, {number}: {least} to {most}");
        }
    }
}

#[test]
fn flushed_script_reloads_under_the_same_hash() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    scripted.client.call(&["SCRIPT", "FLUSH"]);
    let charges = each(strategies(1, Nanos::from_secs(60)).map(|strategy| ("a", strategy, 1)));
    scripted.queue(&charges, Some(NOW));
    scripted.client.flush();
    let Value::Error(error) = scripted.client.receive() else { panic!("answered") };
    assert!(error.starts_with("NOSCRIPT"), "{error}");
    let sha = scripted.client.call(&["SCRIPT", "LOAD", CHARGE_SCRIPT]).text();
    assert_eq!(sha, scripted.sha);
    assert!(scripted.charge(&charges, Some(NOW)).into_iter().all(is_allowed));
}

/// Commands that store a foreign value under `key`.
fn foreign_values(key: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let command = |words: &[&[u8]]| {
        let rest = words[1..].iter().copied();
        std::iter::once(words[0]).chain([key]).chain(rest).map(<[u8]>::to_vec).collect()
    };
    let mut gcra = vec![b'g'; 37];
    gcra[1..9].copy_from_slice(&f64::NAN.to_le_bytes());
    let mut pair = vec![b's'; 17];
    pair[1..9].copy_from_slice(&(-1.0_f64).to_le_bytes());
    vec![
        command(&[b"SET", b"a stranger"]),
        command(&[b"SET", b""]),
        command(&[b"SET", b"-5"]),
        command(&[b"SET", b"9007199254740992"]),
        command(&[b"SET", b"9223372036854775807"]),
        command(&[b"SET", b"1763632320000000:9007199254740992"]),
        command(&[b"SET", b"1763632320000001:5"]),
        command(&[b"SET", &gcra]),
        command(&[b"SET", &pair]),
        command(&[b"RPUSH", b"1"]),
        command(&[b"RPUSH", &[0xff; 20]]),
        command(&[b"HSET", b"field", b"value"]),
        command(&[b"SADD", b"member"]),
        command(&[b"ZADD", b"1", b"member"]),
    ]
}

#[test]
fn foreign_value_stays_and_other_charges_succeed() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    let limits = strategies(7, Nanos::from_secs(60));
    let [gcra, window, calendar, ..] = limits;
    for (strategy, cost) in limits.iter().flat_map(|limit| {
        [Cost::Charge(Hits(1)), Cost::Charge(Hits(0)), Cost::Refund(Hits(1))]
            .map(|cost| (*limit, cost))
    }) {
        let strange = charge("strange", strategy, cost);
        let name = counter_key(&strange.key, Placement::ByKey, PREFIX);
        for (number, stranger) in foreign_values(&name).into_iter().enumerate() {
            // Foreign value 6 has a window start within a minute, which is valid for a calendar
            // window.
            if number == 6 && strategy == calendar {
                continue;
            }
            scripted.client.call(&["FLUSHALL"]);
            scripted.client.call(&stranger);
            let before = scripted.client.call(&[b"DUMP".to_vec(), name.clone()]);
            for rule in [
                ChargeMode::Each,
                ChargeMode::AllOrNothing { quota_for_all: false, quota_cannot_deny: false },
            ] {
                let mut charges = each([("before", gcra, 1), ("after", window, 1)]);
                charges.mode = rule;
                charges.list.insert(1, strange.clone());
                let answers = scripted.charge(&charges, Some(NOW));
                assert_eq!(answers[1], ChargeResult::Unreadable, "{strategy:?} {number} {rule:?}");
                assert!(is_allowed(answers[0]) && is_allowed(answers[2]));
            }
            let left = scripted.charge(&each([("before", gcra, 0)]), Some(NOW))[0];
            let ChargeResult::Outcome(ChargeOutcome::Decided(CounterDecision::Allow(room))) = left
            else {
                panic!()
            };
            assert_eq!(room.remaining, Hits(5), "the others are charged");
            let after = scripted.client.call(&[b"DUMP".to_vec(), name.clone()]);
            assert_eq!(after, before, "{strategy:?}, stranger {number}");
        }
    }
}

#[test]
fn foreign_value_in_a_batch_spares_its_neighbors() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    for strategy in strategies(7, Nanos::from_secs(60)) {
        let name = counter_key(
            &charge("strange", strategy, Cost::Charge(Hits(1))).key,
            Placement::ByKey,
            PREFIX,
        );
        // Foreign value 6 has a window start within a minute, which is valid for a calendar window.
        let is_strange = |(number, _): &(usize, _)| *number != 6;
        for (number, stranger) in foreign_values(&name).into_iter().enumerate().filter(is_strange) {
            scripted.client.call(&["FLUSHALL"]);
            scripted.charge(&each([("a", strategy, 1), ("b", strategy, 1)]), Some(NOW));
            scripted.client.call(&stranger);
            let alike = each(["a", "strange", "b"].map(|name| (name, strategy, 1)));
            let answers = scripted.charge(&alike, Some(NOW));
            assert_eq!(answers[1], ChargeResult::Unreadable, "{strategy:?} {number}");
            for answer in [answers[0], answers[2]] {
                let ChargeResult::Outcome(ChargeOutcome::Decided(CounterDecision::Allow(room))) =
                    answer
                else {
                    panic!("{strategy:?} {number}: {answer:?}")
                };
                assert_eq!(room.remaining, Hits(5), "{strategy:?} {number}");
            }
        }
    }
}

#[test]
fn sliding_log_stores_one_entry_per_instant() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    let limit = |hits| Strategy::SlidingLog(SlidingLog::new(hits, Nanos::SECOND).unwrap());
    for (limit, millis, runs) in
        [(limit(4), 0, 1), (limit(4), 0, 1), (limit(4), 1, 2), (limit(4), 2, 3), (limit(1), 3, 1)]
    {
        let charges = each([("a", limit, 1)]);
        scripted.charge(&charges, Some(NOW.plus(Nanos(millis * 1_000_000))));
        let length =
            [b"LLEN".to_vec(), counter_key(&charges.list[0].key, Placement::ByKey, PREFIX)];
        assert_eq!(scripted.client.call(&length), Value::Int(runs), "{limit:?} at {millis}");
    }
}

#[test]
fn full_redis_returns_oom_and_charges_nothing() {
    let redis = Redis::start_with(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    let mut scripted = Scripted::new(&redis);
    let charges = each(strategies(7, Nanos::from_secs(60)).map(|strategy| ("a", strategy, 1)));
    scripted.queue(&charges, None);
    scripted.client.flush();
    let Value::Error(error) = scripted.client.receive() else { panic!("answered") };
    assert!(error.contains("OOM"), "{error}");
    assert_eq!(scripted.client.call(&["DBSIZE"]), Value::Int(0));
}

#[test]
fn counter_keys_are_unique_and_optionally_colocated() {
    let long = "x".repeat(MAX_KEY_BYTES);
    let longer = "x".repeat(MAX_KEY_BYTES + 1);
    let mut names = HashSet::new();
    let (mut apart, mut beside) = (HashSet::new(), HashSet::new());
    let together = Placement::by_value("shop", "b");
    let redis = Redis::start_with(&["--cluster-enabled", "yes"]);
    let mut client = redis.connect();
    for entries in [
        vec![("a", "b")],
        vec![("ab", "")],
        vec![("a", "b"), ("", "")],
        vec![("a", "}{")],
        vec![("a", &*long)],
        vec![("a", &*longer)],
    ] {
        for counting in [KeyStrategy::Gcra, KeyStrategy::FixedWindow(Nanos::SECOND)] {
            let counter = CounterKey::unique("shop", entries.iter().copied(), counting);
            for (home, slots) in [(Placement::ByKey, &mut apart), (together, &mut beside)] {
                let name = counter_key(&counter, home, PREFIX);
                assert!(name.len() <= PREFIX.len() + 22 + MAX_KEY_BYTES);
                let slot = [b"CLUSTER".to_vec(), b"KEYSLOT".to_vec(), name.clone()];
                slots.insert(client.call(&slot).int());
                assert!(names.insert(name), "{entries:?}");
            }
        }
    }
    assert_eq!(beside.len(), 1);
    // Twelve keys in 16,384 slots are rarely in one slot.
    assert!(6 < apart.len(), "{apart:?}");
}

#[test]
fn counter_key_is_equal_in_every_process() {
    let counter =
        |value: &str| CounterKey::unique("shop", [("k", value)].into_iter(), KeyStrategy::Gcra);
    // Computed by another implementation of SipHash-2-4, with key 0.
    let itself = b"p:sg:{a3e0a8da6e827a85}:ig\0\0\0\0\0\0\0\0\x04\0\0\0shop\x01\0k\x01\0v";
    assert_eq!(counter_key(&counter("v"), Placement::ByKey, b"p:"), itself);
    let beside = b"p:sg:{9bb241b59431bc48}:ig\0\0\0\0\0\0\0\0\x04\0\0\0shop\x01\0k\x01\0v";
    assert_eq!(counter_key(&counter("v"), Placement::by_value("shop", "v"), b"p:"), beside);
}

#[test]
fn impossible_reply_of_the_charge_script_is_rejected() {
    let [gcra, window, calendar, ..] = strategies(7, Nanos::from_secs(60));
    let refund = |strategy| Charges {
        list: std::iter::once(charge("a", strategy, Cost::Refund(Hits(1)))).collect(),
        mode: ChargeMode::Each,
    };
    let one = |strategy| each([("a", strategy, 1)]);
    let (admit, never, refunded, unreadable, deny, stale) = (112, 113, 114, 3, 116, 5);
    let decode = |charges: &Charges, reply: &[i64]| decode(std::slice::from_ref(charges), reply);
    assert!(decode(&one(gcra), &[admit, 0]).is_ok());
    assert!(decode(&one(gcra), &[deny, 0, 1]).is_ok());
    assert!(decode(&refund(gcra), &[refunded, 0]).is_ok());
    assert!(decode(&one(calendar), &[stale, 0, 7]).is_ok());
    for (charges, reply) in [
        (one(gcra), &[][..]),
        (one(gcra), &[admit]),
        (one(gcra), &[admit, 0, 0]),
        (one(gcra), &[admit, 0, admit, 0]),
        (one(gcra), &[admit + 16, 0]),
        (one(gcra), &[admit + 8]),
        (one(gcra), &[admit + 8, 0]),
        (one(gcra), &[admit - 128, 0]),
        (one(gcra), &[admit, -1]),
        (one(gcra), &[admit, (1 << 53) + 1]),
        (one(gcra), &[deny, 0]),
        (one(gcra), &[deny, 0, -1]),
        (one(gcra), &[never, 0, 1]),
        (one(gcra), &[refunded, 0]),
        (one(gcra), &[118, 0, 0]),
        (one(gcra), &[-1, 0]),
        (one(window), &[stale, 0, 7]),
        (one(calendar), &[stale, 1, 7]),
        (one(calendar), &[stale + 16, 0, 7]),
        (one(gcra), &[unreadable, 1]),
        (one(gcra), &[unreadable + 16, 0]),
        (refund(gcra), &[admit, 0]),
        (refund(gcra), &[deny, 0, 0]),
    ] {
        assert!(decode(&charges, reply).is_err(), "{reply:?}");
    }
}

#[test]
fn script_call_sends_each_key_and_limit_once() {
    let limits = strategies(7, Nanos::from_secs(60));
    let question = each(limits.map(|strategy| ("a", strategy, 1)));
    let call = call(&[question.clone(), question], None);
    assert_eq!((call.keys.len(), call.args.len()), (5, 7));
}

#[test]
fn charges_of_one_limit_send_no_list_of_limits() {
    let [gcra, ..] = strategies(7, Nanos::from_secs(60));
    let questions = ["a", "b", "c"].map(|name| each([(name, gcra, 1)]));
    let call = call(&questions, None);
    assert_eq!((call.keys.len(), call.args.len(), call.args[1].len()), (3, 3, 0));
}
