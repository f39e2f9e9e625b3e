//! The law over a merged log, restated naively: every interval is looked at.

use sluicegate::kernel::rate::limit::Tick;
use sluicegate::kernel::units::Nanos;

use super::store::Counted;

/// Hits admitted at one instant, true time, and what was out when it began.
#[derive(Clone, Copy, Debug)]
pub struct Admitted {
    pub at: Nanos,
    pub hits: u64,
    pub out: u64,
    /// What was out when the window began that `at` is in.
    pub out_at_roll: u64,
}

/// The most hits by which any interval passes the law.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overshoot {
    /// The law alone.
    pub above_law: u64,
    /// The law and what was out when the interval began.
    pub above_out: u64,
}

/// The worst of all intervals of `log`, which is in order of time.
pub fn overshoot(counted: &Counted, log: &[Admitted]) -> Overshoot {
    match counted {
        Counted::Gcra(limit, _) => {
            let (worth, burst) = (limit.worth(), limit.burst());
            let law = move |from: u64, to: u64| {
                let earned = u128::from(to - from) * u128::from(worth.hits);
                Some(burst + u32::try_from(earned / u128::from(worth.ticks.get())).unwrap())
            };
            over_intervals(log, limit.tick(), law)
        }
        Counted::Log(limit, _) => {
            let period = Tick::Micro.floor(limit.period());
            let law = move |from: u64, to: u64| (to - from < period).then_some(limit.limit());
            over_intervals(log, Tick::Micro, law)
        }
        Counted::Sliding(limit, _) => {
            let (period, most) = (limit.worth().ticks.get(), limit.limit());
            let law = move |from: u64, to: u64| {
                let slid = u128::from(most) * u128::from(to - from) / u128::from(period);
                (to - from <= period).then(|| most + u32::try_from(slid).unwrap())
            };
            over_intervals(log, limit.tick(), law).max(over_windows(counted, log))
        }
        Counted::Fixed(..) | Counted::Calendar(..) => over_windows(counted, log),
    }
}

impl Overshoot {
    fn of(admitted: u64, law: u64, out: u64) -> Self {
        let above_law = admitted.saturating_sub(law);
        Self { above_law, above_out: above_law.saturating_sub(out) }
    }

    fn max(self, other: Self) -> Self {
        Self {
            above_law: self.above_law.max(other.above_law),
            above_out: self.above_out.max(other.above_out),
        }
    }
}

fn over_intervals(
    log: &[Admitted],
    tick: Tick,
    law: impl Fn(u64, u64) -> Option<u32>,
) -> Overshoot {
    let instants = joined(log, |admitted| tick.floor(admitted.at), |admitted| admitted.out);
    let mut worst = Overshoot::default();
    for (i, (from, _, out)) in instants.iter().enumerate() {
        let mut sum = 0;
        for (to, hits, _) in &instants[i..] {
            let Some(law) = law(*from, *to) else { break };
            sum += hits;
            worst = worst.max(Overshoot::of(sum, u64::from(law), *out));
        }
    }
    worst
}

fn over_windows(counted: &Counted, log: &[Admitted]) -> Overshoot {
    let window = |admitted: &Admitted| counted.window(admitted.at);
    let windows = joined(log, window, |admitted| admitted.out_at_roll);
    windows.iter().fold(Overshoot::default(), |worst, (_, hits, out)| {
        worst.max(Overshoot::of(*hits, counted.most(), *out))
    })
}

/// (instant, hits, out) of neighbours that share an instant.
fn joined(
    log: &[Admitted],
    instant: impl Fn(&Admitted) -> u64,
    out: impl Fn(&Admitted) -> u64,
) -> Vec<(u64, u64, u64)> {
    let mut instants: Vec<(u64, u64, u64)> = Vec::new();
    for admitted in log {
        let at = instant(admitted);
        match instants.last_mut() {
            Some((last, sum, most)) if *last == at => {
                *sum += admitted.hits;
                *most = out(admitted).max(*most);
            }
            _ => instants.push((at, admitted.hits, out(admitted))),
        }
    }
    instants
}
