//! Iterates over the fields of an encoded protobuf message without decoding it.
//!
//! Guarantees:
//! - It does not allocate.
//! - It ends for any input.
//!
//! Not covered:
//! - The meaning of the fields.

/// The length-delimited fields of a message, each with its field number.
///
/// It ends at the first invalid byte, where decoding fails as
/// well. Fields that no decoder would accept are also counted.
#[derive(Debug)]
pub(super) struct Fields<'m> {
    rest: &'m [u8],
    /// Open groups. Envoy's schemas have no groups, so their content is skipped.
    groups: usize,
}

impl<'m> Fields<'m> {
    pub(super) const fn of(message: &'m [u8]) -> Self {
        Self { rest: message, groups: 0 }
    }

    /// Reads a varint: seven bits per byte, the lowest first, at most ten bytes.
    fn varint(&mut self) -> Option<u64> {
        let length = 1 + self.rest.iter().take(10).position(|byte| byte & 0x80 == 0)?;
        let bytes = self.skip(length)?.iter().rev();
        Some(bytes.fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f)))
    }

    fn skip(&mut self, length: usize) -> Option<&'m [u8]> {
        let (skipped, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(skipped)
    }
}

impl<'m> Iterator for Fields<'m> {
    type Item = (u64, &'m [u8]);

    fn next(&mut self) -> Option<(u64, &'m [u8])> {
        loop {
            let key = self.varint()?;
            match key & 7 {
                0 => drop(self.varint()?),
                1 => drop(self.skip(8)?),
                2 => {
                    let length = usize::try_from(self.varint()?).ok()?;
                    let field = self.skip(length)?;
                    if self.groups == 0 {
                        return Some((key >> 3, field));
                    }
                }
                3 => self.groups += 1,
                4 => self.groups = self.groups.checked_sub(1)?,
                5 => drop(self.skip(4)?),
                _ => return None,
            }
        }
    }
}
