//! Recognizes the protocol of a connection by its first bytes.
//!
//! Guarantees:
//! - The result does not depend on the sizes of the reads.
//!
//! Not covered:
//! - Protocols inside TLS, whose bytes are decrypted before.

/// The HTTP/2 client preface (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The starts of the PROXY protocol, versions 1 and 2.
const PROXY_STARTS: [&[u8]; 2] = [b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"];

/// The first byte of a TLS handshake record (RFC 8446, section 5.1).
const TLS_HANDSHAKE: u8 = 22;

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstProtocol {
    Http1,
    Http2,
    Tls,
    Proxy,
    Unknown,
}

/// The first bytes of a connection, until its protocol is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FirstBytes {
    bytes: [u8; HTTP2_PREFACE.len()],
    len: usize,
    is_known: bool,
}

impl FirstBytes {
    /// Adds received bytes. Returns the protocol, once.
    pub(super) fn add(&mut self, received: &[u8]) -> Option<FirstProtocol> {
        if self.is_known {
            return None;
        }
        for byte in received {
            let free = self.bytes.get_mut(self.len)?;
            *free = *byte;
            self.len += 1;
            if let Some(protocol) = self.protocol() {
                self.is_known = true;
                return Some(protocol);
            }
        }
        None
    }

    fn protocol(&self) -> Option<FirstProtocol> {
        let seen = &self.bytes[..self.len];
        let first = *seen.first()?;
        let may_be = |start: &[u8]| start.starts_with(seen);
        match () {
            () if seen == HTTP2_PREFACE => Some(FirstProtocol::Http2),
            () if PROXY_STARTS.contains(&seen) => Some(FirstProtocol::Proxy),
            () if may_be(HTTP2_PREFACE) || PROXY_STARTS.into_iter().any(may_be) => None,
            () if first == TLS_HANDSHAKE => Some(FirstProtocol::Tls),
            // An empty line before a request is ignored (RFC 9112, section 2.2).
            () if first.is_ascii_alphabetic() || b"\r\n".contains(&first) => {
                Some(FirstProtocol::Http1)
            }
            () => Some(FirstProtocol::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recognize(bytes: &[u8], read: usize) -> Option<FirstProtocol> {
        let mut first = FirstBytes::default();
        let found: Vec<_> = bytes.chunks(read).filter_map(|part| first.add(part)).collect();
        assert!(found.len() <= 1, "{found:?}");
        found.first().copied()
    }

    #[test]
    fn protocols_are_recognized_with_reads_of_any_size() {
        for (bytes, expected) in [
            (&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04"[..], Some(FirstProtocol::Http2)),
            (b"PRI * HTTP/2.0\r\n", None),
            (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", Some(FirstProtocol::Http1)),
            (b"PROPFIND / HTTP/1.1\r\n", Some(FirstProtocol::Http1)),
            (b"POST / HTTP/1.1\r\n", Some(FirstProtocol::Http1)),
            (b"\r\nGET / HTTP/1.1\r\n", Some(FirstProtocol::Http1)),
            (b"PROXY TCP4 192.0.2.7 192.0.2.1 1 2\r\n", Some(FirstProtocol::Proxy)),
            (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", Some(FirstProtocol::Proxy)),
            (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", Some(FirstProtocol::Tls)),
            (b"\0\0\0\x04\0\0\0\0\0", Some(FirstProtocol::Unknown)),
            (b"\x80\x80", Some(FirstProtocol::Unknown)),
            (b"", None),
        ] {
            for read in 1..40 {
                assert_eq!(recognize(bytes, read), expected, "{bytes:?} by {read}");
            }
        }
    }
}
