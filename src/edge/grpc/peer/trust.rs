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

use super::super::tls::{Files, Tls};
use super::api::Parcel;

/// The prefix of the signed bytes, which separates them from other uses of the secret.
const PURPOSE: &[u8] = b"sluicegate.peer.v1\0";

const SEAL: usize = 32;

/// The secret of the fleet, and the previous secret during a rotation.
pub struct Seal(ArcSwap<Secrets>);

struct Secrets {
    own: hmac::Key,
    before: Option<hmac::Key>,
}

fn key(secret: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())
}

impl Seal {
    /// Creates a signer with `secret`.
    #[must_use]
    pub fn new(secret: &str) -> Self {
        Self(ArcSwap::from_pointee(Secrets { own: key(secret), before: None }))
    }

    /// Starts a rotation to `secret`; the previous secret also
    /// stays valid. Returns `false` if `secret` is already in use.
    pub fn renew(&self, secret: &str) -> bool {
        let (own, before) = (key(secret), self.0.load().own.clone());
        let is_known = hmac::verify(&own, PURPOSE, hmac::sign(&before, PURPOSE).as_ref()).is_ok();
        if !is_known {
            self.0.store(Arc::new(Secrets { own, before: Some(before) }));
        }
        !is_known
    }

    /// Ends the rotation: the previous secret becomes invalid.
    pub fn settle(&self) {
        self.0.store(Arc::new(Secrets { own: self.0.load().own.clone(), before: None }));
    }

    /// Signs `parcel`. During a rotation it appends one signature per secret.
    pub fn put(&self, parcel: &mut Parcel) {
        let (secrets, of) = (self.0.load(), sealed(parcel));
        let seals = secrets.all().map(|key| hmac::sign(key, &of));
        parcel.seal = seals.flat_map(|seal| seal.as_ref().to_vec()).collect();
    }

    /// Returns true if `parcel` has a valid signature of one of the secrets.
    #[must_use]
    pub fn is_on(&self, parcel: &Parcel) -> bool {
        let (secrets, of) = (self.0.load(), sealed(parcel));
        let seals = parcel.seal.chunks_exact(SEAL);
        if parcel.seal.len() > 2 * SEAL || !seals.remainder().is_empty() {
            return false;
        }
        let fits = |seal: &[u8]| secrets.all().any(|key| hmac::verify(key, &of, seal).is_ok());
        seals.into_iter().any(fits)
    }
}

impl Secrets {
    fn all(&self) -> impl Iterator<Item = &hmac::Key> {
        [Some(&self.own), self.before.as_ref()].into_iter().flatten()
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal(…)")
    }
}

/// Returns the signed bytes. All names have the same length, so their boundaries are unambiguous.
fn sealed(parcel: &Parcel) -> Vec<u8> {
    let sequence = parcel.sequence.to_be_bytes();
    [PURPOSE, parcel.from.as_bytes(), parcel.to.as_bytes(), &sequence, &parcel.letters].concat()
}

/// The authentication between replicas.
#[derive(Debug, Default)]
pub struct Trust {
    /// A shared secret that signs batches.
    pub seal: Option<Seal>,
    /// Certificates with the fleet's name, signed by the fleet's CA.
    pub certificates: Option<Certificates>,
}

/// The certificates of the fleet.
#[derive(Debug)]
pub struct Certificates {
    tls: Arc<Tls>,
    /// The files for outgoing connections.
    pub(super) files: Files,
    pub(super) name: String,
}

impl Trust {
    /// Adds certificates. `files` must contain the CA and the name in the certificates.
    ///
    /// # Errors
    /// The files cannot be read or do not match.
    pub fn with_certificates(self, files: Files) -> Result<Self, super::super::tls::Error> {
        let tls = Arc::new(Tls::of_peers(files.clone())?);
        files.calling()?;
        let name = files.client_name.clone().unwrap_or_default();
        Ok(Self { certificates: Some(Certificates { tls, files, name }), ..self })
    }

    pub(super) fn tls(&self) -> Option<Arc<Tls>> {
        self.certificates.as_ref().map(|certificates| Arc::clone(&certificates.tls))
    }

    /// Returns true if a replica at `address` can be authenticated, or is on this machine.
    pub(super) fn reaches(&self, address: IpAddr) -> bool {
        self.seal.is_some() || self.certificates.is_some() || address.is_loopback()
    }

    /// Returns true if `parcel` has a valid signature, or no secret is configured.
    pub(super) fn believes(&self, parcel: &Parcel) -> bool {
        self.seal.as_ref().is_none_or(|seal| seal.is_on(parcel))
    }
}

/// The received sequence numbers of each sending incarnation.
#[derive(Debug, Default)]
pub(super) struct Windows(HashMap<Box<str>, Window>);

/// The largest number of remembered senders. At the
/// maximum, senders that are no longer live are forgotten.
const MOST_LIVES: usize = 1_024;

impl Windows {
    pub(super) fn is_first(
        &mut self,
        life: &str,
        sequence: u64,
        lives: impl Fn(&str) -> bool,
    ) -> bool {
        if MOST_LIVES <= self.0.len() && !self.0.contains_key(life) {
            self.0.retain(|other, _| lives(other));
            if MOST_LIVES <= self.0.len() {
                return false;
            }
        }
        self.0.entry(life.into()).or_default().is_first(sequence)
    }
}

/// The last 64 sequence numbers: bit `n` stands for `highest - n` (RFC 4303, section 3.4.3).
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    highest: u64,
    came: u64,
}

impl Window {
    fn is_first(&mut self, sequence: u64) -> bool {
        if let Some(later @ 1..) = sequence.checked_sub(self.highest) {
            let shifted = u32::try_from(later).ok().and_then(|later| self.came.checked_shl(later));
            (self.highest, self.came) = (sequence, shifted.unwrap_or(0) | 1);
            return true;
        }
        let before = u32::try_from(self.highest.saturating_sub(sequence)).ok();
        // Sequence numbers start at 1.
        let Some(bit) = before.and_then(|n| 1_u64.checked_shl(n)).filter(|_| sequence != 0) else {
            return false;
        };
        let is_first = self.came & bit == 0;
        self.came |= bit;
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
        let seal = Seal::new("a secret of the fleet");
        let mut good = parcel();
        seal.put(&mut good);
        assert!(seal.is_on(&good));
        assert!(!Seal::new("another secret").is_on(&good));
        assert!(!seal.is_on(&parcel()), "none at all");
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
            assert!(!seal.is_on(&other), "{other:?}");
        }
        assert_eq!(format!("{seal:?}"), "Seal(…)");
    }

    #[test]
    fn secret_rotation_accepts_seals_of_both_secrets_until_it_settles() {
        let [old, new, both] =
            ["the secret before", "the secret after", "the secret before"].map(Seal::new);
        assert!(both.renew("the secret after") && !both.renew("the secret after"));
        let from = |seal: &Seal| {
            let mut parcel = parcel();
            seal.put(&mut parcel);
            parcel
        };
        for one in [&old, &new] {
            assert!(one.is_on(&from(&both)) && both.is_on(&from(one)));
        }
        assert!(!old.is_on(&from(&new)) && !new.is_on(&from(&old)));
        let mut spoilt = from(&both);
        spoilt.sequence += 1;
        assert!(!both.is_on(&spoilt));
        let mut third = from(&both);
        third.seal.extend([0; SEAL]);
        assert!(!both.is_on(&third), "no seal is so long");
        both.settle();
        assert!(!both.is_on(&from(&old)) && both.is_on(&from(&new)) && !old.is_on(&from(&both)));
    }

    /// Source: RFC 4231, test case 2.
    #[test]
    fn a_seal_is_hmac_sha256() {
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
        let (open, sealed) = (Trust::default(), Seal::new("0123456789abcdef"));
        let sealed = Trust { seal: Some(sealed), ..Trust::default() };
        assert!(own.iter().all(|address| open.reaches(*address) && sealed.reaches(*address)));
        assert!(strangers.iter().all(|address| !open.reaches(*address)));
        assert!(strangers.iter().all(|address| sealed.reaches(*address)));
    }

    #[test]
    fn sequence_numbers_are_accepted_once_within_a_window_of_64() {
        let mut windows = Windows::default();
        let mut first = |life: &str, sequence| windows.is_first(life, sequence, |_| true);
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
        let mut windows = Windows::default();
        for life in 0..MOST_LIVES {
            assert!(windows.is_first(&life.to_string(), 1, |_| true));
        }
        assert!(!windows.is_first("new", 1, |_| true));
        assert!(windows.is_first("new", 1, |life| life == "5"));
        assert!(!windows.is_first("5", 1, |_| true), "it is remembered");
    }
}
