//! A charge of one hit to one key, encoded for the store.

use sluicegate::kernel::decision::{Cost, Enforcement};
use sluicegate::kernel::key::{CounterKey, KeyStrategy};
use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::redis::{charge_call::ChargeCall, codec};
use sluicegate::store::{Charge, ChargeMode, Charges, Placement};

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
        Way::Gcra => (Gcra::new(LIMIT, DAY, LIMIT).map(Strategy::Gcra), KeyStrategy::Gcra),
        Way::FixedWindow => (
            FixedWindow::new(LIMIT, Windows::Every(DAY)).map(Strategy::FixedWindow),
            KeyStrategy::FixedWindow(DAY),
        ),
    };
    let value = format!("client-{number:04}");
    let key = CounterKey::unique("shop", [("api_key", &*value)].into_iter(), counting);
    let charge = Charge {
        key,
        placement: Placement::default(),
        strategy: strategy.unwrap(),
        cost: Cost::Charge(Hits(1)),
        standing: Enforcement::default(),
        per_second: false,
    };
    Charges { list: [charge].into_iter().collect(), mode: ChargeMode::Each }
}

/// The script call that charges a hit to a GCRA counter.
pub(crate) fn evalsha(sha: &str, number: u64) -> Vec<Vec<u8>> {
    let packed = codec::pack(&asked(number, Way::Gcra), b"scale:");
    let call = ChargeCall::encode(vec![packed], None);
    let head = [b"EVALSHA".to_vec(), sha.as_bytes().to_vec(), b"1".to_vec()];
    head.into_iter().chain(call.keys).chain(call.args).collect()
}
