//! Finds conflicts between the settings of connections between replicas.
//!
//! Guarantees:
//! - A replica that listens on more than loopback needs a secret or certificates for other
//!   replicas.
//! - The address that other replicas use for this replica is specific and inside
//!   `fleet.peers.networks`.

use super::conflicts::{SettingConflict, conflict, has_peers};
use super::{SecretText, Settings};

pub(super) fn find_peer_conflicts(settings: &Settings) -> Vec<SettingConflict> {
    if !has_peers(settings) {
        return Vec::new();
    }
    let checks = [check_peer_trust, check_peer_secret, check_peer_certificates, check_peer_address];
    checks.into_iter().filter_map(|check| check(settings)).collect()
}

fn check_peer_trust(settings: &Settings) -> Option<SettingConflict> {
    let peers = &settings.fleet.peers;
    let has_secret = peers.secret.is_some() || peers.secret_file.is_some();
    let is_protected = has_secret || peers.tls.cert_file.is_some();
    let host = settings.listen.peer_host;
    (!is_protected && !host.is_loopback()).then(|| {
        let message = format!(
            "`listen.peer_host` {host} lets other machines release permits, because replicas do \
             not authenticate each other"
        );
        let help = "set fleet.peers.secret_file (the same secret at all replicas) or \
                    fleet.peers.tls, or listen on 127.0.0.1";
        conflict("listen.peer_host", message, help)
    })
}

fn check_peer_secret(settings: &Settings) -> Option<SettingConflict> {
    let peers = &settings.fleet.peers;
    let plain = peers.secret.as_ref()?;
    if peers.secret_file.is_some() {
        let message = "`fleet.peers.secret` and `fleet.peers.secret_file` are both set";
        return Some(conflict("fleet.peers.secret_file", message, "keep one of them"));
    }
    plain.is_short().then(|| {
        let shortest = SecretText::SHORTEST;
        let message = format!("`fleet.peers.secret` is shorter than {shortest} characters");
        let help = "create a secret of 32 characters: `openssl rand -hex 16`";
        conflict("fleet.peers.secret", message, help)
    })
}

/// Verifies that the four settings `fleet.peers.tls.…` are all set or all absent.
fn check_peer_certificates(settings: &Settings) -> Option<SettingConflict> {
    let tls = &settings.fleet.peers.tls;
    let all = [
        ("fleet.peers.tls.cert_file", tls.cert_file.is_some()),
        ("fleet.peers.tls.key_file", tls.key_file.is_some()),
        ("fleet.peers.tls.ca_file", tls.ca_file.is_some()),
        ("fleet.peers.tls.server_name", tls.server_name.is_some()),
    ];
    let present = all.iter().find(|(_, is_set)| *is_set)?.0;
    let absent = all.iter().find(|(_, is_set)| !*is_set)?.0;
    let message = format!("`{present}` is set and `{absent}` is not");
    Some(conflict(present, message, "set all four settings of fleet.peers.tls, or none"))
}

/// Verifies that the address that other replicas use for this replica is not `0.0.0.0` or `::`, and
/// is inside `fleet.peers.networks`.
fn check_peer_address(settings: &Settings) -> Option<SettingConflict> {
    let peers = &settings.fleet.peers;
    let address = peers.address.unwrap_or(settings.listen.peer_host);
    if address.is_unspecified() {
        let message = format!("other replicas cannot connect to `listen.peer_host` {address}");
        let help = "set fleet.peers.address to the address of this replica; in Kubernetes, \
                    status.podIP";
        return Some(conflict("listen.peer_host", message, help));
    }
    (!peers.networks.contains(address)).then(|| {
        let message = format!(
            "the address of this replica, {address}, is outside of `fleet.peers.networks`, so no \
             replica connects to it"
        );
        conflict("fleet.peers.networks", message, "add its network at all replicas")
    })
}
