//! The proxies on the service's page `/fleet`.
//!
//! Guarantees:
//! - A proxy is identified by its name, or else by the address of its connection.
//!
//! Not covered:
//! - Proxies that are connected to another replica.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

/// The proxies that are connected to one replica.
#[derive(Clone, Debug, Default)]
pub(super) struct FleetProxies {
    /// The URL of the replica's admin port.
    pub(super) server: String,
    /// The number of replicas that share a store, at least 1.
    pub(super) replicas: u64,
    proxies: Vec<ListedProxy>,
}

#[derive(Clone, Debug)]
struct ListedProxy {
    name: String,
    address: Option<IpAddr>,
}

/// Whether the replica lists a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyListing {
    Listed,
    Missing,
    /// Neither a name nor an address identifies the proxy.
    Unidentified,
}

impl FleetProxies {
    pub(super) fn read(server: &str, page: &Value) -> Self {
        let proxies = page.get("proxies").and_then(Value::as_array);
        let replicas = page.get("replicas").and_then(Value::as_u64).unwrap_or_default().max(1);
        let proxies = proxies.into_iter().flatten().filter_map(ListedProxy::read).collect();
        Self { server: server.to_owned(), replicas, proxies }
    }

    /// Returns the number of proxies.
    pub(super) fn count(&self) -> usize {
        self.proxies.len()
    }

    /// Searches a proxy by its possible names, or else by the IP address in the URL of its admin port.
    pub(super) fn search(&self, names: &BTreeSet<String>, admin: &str) -> ProxyListing {
        let address = ip_address(admin);
        let is_listed = |proxy: &ListedProxy| {
            let has_address = address.is_some() && proxy.address == address;
            names.contains(&proxy.name) || (names.is_empty() && has_address)
        };
        if self.proxies.iter().any(is_listed) {
            ProxyListing::Listed
        } else if names.is_empty() && !self.proxies.is_empty() {
            ProxyListing::Unidentified
        } else {
            ProxyListing::Missing
        }
    }
}

impl ListedProxy {
    fn read(proxy: &Value) -> Option<Self> {
        let address = proxy.get("peer").and_then(Value::as_str);
        let address = address.and_then(|text| text.parse::<SocketAddr>().ok());
        let name = proxy.get("name")?.as_str()?.to_owned();
        Some(Self { name, address: address.map(|address| address.ip().to_canonical()) })
    }
}

/// Returns the IP address in a URL such as `http://127.0.0.1:9901`.
fn ip_address(url: &str) -> Option<IpAddr> {
    let authority = url.split_once("://")?.1.split('/').next()?;
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    host.trim_matches(['[', ']']).parse().ok().map(|ip: IpAddr| ip.to_canonical())
}
