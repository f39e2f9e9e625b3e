//! Finds conflicts between the settings `peer_…`, for connections between replicas.
//!
//! Guarantees:
//! - A replica that listens on more than loopback needs a secret or certificates for other
//!   replicas.
//! - The address that other replicas use for this replica is specific and inside `peer_networks`.

use super::conflicts::{SettingConflict, conflict, unused_settings};
use super::{Settings, StoreSetting};

/// The length of the shortest `peer_secret`, in characters: 16 random characters are at least 96
/// bits.
const SHORTEST: usize = 16;

pub(super) fn find_peer_conflicts(settings: &Settings) -> Vec<SettingConflict> {
    let defaults = Settings::default();
    if settings.backend == StoreSetting::Memory || settings.peer_port.is_none() {
        let given = [
            ("peer_host", settings.peer_host != defaults.peer_host),
            ("peer_address", settings.peer_address.is_some()),
            ("peer_networks", settings.peer_networks != defaults.peer_networks),
            ("peer_secret", settings.peer_secret.is_some()),
            ("peer_secret_file", settings.peer_secret_file.is_some()),
            ("peer_tls_cert_file", settings.peer_tls_cert_file.is_some()),
            ("peer_tls_key_file", settings.peer_tls_key_file.is_some()),
            ("peer_tls_ca_file", settings.peer_tls_ca_file.is_some()),
            ("peer_tls_name", settings.peer_tls_name.is_some()),
        ];
        let (why, help) =
            ("no other replica is spoken to", "set peer_port and a Redis as `backend`");
        return unused_settings(&given, why, help);
    }
    [
        check_peer_trust(settings),
        check_peer_secret(settings),
        check_peer_certificates(settings),
        check_peer_address(settings),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn has_secret(settings: &Settings) -> bool {
    settings.peer_secret.is_some() || settings.peer_secret_file.is_some()
}

fn check_peer_trust(settings: &Settings) -> Option<SettingConflict> {
    let has_peer_authentication = has_secret(settings) || settings.peer_tls_cert_file.is_some();
    (!has_peer_authentication && !settings.peer_host.is_loopback()).then(|| {
        let host = settings.peer_host;
        let message = format!(
            "`peer_host` {host} lets other machines end requests, and nothing tells replicas from strangers"
        );
        let help = "set peer_secret_file (the same secret at all replicas) or peer_tls_*, or listen on 127.0.0.1";
        conflict("peer_host", message, help)
    })
}

fn check_peer_secret(settings: &Settings) -> Option<SettingConflict> {
    let plain = settings.peer_secret.as_ref()?;
    if settings.peer_secret_file.is_some() {
        let message = "`peer_secret` and `peer_secret_file` are both set";
        return Some(conflict("peer_secret_file", message, "keep one of them"));
    }
    (plain.reveal().len() < SHORTEST).then(|| {
        let message = format!("`peer_secret` is shorter than {SHORTEST} characters");
        conflict("peer_secret", message, "take 32 random ones: `openssl rand -hex 16`")
    })
}

/// Verifies that the four settings `peer_tls_…` are all set or all absent.
fn check_peer_certificates(settings: &Settings) -> Option<SettingConflict> {
    let all = [
        ("peer_tls_cert_file", settings.peer_tls_cert_file.is_some()),
        ("peer_tls_key_file", settings.peer_tls_key_file.is_some()),
        ("peer_tls_ca_file", settings.peer_tls_ca_file.is_some()),
        ("peer_tls_name", settings.peer_tls_name.is_some()),
    ];
    let there = all.iter().find(|(_, is_set)| *is_set)?.0;
    let absent = all.iter().find(|(_, is_set)| !*is_set)?.0;
    let message = format!("`{there}` is set and `{absent}` is not");
    Some(conflict(
        there,
        message,
        "replicas are known by a certificate, its key, its authority and its name: set all four",
    ))
}

/// Verifies that the address that other replicas use for this replica is not `0.0.0.0` or `::`, and
/// is inside `peer_networks`.
fn check_peer_address(settings: &Settings) -> Option<SettingConflict> {
    let address = settings.peer_address.unwrap_or(settings.peer_host);
    if address.is_unspecified() {
        let message = format!("`peer_host` {address} is no address that others could call");
        let help = "set peer_address to the one at which they reach this replica; in Kubernetes, status.podIP";
        return Some(conflict("peer_host", message, help));
    }
    (!settings.peer_networks.contains(address)).then(|| {
        let message =
            format!("{address}, where this replica is called, lies outside `peer_networks`");
        conflict(
            "peer_networks",
            message,
            "add its network at all replicas: no other one would call it",
        )
    })
}
