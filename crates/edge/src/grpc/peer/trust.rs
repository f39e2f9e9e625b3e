//! Authenticates the batches of releases and renewals that replicas send to each other.
//!
//! Guarantees:
//! - Signatures are compared in constant time.
//! - A signature is valid for one batch, from one incarnation to one incarnation.
//! - During a rotation, replicas accept signatures with the old and with the new secret.
//! - Each sequence number of a sender is accepted once, and never after 64 higher numbers.
//! - The secret is never printed.
//!
//! Not covered:
//! - Confidentiality: with a secret but without certificates, request ids are readable on
//!   the network.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use ring::hmac;

use super::super::tls::{ServerTls, TlsFiles};
use super::api::Batch;

/// The prefix of the signed bytes. With it, a signature for another use of the
/// secret is not valid here.
const SIGNATURE_CONTEXT: &[u8] = b"sluicegate.peer.v1\0";

const SIGNATURE_BYTES: usize = 32;

/// Signs batches with the fleet's secret, and verifies their signatures.
///
/// During a rotation it uses the previous secret too.
pub struct BatchSigner(ArcSwap<SigningKeys>);

struct SigningKeys {
    current: hmac::Key,
    previous: Option<hmac::Key>,
}

fn signing_key(secret: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())
}

impl BatchSigner {
    /// Creates a signer with the setting `fleet.peers.secret`.
    #[must_use]
    pub fn new(secret: &str) -> Self {
        Self(ArcSwap::from_pointee(SigningKeys { current: signing_key(secret), previous: None }))
    }

    /// Starts a rotation to `secret`. The previous secret stays valid until
    /// [`Self::drop_previous`]. Returns `false` if `secret` is already in use.
    pub fn rotate(&self, secret: &str) -> bool {
        let (new_key, current_key) = (signing_key(secret), self.0.load().current.clone());
        let is_known = hmac::verify(
            &new_key,
            SIGNATURE_CONTEXT,
            hmac::sign(&current_key, SIGNATURE_CONTEXT).as_ref(),
        )
        .is_ok();
        if !is_known {
            self.0.store(Arc::new(SigningKeys { current: new_key, previous: Some(current_key) }));
        }
        !is_known
    }

    /// Ends a rotation: signatures with the previous secret become invalid.
    pub fn drop_previous(&self) {
        self.0.store(Arc::new(SigningKeys {
            current: self.0.load().current.clone(),
            previous: None,
        }));
    }

    /// Returns the signature of a batch. During a rotation it is two, one with each secret.
    #[must_use]
    pub fn sign(&self, batch: &Batch) -> Vec<u8> {
        let (secrets, of) = (self.0.load(), signed_bytes(batch));
        let signatures = secrets.all().map(|key| hmac::sign(key, &of));
        signatures.flat_map(|signature| signature.as_ref().to_vec()).collect()
    }

    /// Returns true if the batch has a valid signature with one of the secrets.
    #[must_use]
    pub fn has_signed(&self, batch: &Batch) -> bool {
        let (secrets, of) = (self.0.load(), signed_bytes(batch));
        let signatures = batch.signature.chunks_exact(SIGNATURE_BYTES);
        if batch.signature.len() > 2 * SIGNATURE_BYTES || !signatures.remainder().is_empty() {
            return false;
        }
        let fits =
            |signature: &[u8]| secrets.all().any(|key| hmac::verify(key, &of, signature).is_ok());
        signatures.into_iter().any(fits)
    }
}

impl SigningKeys {
    fn all(&self) -> impl Iterator<Item = &hmac::Key> {
        [Some(&self.current), self.previous.as_ref()].into_iter().flatten()
    }
}

impl fmt::Debug for BatchSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BatchSigner(…)")
    }
}

/// Returns the bytes of a batch that are signed. All incarnation names have the
/// same length, so two batches with different fields never have the same bytes.
fn signed_bytes(batch: &Batch) -> Vec<u8> {
    let sequence = batch.sequence.to_be_bytes();
    [SIGNATURE_CONTEXT, batch.from.as_bytes(), batch.to.as_bytes(), &sequence, &batch.updates]
        .concat()
}

/// The secret and the certificates with which replicas authenticate each other.
#[derive(Debug, Default)]
pub struct PeerTrust {
    /// The signer with the secret that all replicas share, if one is configured.
    pub signer: Option<BatchSigner>,
    /// The certificates of this replica, if configured. Each contains the fleet's name and is
    /// issued by the fleet's CA.
    pub certificates: Option<PeerCertificates>,
}

/// The TLS certificate of this replica and the CA of the fleet, for both directions.
#[derive(Debug)]
pub struct PeerCertificates {
    tls: Arc<ServerTls>,
    /// The TLS files, read again for each outgoing connection.
    pub(super) files: TlsFiles,
    pub(super) name: String,
}

impl PeerTrust {
    /// Adds certificates. `files` must have a CA (`client_ca`) and the name that
    /// all replicas' certificates contain (`client_name`).
    ///
    /// # Errors
    /// A file cannot be read, or the key or CA does not match the certificate.
    pub fn with_certificates(self, files: TlsFiles) -> Result<Self, super::super::tls::PemError> {
        let tls = Arc::new(ServerTls::for_peers(files.clone())?);
        files.client_config()?;
        let name = files.client_name.clone().unwrap_or_default();
        Ok(Self { certificates: Some(PeerCertificates { tls, files, name }), ..self })
    }

    pub(super) fn tls(&self) -> Option<Arc<ServerTls>> {
        self.certificates.as_ref().map(|certificates| Arc::clone(&certificates.tls))
    }

    /// Returns true if a secret or certificates are configured, or if `address` is loopback.
    pub(super) fn can_authenticate(&self, address: IpAddr) -> bool {
        self.signer.is_some() || self.certificates.is_some() || address.is_loopback()
    }

    /// Returns true if the batch has a valid signature, or if no secret is configured.
    pub(super) fn is_authentic(&self, batch: &Batch) -> bool {
        self.signer.as_ref().is_none_or(|signer| signer.has_signed(batch))
    }
}

/// The sequence numbers received from each sending incarnation, to reject a replayed batch.
#[derive(Debug, Default)]
pub(super) struct ReplayWindows(HashMap<Box<str>, ReplayWindow>);

/// The largest number of senders in [`ReplayWindows`]. At this number, the
/// senders that are no longer live replicas are removed.
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

/// A record of the last 64 sequence numbers of one sender: bit `n` of `received` is set
/// if the number `highest - n` was received (RFC 4303, section 3.4.3).
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
        // Senders count from 1, so 0 is invalid.
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

    fn batch() -> Batch {
        let name = |digit: &str| digit.repeat(16);
        let updates = b"updates".to_vec();
        Batch { from: name("a"), to: name("b"), sequence: 7, updates, signature: Vec::new() }
    }

    #[test]
    fn a_signature_is_invalid_for_another_secret_or_changed_batch() {
        let signer = BatchSigner::new("a secret of the fleet");
        let mut good = batch();
        good.signature = signer.sign(&good);
        assert!(signer.has_signed(&good));
        assert!(!BatchSigner::new("another secret").has_signed(&good));
        assert!(!signer.has_signed(&batch()), "none at all");
        let spoilt: [fn(&mut Batch); 6] = [
            |p| p.from = "c".repeat(16),
            |p| p.to = "c".repeat(16),
            |p| p.sequence = 8,
            |p| p.updates.push(0),
            |p| p.signature.truncate(31),
            |p| p.signature[0] ^= 1,
        ];
        for spoil in spoilt {
            let mut other = good.clone();
            spoil(&mut other);
            assert!(!signer.has_signed(&other), "{other:?}");
        }
        assert_eq!(format!("{signer:?}"), "BatchSigner(…)");
    }

    #[test]
    fn secret_rotation_accepts_both_secrets_until_the_previous_is_dropped() {
        let [old, new, both] =
            ["the secret before", "the secret after", "the secret before"].map(BatchSigner::new);
        assert!(both.rotate("the secret after") && !both.rotate("the secret after"));
        let from = |signer: &BatchSigner| {
            let mut batch = batch();
            batch.signature = signer.sign(&batch);
            batch
        };
        for one in [&old, &new] {
            assert!(one.has_signed(&from(&both)) && both.has_signed(&from(one)));
        }
        assert!(!old.has_signed(&from(&new)) && !new.has_signed(&from(&old)));
        let mut spoilt = from(&both);
        spoilt.sequence += 1;
        assert!(!both.has_signed(&spoilt));
        let mut third = from(&both);
        third.signature.extend([0; SIGNATURE_BYTES]);
        assert!(!both.has_signed(&third), "too long");
        both.drop_previous();
        assert!(
            !both.has_signed(&from(&old))
                && both.has_signed(&from(&new))
                && !old.has_signed(&from(&both))
        );
    }

    /// Source: RFC 4231, test case 2.
    #[test]
    fn the_batch_signature_is_hmac_sha256() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"Jefe");
        let tag = hmac::sign(&key, b"what do ya want for nothing?");
        let hex = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>();
        assert_eq!(
            hex.concat(),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }

    #[test]
    fn only_loopback_replicas_are_allowed_without_a_secret() {
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
    fn a_batch_sequence_number_among_the_last_64_is_accepted_once() {
        let mut windows = ReplayWindows::default();
        let mut first = |sender: &str, sequence| windows.is_new(sender, sequence, |_| true);
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
        assert!(first("b", 1), "each incarnation has its own window");
    }

    #[test]
    fn a_full_replay_table_evicts_only_ended_incarnations() {
        let mut windows = ReplayWindows::default();
        for sender in 0..MAX_SENDERS {
            assert!(windows.is_new(&sender.to_string(), 1, |_| true));
        }
        assert!(!windows.is_new("new", 1, |_| true));
        assert!(windows.is_new("new", 1, |sender| sender == "5"));
        assert!(!windows.is_new("5", 1, |_| true), "it is remembered");
    }
}
