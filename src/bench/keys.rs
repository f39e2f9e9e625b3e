//! Chooses the keys of checks, uniformly or by a Zipf distribution.
//!
//! Guarantees:
//! - Key `k`, from 0, has a frequency proportional to 1 / (k + 1)^skew.
//! - 8 bytes for each key; none for a uniform choice.

/// Chooses keys.
#[derive(Clone, Debug)]
pub struct KeyChooser {
    keys: u32,
    /// The sum of the weights of each key and all before it. Empty for a uniform choice.
    cumulative: Vec<f64>,
}

impl KeyChooser {
    /// Creates the choice among `keys` keys. A `skew` of 0 chooses uniformly.
    #[must_use]
    pub fn new(keys: u32, skew: f64) -> Self {
        let keys = keys.max(1);
        let mut sum = 0.0;
        let weights = (1..=keys).map(|rank| {
            sum += f64::from(rank).powf(-skew);
            sum
        });
        Self { keys, cumulative: if skew > 0.0 { weights.collect() } else { Vec::new() } }
    }

    /// Returns the key at `point`, a random number from 0 to below 1.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below `keys`")]
    pub fn choose(&self, point: f64) -> u32 {
        let key = match self.cumulative.last() {
            None => (point * f64::from(self.keys)) as u32,
            Some(total) => {
                let target = point * total;
                let before = self.cumulative.partition_point(|sum| *sum <= target);
                u32::try_from(before).unwrap_or(u32::MAX)
            }
        };
        key.min(self.keys - 1)
    }
}
