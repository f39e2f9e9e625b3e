//! Counts shares and requests in flight, and compares them with the limits.

use super::{CEILINGS, EngineSimulation, FAULTY_TICKS, LONGEST, TERM, TICK};
use crate::simulation::engine::replica::{EngineReplica, Request};
use crate::simulation::flaws::Violation;

/// Ticks until the last fault has no effect: twice the time for shares, requests and recovery to
/// end.
const SETTLING_TICKS: u64 = 300;

/// The number of these requests in flight at a limit.
fn count_in_flight(requests: &[Request], limit_index: usize, tick: u64) -> u64 {
    requests.iter().filter(|it| it.ceiling == limit_index && tick < it.ends).count() as u64
}

impl EngineSimulation {
    /// The oracle: compares the permits in use of each limit with its bound.
    pub(super) fn check_limits(&mut self) -> Result<(), Violation> {
        let (tick, mut inside) = (self.tick, [0; CEILINGS.len()]);
        for (at, inside) in inside.iter_mut().enumerate() {
            *inside = self.check_limit(at)?;
        }
        let mut all = self.places.iter().filter_map(|place| place.replica.as_ref());
        if let Some(wrong) = all.find_map(EngineReplica::find_violation) {
            return Err(Violation::Starvation(format!("{wrong}, tick {tick}")));
        }
        if FAULTY_TICKS + SETTLING_TICKS < tick {
            self.full.iter_mut().zip(inside).for_each(|(most, inside)| *most = inside.max(*most));
        }
        let survived =
            |forgot: &mut u64| *forgot + (TERM.0 + LONGEST.0) / TICK.0 < tick && 0 < inside[0];
        self.tally.amnesias_survived += u64::from(self.forgot_at.take_if(survived).is_some());
        Ok(())
    }

    /// Compares one limit's permits in use with its bound. Returns its requests in flight.
    fn check_limit(&mut self, limit_index: usize) -> Result<u64, Violation> {
        let tick = self.tick;
        let all = self.places.iter().filter_map(|place| place.replica.as_ref());
        let known_limit = all.clone().map(|replica| replica.known_limit).max().unwrap_or(0);
        let each = all
            .map(|it| (it.shares()[limit_index], count_in_flight(&it.requests, limit_index, tick)));
        let each: Vec<_> =
            each.chain([(0, count_in_flight(&self.orphans, limit_index, tick))]).collect();
        let used = each.iter().map(|(share, inside)| share.max(inside)).sum();
        let most = self.bounds[limit_index].update(tick, known_limit, used);
        self.tally.lowered += u64::from(known_limit < most);
        if most < used {
            return Err(Violation::LimitExceeded(format!(
                "shares and inside {each:?}, at last of the dead: above {most}, tick {tick}"
            )));
        }
        Ok(each.iter().map(|(_, inside)| inside).sum())
    }
}
