//! Random numbers that a seed reproduces.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

/// The generator `SplitMix64`. Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
/// Generators".
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random number from 0 to `most`, inclusive.
    pub const fn up_to(&mut self, most: u64) -> u64 {
        match most.checked_add(1) {
            Some(sides) => self.roll() % sides,
            None => self.roll(),
        }
    }

    /// True with probability 1 / `sides`.
    pub const fn once_in(&mut self, sides: u64) -> bool {
        self.up_to(sides - 1) == 0
    }

    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.up_to(all.len() as u64 - 1)).unwrap()]
    }
}

/// Seed of this test run: `SLUICEGATE_SEED`, or a random one.
pub fn seed() -> u64 {
    std::env::var("SLUICEGATE_SEED")
        .map_or_else(|_| RandomState::new().hash_one(0), |seed| seed.parse().unwrap())
}
