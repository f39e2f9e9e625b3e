//! A hasher for keys that are hashes already.

use std::hash::Hasher;

/// Hashes an array of bytes or integers that is already a hash, by taking its last 8 bytes.
#[derive(Debug, Default)]
pub struct HalfHasher(u64);

impl Hasher for HalfHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    /// An array of integers is written as its bytes, not by `write_u64`.
    fn write(&mut self, bytes: &[u8]) {
        if let Some(half) = bytes.last_chunk() {
            self.0 = u64::from_ne_bytes(*half);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher as _, BuildHasherDefault};

    use super::HalfHasher;

    #[test]
    fn the_hash_of_a_hash_is_its_second_half() {
        let hasher = BuildHasherDefault::<HalfHasher>::default();
        for half in [0, 1, 1 << 63, u64::MAX] {
            assert_eq!(hasher.hash_one([7_u64, half]), half);
        }
    }
}
