//! Redis CPU of a reserve and a settle of two budgets, beside a strict check of two descriptors.

use sluicegate::kernel::budget::{Amount, BudgetPeriod, BudgetTerms, HoldId, OnExpiry};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::rate::fixed_window::Windows;
use sluicegate::kernel::units::Nanos;
use sluicegate::store::budgets::{BudgetAction, BudgetCall, BudgetPart};
use sluicegate::store::redis::charge_call::ChargeCall;
use sluicegate::store::redis::{self, codec};
use sluicegate::store::{Charges, Placement};

use super::charges::{Way, asked};
use super::{KEYS, Store, median, resp, row};

const REQUESTS: u64 = 40_000;
const TURNS: usize = 5;

type Command = Vec<Vec<u8>>;

/// Prints the CPU of both, one call at a time and 64 at a time.
pub(crate) fn run(store: &Store) {
    let mut client = resp::Client::connect(&store.socket()).unwrap();
    let [charge, budget] = [redis::CHARGE_SCRIPT, redis::BUDGET_SCRIPT]
        .map(|script| client.call(&["SCRIPT", "LOAD", script]).text());
    let mut requests = 0;
    for together in [1, 64] {
        let mut measure = |commands: &dyn Fn(u64) -> Vec<Command>| {
            requests += REQUESTS;
            cpu_micros(store, &mut client, together, requests, commands)
        };
        let turns: Vec<(f64, f64)> = (0..TURNS)
            .map(|_| {
                let check = measure(&|number| vec![check_of_two(&charge, number)]);
                let both =
                    measure(&|number| vec![reserve(&budget, number), settle(&budget, number)]);
                (check, both)
            })
            .collect();
        let of = |pick: fn(&(f64, f64)) -> f64| median(turns.iter().map(pick));
        row(&format!("Redis CPU: check of two, {together} at a time"), of(|it| it.0), "us", "");
        row(&format!("Redis CPU: reserve + settle, {together} at a time"), of(|it| it.1), "us", "");
        row("  ratio of reserve + settle to the check", of(|it| it.1 / it.0), "", "3");
    }
}

/// The CPU time of Redis for each request, whose numbers begin at `first`.
fn cpu_micros(
    store: &Store,
    client: &mut resp::Client,
    together: u64,
    first: u64,
    commands: &dyn Fn(u64) -> Vec<Command>,
) -> f64 {
    let before = store.cpu_micros();
    for round in 0..REQUESTS / together {
        let mut replies = 0;
        for number in 0..together {
            for command in commands(first + round * together + number) {
                client.queue(&command);
                replies += 1;
            }
        }
        client.flush();
        (0..replies).for_each(|_| assert!(matches!(client.receive(), resp::Value::Text(_))));
    }
    (store.cpu_micros() - before) / REQUESTS as f64
}

fn check_of_two(sha: &str, number: u64) -> Command {
    let of = |number| asked(number, Way::Gcra);
    let (mut both, second) = (of(number % KEYS), of(KEYS + number % KEYS));
    both.list.extend(second.list);
    both.list.iter_mut().for_each(|charge| charge.placement = Placement::by_domain("shop"));
    let call = ChargeCall::encode(vec![codec::pack(&Charges { ..both }, b"scale:")], None);
    command(sha, call.keys, call.args)
}

fn reserve(sha: &str, number: u64) -> Command {
    budget_command(sha, BudgetAction::Reserve, number, 1_000)
}

fn settle(sha: &str, number: u64) -> Command {
    budget_command(sha, BudgetAction::Settle, number, 900)
}

fn budget_command(sha: &str, action: BudgetAction, number: u64, amount: u64) -> Command {
    let value = format!("client-{:04}", number % KEYS);
    let part = |model| BudgetPart {
        key: CounterKey::budget("llm", [("org", &*value), ("model", model)].into_iter(), 0),
        placement: Placement::by_value("llm", &value),
        terms: BudgetTerms {
            amount: Amount(1 << 50),
            period: BudgetPeriod::Each(Windows::Every(Nanos::from_secs(86_400))),
            time_limit: Nanos::from_secs(1),
            on_expiry: OnExpiry::Charge,
            is_enforced: true,
        },
        amount: Amount(amount),
    };
    let budgets = [part("a"), part("")].into_iter().collect();
    let call = BudgetCall { id: HoldId(7, number), action, budgets };
    let packed = codec::budgets::pack(&call, b"scale:", None);
    command(sha, packed.keys, packed.args)
}

fn command(sha: &str, keys: Vec<Vec<u8>>, args: Vec<Vec<u8>>) -> Command {
    let count = keys.len().to_string();
    let head = [b"EVALSHA".to_vec(), sha.as_bytes().to_vec(), count.into_bytes()];
    head.into_iter().chain(keys).chain(args).collect()
}
