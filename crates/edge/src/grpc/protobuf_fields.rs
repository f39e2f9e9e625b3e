//! Iterates over the fields of an encoded protobuf message without decoding it.

/// An iterator over the length-delimited fields of a message, each with its field number. Does not
/// allocate. Ends at the first byte that is not valid protobuf.
#[derive(Debug)]
pub(super) struct ProtobufFields<'m> {
    rest: &'m [u8],
    /// The nesting depth of protobuf groups, whose fields are skipped: Envoy's messages have none.
    open_groups: usize,
}

impl<'m> ProtobufFields<'m> {
    pub(super) const fn new(message: &'m [u8]) -> Self {
        Self { rest: message, open_groups: 0 }
    }

    /// Reads a varint: seven bits per byte, the lowest first, at most ten bytes.
    fn read_varint(&mut self) -> Option<u64> {
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

impl<'m> Iterator for ProtobufFields<'m> {
    type Item = (u64, &'m [u8]);

    fn next(&mut self) -> Option<(u64, &'m [u8])> {
        loop {
            let key = self.read_varint()?;
            match key & 7 {
                0 => drop(self.read_varint()?),
                1 => drop(self.skip(8)?),
                2 => {
                    let length = usize::try_from(self.read_varint()?).ok()?;
                    let field = self.skip(length)?;
                    if self.open_groups == 0 {
                        return Some((key >> 3, field));
                    }
                }
                3 => self.open_groups += 1,
                4 => self.open_groups = self.open_groups.checked_sub(1)?,
                5 => drop(self.skip(4)?),
                _ => return None,
            }
        }
    }
}
