//! A charge of one hit to one key, encoded for the store.

use sluicegate::backend::redis::{call::Call, codec};
use sluicegate::backend::{Charge, Charges, Home, Rule};
use sluicegate::kernel::decision::{Cost, Standing};
use sluicegate::kernel::key::{CounterKey, Counting};
use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::units::{Hits, Nanos};

const DAY: Nanos = Nanos::from_secs(86_400);
/// Too large to use up: a denial writes nothing and would cost less.
const LIMIT: u32 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Gcra,
    FixedWindow,
}

pub(crate) fn asked(number: u64, way: Way) -> Charges {
    let (strategy, counting) = match way {
        Way::Gcra => (Gcra::new(LIMIT, DAY, LIMIT).map(Strategy::Gcra), Counting::Gcra),
        Way::FixedWindow => (
            FixedWindow::new(LIMIT, Windows::Every(DAY)).map(Strategy::FixedWindow),
            Counting::FixedWindow(DAY),
        ),
    };
    let value = format!("client-{number:04}");
    let key = CounterKey::injective("shop", [("api_key", &*value)].into_iter(), counting);
    let charge = Charge {
        key,
        home: Home::default(),
        strategy: strategy.unwrap(),
        cost: Cost::Charge(Hits(1)),
        standing: Standing::default(),
        per_second: false,
    };
    Charges { list: [charge].into_iter().collect(), rule: Rule::Each }
}

/// The script call that charges a hit to a GCRA counter.
pub(crate) fn evalsha(sha: &str, number: u64) -> Vec<Vec<u8>> {
    let packed = codec::pack(&asked(number, Way::Gcra), b"scale:");
    let call = Call::of(vec![packed], None);
    let head = [b"EVALSHA".to_vec(), sha.as_bytes().to_vec(), b"1".to_vec()];
    head.into_iter().chain(call.keys).chain(call.args).collect()
}
