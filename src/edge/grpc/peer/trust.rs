//! Authenticates batches between replicas.
//!
//! Guarantees:
//! - Signatures are compared in constant time.
//! - A signature covers one batch, from one incarnation to one incarnation.
//! - During a rotation, replicas accept the old and the new secret.
//! - A sequence number is accepted once, and never after 64 later ones.
//! - The secret is never printed.
//!
//! Not covered:
//! - Confidentiality: with a secret but no certificates, ids are readable on the wire.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use ring::hmac;

use super::super::tls::{ServerTls, TlsFiles};
use super::api::Parcel;

/// The prefix of the signed bytes, which separates them from other uses of the secret.
const SIGNATURE_CONTEXT: &[u8] = b"sluicegate.peer.v1\0";

const SIGNATURE_BYTES: usize = 32;

/// The secret of the fleet, and the previous secret during a rotation.
pub struct BatchSigner(ArcSwap<SigningKeys>);

struct SigningKeys {
    current: hmac::Key,
    previous: Option<hmac::Key>,
}

fn signing_key(secret: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())
}

impl BatchSigner {
    /// Creates a signer with `secret`.
    #[must_use]
    pub fn new(secret: &str) -> Self {
        Self(ArcSwap::from_pointee(SigningKeys { current: signing_key(secret), previous: None }))
    }

    /// Starts a rotation to `secret`; the previous secret also
    /// stays valid. Returns `false` if `secret` is already in use.
    pub fn rotate(&self, secret: &str) -> bool {
        let (own, before) = (signing_key(secret), self.0.load().current.clone());
        let is_known =
            hmac::verify(&own, SIGNATURE_CONTEXT, hmac::sign(&before, SIGNATURE_CONTEXT).as_ref())
                .is_ok();
        if !is_known {
            self.0.store(Arc::new(SigningKeys { current: own, previous: Some(before) }));
        }
        !is_known
    }

    /// Ends the rotation: the previous secret becomes invalid.
    pub fn drop_previous(&self) {
        self.0.store(Arc::new(SigningKeys {
            current: self.0.load().current.clone(),
            previous: None,
        }));
    }

    /// Signs `parcel`. During a rotation it appends one signature per secret.
    pub fn sign(&self, parcel: &mut Parcel) {
        let (secrets, of) = (self.0.load(), signed_bytes(parcel));
        let seals = secrets.all().map(|key| hmac::sign(key, &of));
        parcel.seal = seals.flat_map(|seal| seal.as_ref().to_vec()).collect();
    }

    /// Returns true if `parcel` has a valid signature of one of the secrets.
    #[must_use]
    pub fn has_signed(&self, parcel: &Parcel) -> bool {
        let (secrets, of) = (self.0.load(), signed_bytes(parcel));
        let seals = parcel.seal.chunks_exact(SIGNATURE_BYTES);
        if parcel.seal.len() > 2 * SIGNATURE_BYTES || !seals.remainder().is_empty() {
            return false;
        }
        let fits = |seal: &[u8]| secrets.all().any(|key| hmac::verify(key, &of, seal).is_ok());
        seals.into_iter().any(fits)
    }
}

impl SigningKeys {
    fn all(&self) -> impl Iterator<Item = &hmac::Key> {
        [Some(&self.current), self.previous.as_ref()].into_iter().flatten()
    }
}

impl fmt::Debug for BatchSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal(…)")
    }
}

/// Returns the signed bytes. All names have the same length, so their boundaries are unambiguous.
fn signed_bytes(parcel: &Parcel) -> Vec<u8> {
    let sequence = parcel.sequence.to_be_bytes();
    [SIGNATURE_CONTEXT, parcel.from.as_bytes(), parcel.to.as_bytes(), &sequence, &parcel.letters]
        .concat()
}

/// The authentication between replicas.
#[derive(Debug, Default)]
pub struct PeerTrust {
    /// A shared secret that signs batches.
    pub signer: Option<BatchSigner>,
    /// Certificates with the fleet's name, signed by the fleet's CA.
    pub certificates: Option<PeerCertificates>,
}

/// The certificates of the fleet.
#[derive(Debug)]
pub struct PeerCertificates {
    tls: Arc<ServerTls>,
    /// The files for outgoing connections.
    pub(super) files: TlsFiles,
    pub(super) name: String,
}

impl PeerTrust {
    /// Adds certificates. `files` must contain the CA and the name in the certificates.
    ///
    /// # Errors
    /// The files cannot be read or do not match.
    pub fn with_certificates(self, files: TlsFiles) -> Result<Self, super::super::tls::PemError> {
        let tls = Arc::new(ServerTls::for_peers(files.clone())?);
        files.client_config()?;
        let name = files.client_name.clone().unwrap_or_default();
        Ok(Self { certificates: Some(PeerCertificates { tls, files, name }), ..self })
    }

    pub(super) fn tls(&self) -> Option<Arc<ServerTls>> {
        self.certificates.as_ref().map(|certificates| Arc::clone(&certificates.tls))
    }

    /// Returns true if a replica at `address` can be authenticated, or is on this machine.
    pub(super) fn can_authenticate(&self, address: IpAddr) -> bool {
        self.signer.is_some() || self.certificates.is_some() || address.is_loopback()
    }

    /// Returns true if `parcel` has a valid signature, or no secret is configured.
    pub(super) fn is_authentic(&self, parcel: &Parcel) -> bool {
        self.signer.as_ref().is_none_or(|seal| seal.has_signed(parcel))
    }
}

/// The received sequence numbers of each sending incarnation.
#[derive(Debug, Default)]
pub(super) struct ReplayWindows(HashMap<Box<str>, ReplayWindow>);

/// The largest number of remembered senders. At the
/// maximum, senders that are no longer live are forgotten.
const MAX_SENDERS: usize = 1_024;

impl ReplayWindows {
    pub(super) fn is_new(
        &mut self,
        sender: &str,
        sequence: u64,
        is_live: impl Fn(&str) -> bool,
    ) -> bool {
        if MAX_SENDERS <= self.0.len() && !self.0.contains_key(sender) {
            self.0.retain(|other, _| is_live(other));
            if MAX_SENDERS <= self.0.len() {
                return false;
            }
        }
        self.0.entry(sender.into()).or_default().is_new(sequence)
    }
}

/// The last 64 sequence numbers: bit `n` stands for `highest - n` (RFC 4303, section 3.4.3).
#[derive(Clone, Copy, Debug, Default)]
struct ReplayWindow {
    highest: u64,
    received: u64,
}

impl ReplayWindow {
    fn is_new(&mut self, sequence: u64) -> bool {
        if let Some(later @ 1..) = sequence.checked_sub(self.highest) {
            let shifted =
                u32::try_from(later).ok().and_then(|later| self.received.checked_shl(later));
            (self.highest, self.received) = (sequence, shifted.unwrap_or(0) | 1);
            return true;
        }
        let before = u32::try_from(self.highest.saturating_sub(sequence)).ok();
        // Sequence numbers start at 1.
        let Some(bit) = before.and_then(|n| 1_u64.checked_shl(n)).filter(|_| sequence != 0) else {
            return false;
        };
        let is_first = self.received & bit == 0;
        self.received |= bit;
        is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel() -> Parcel {
        let name = |digit: &str| digit.repeat(16);
        let letters = b"letters".to_vec();
        Parcel { from: name("a"), to: name("b"), sequence: 7, letters, seal: Vec::new() }
    }

    #[test]
    fn a_seal_covers_every_field_and_the_secret() {
        let seal = BatchSigner::new("a secret of the fleet");
        let mut good = parcel();
        seal.sign(&mut good);
        assert!(seal.has_signed(&good));
        assert!(!BatchSigner::new("another secret").has_signed(&good));
        assert!(!seal.has_signed(&parcel()), "none at all");
        let spoilt: [fn(&mut Parcel); 6] = [
            |p| p.from = "c".repeat(16),
            |p| p.to = "c".repeat(16),
            |p| p.sequence = 8,
            |p| p.letters.push(0),
            |p| p.seal.truncate(31),
            |p| p.seal[0] ^= 1,
        ];
        for spoil in spoilt {
            let mut other = good.clone();
            spoil(&mut other);
            assert!(!seal.has_signed(&other), "{other:?}");
        }
        assert_eq!(format!("{seal:?}"), "Seal(…)");
    }

    #[test]
    fn secret_rotation_accepts_seals_of_both_secrets_until_it_settles() {
        let [old, new, both] =
            ["the secret before", "the secret after", "the secret before"].map(BatchSigner::new);
        assert!(both.rotate("the secret after") && !both.rotate("the secret after"));
        let from = |seal: &BatchSigner| {
            let mut parcel = parcel();
            seal.sign(&mut parcel);
            parcel
        };
        for one in [&old, &new] {
            assert!(one.has_signed(&from(&both)) && both.has_signed(&from(one)));
        }
        assert!(!old.has_signed(&from(&new)) && !new.has_signed(&from(&old)));
        let mut spoilt = from(&both);
        spoilt.sequence += 1;
        assert!(!both.has_signed(&spoilt));
        let mut third = from(&both);
        third.seal.extend([0; SIGNATURE_BYTES]);
        assert!(!both.has_signed(&third), "no seal is so long");
        both.drop_previous();
        assert!(
            !both.has_signed(&from(&old))
                && both.has_signed(&from(&new))
                && !old.has_signed(&from(&both))
        );
    }

    /// Source: RFC 4231, test case 2.
    #[test]
    fn signature_is_hmac_sha256() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"Jefe");
        let tag = hmac::sign(&key, b"what do ya want for nothing?");
        let hex = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>();
        assert_eq!(
            hex.concat(),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }

    #[test]
    fn only_loopback_peers_are_reachable_without_a_secret() {
        let strangers =
            ["10.0.0.1", "192.0.2.1", "::", "fd00::1"].map(|text| text.parse().unwrap());
        let own = ["127.0.0.1", "127.9.9.9", "::1"].map(|text| text.parse().unwrap());
        let (open, sealed) = (PeerTrust::default(), BatchSigner::new("0123456789abcdef"));
        let sealed = PeerTrust { signer: Some(sealed), ..PeerTrust::default() };
        assert!(own.iter().all(|address| open.can_authenticate(*address) && sealed.can_authenticate(*address)));
        assert!(strangers.iter().all(|address| !open.can_authenticate(*address)));
        assert!(strangers.iter().all(|address| sealed.can_authenticate(*address)));
    }

    #[test]
    fn sequence_numbers_are_accepted_once_within_a_window_of_64() {
        let mut windows = ReplayWindows::default();
        let mut first = |life: &str, sequence| windows.is_new(life, sequence, |_| true);
        assert!(!first("a", 0), "zero is never sent");
        for sequence in [1, 3, 2, 66, 4, 65] {
            assert!(first("a", sequence), "{sequence}");
            assert!(!first("a", sequence), "{sequence} again");
        }
        assert!(first("a", 5), "61 before the highest");
        assert!(first("a", 70));
        assert!(!first("a", 6), "64 before the highest is too old, seen or not");
        assert!(first("a", 7), "63 before is not");
        assert!(first("a", u64::MAX));
        assert!(!first("a", 71));
        assert!(first("b", 1), "each life counts for itself");
    }

    #[test]
    fn only_ended_incarnations_are_evicted() {
        let mut windows = ReplayWindows::default();
        for life in 0..MAX_SENDERS {
            assert!(windows.is_new(&life.to_string(), 1, |_| true));
        }
        assert!(!windows.is_new("new", 1, |_| true));
        assert!(windows.is_new("new", 1, |life| life == "5"));
        assert!(!windows.is_new("5", 1, |_| true), "it is remembered");
    }
}
