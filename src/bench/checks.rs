//! Builds the checks of a bench.
//!
//! Guarantees:
//! - A check depends on its number and the seed only. Two benches with one seed send the same checks.

use super::keys::KeyChooser;

/// The text that is replaced by the number of the key.
pub const KEY_PLACEHOLDER: &str = "{key}";

/// The entries of a descriptor, in order.
pub type Entries = Vec<(String, String)>;

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchCheck {
    /// The domain.
    pub domain: String,
    /// The descriptors.
    pub descriptors: Vec<Entries>,
    /// Hits of each descriptor.
    pub hits: u32,
    /// The key of the first descriptor.
    pub key: u32,
}

/// The checks of a bench.
#[derive(Clone, Debug)]
pub struct CheckSeries {
    /// The domain of every check.
    pub domain: String,
    /// Descriptors with [`KEY_PLACEHOLDER`] in values.
    pub descriptors: Vec<Entries>,
    /// The number of copies of the descriptors in each check. Each copy has its own key.
    pub copies: u32,
    /// Hits of each descriptor.
    pub hits: u32,
    /// The keys.
    pub keys: KeyChooser,
    /// The seed of the choice of keys.
    pub seed: u64,
}

impl CheckSeries {
    /// Returns check `index`, from 0.
    #[must_use]
    pub fn check(&self, index: u64) -> BenchCheck {
        let mut random =
            fastrand::Rng::with_seed(self.seed ^ fastrand::Rng::with_seed(index).u64(..));
        let keys: Vec<_> =
            (0..self.copies.max(1)).map(|_| self.keys.choose(random.f64())).collect();
        let of_key = |key: &u32| {
            let number = key.to_string();
            self.descriptors.iter().map(move |entries| with_key(entries, &number))
        };
        BenchCheck {
            domain: self.domain.clone(),
            descriptors: keys.iter().flat_map(of_key).collect(),
            hits: self.hits,
            key: keys.first().copied().unwrap_or(0),
        }
    }
}

fn with_key(entries: &Entries, number: &str) -> Entries {
    let replace = |text: &String| text.replace(KEY_PLACEHOLDER, number);
    entries.iter().map(|(key, value)| (key.clone(), replace(value))).collect()
}
