//! The laws of growth: figures of several fleets, by the number of replicas.
//!
//! A law is about the ratio of a figure to that of the smallest fleet with at least ten replicas, divided by
//! the ratio of the replicas. In smaller fleets the replicas share too little.

use super::figures::Figures;

/// A figure, and the largest exponent of its growth with the replicas.
pub struct Law {
    pub what: &'static str,
    pub figure: fn(&Figures) -> f64,
    /// The figure grows at most by this power of the replicas.
    pub exponent: f64,
    /// Set for CPU times, which no test judges.
    pub is_cpu: bool,
}

/// The factor that a figure may grow beyond its law: noise, and misses of the CPU's caches.
const TOLERANCE: f64 = 1.5;
const CPU_TOLERANCE: f64 = 4.0;

pub const LAWS: [Law; 8] = [
    Law {
        what: "lease messages/s",
        figure: |figures| figures.messages_per_second(&[0, 1]),
        exponent: 1.0,
        is_cpu: false,
    },
    Law {
        what: "heartbeats of shares/s",
        figure: |figures| figures.messages_per_second(&[2, 3]),
        exponent: 1.0,
        is_cpu: false,
    },
    Law {
        what: "the same, busiest second",
        figure: |figures| figures.busiest.messages as f64,
        exponent: 1.0,
        is_cpu: false,
    },
    Law {
        what: "replicas in membership replies/s",
        figure: Figures::listed_per_second,
        exponent: 2.0,
        is_cpu: false,
    },
    Law {
        what: "CPU of a lease message",
        figure: |figures| figures.cpu_of_message(0),
        exponent: 0.0,
        is_cpu: true,
    },
    Law {
        what: "the same, of a hot key",
        figure: |figures| figures.cpu_of_message(1),
        exponent: 1.0,
        is_cpu: true,
    },
    Law {
        what: "CPU of a heartbeat, ample limit",
        figure: |figures| figures.cpu_of_message(2),
        exponent: 0.0,
        is_cpu: true,
    },
    Law {
        what: "the same, scarce limit",
        figure: |figures| figures.cpu_of_message(3),
        exponent: 1.0,
        is_cpu: true,
    },
];

impl Law {
    /// The most that the law allows at `to`, from the figure at `from`.
    pub fn most(&self, from: &Figures, to: &Figures) -> f64 {
        let tolerance = if self.is_cpu { CPU_TOLERANCE } else { TOLERANCE };
        let growth = (f64::from(to.replicas) / f64::from(from.replicas)).powf(self.exponent);
        (self.figure)(from) * growth * tolerance
    }
}

/// The broken laws of all fleets: those of each run, and those of growth.
pub fn broken_laws(fleets: &[Figures], with_cpu: bool) -> Vec<String> {
    let mut broken = Vec::new();
    for figures in fleets {
        broken.extend(
            figures.broken_law().map(|what| format!("{} replicas: {what}", figures.replicas)),
        );
    }
    let Some(from) = fleets.iter().find(|figures| 10 <= figures.replicas) else { return broken };
    for law in LAWS.iter().filter(|law| with_cpu || !law.is_cpu) {
        for to in fleets.iter().filter(|to| from.replicas < to.replicas) {
            let (got, most) = ((law.figure)(to), law.most(from, to));
            if most < got {
                broken.push(format!(
                    "{} replicas: {} {got:.0}, at most {most:.0}",
                    to.replicas, law.what
                ));
            }
        }
    }
    broken
}
