//! A case from the field: NGINX on `[::]:80` sends IPv4-mapped addresses, and clients choose the
//! spelling of none.

use axum::Router;
use sluicegate::config::hooks::Hooks;
use sluicegate::config::load;
use sluicegate::config::settings::{SettingsInput, read};
use sluicegate::kernel::units::Revision;

use super::{check, engine, port};

fn hooks() -> Hooks {
    let server = include_str!("../../../field/nginx-ipv4-mapped-evades/server.yaml");
    let file = Some(("server.yaml".to_owned(), server.to_owned()));
    read(&SettingsInput { file, ..SettingsInput::default() }).unwrap().settings.hooks
}

fn router(limits: &str) -> Router {
    let (config, _) = load([("limits.yaml", limits.as_bytes())], Revision(1), false).unwrap();
    port(engine(config), hooks())
}

async fn status(router: &Router, address: &str) -> u16 {
    let headers = [("x-original-uri", "/"), ("x-original-method", "GET"), ("x-real-ip", address)];
    check(router, &headers.map(|(name, value)| (name, value.as_bytes()))).await.0
}

#[tokio::test]
async fn no_spelling_evades_a_block_or_gets_its_own_counter() {
    let router = router(include_str!("../../../field/nginx-ipv4-mapped-evades/limits.yaml"));
    for address in ["192.0.2.7", "::ffff:192.0.2.7", "::ffff:c000:207", "0:0:0:0:0:ffff:C000:0207"]
    {
        assert_eq!(status(&router, address).await, 403, "{address}");
    }
    // The limit is 3 for each address.
    let spellings = ["2001:db8::1", "2001:DB8::1", "2001:0db8::1", "2001:db8:0:0:0:0:0:1"];
    for (address, expected) in spellings.into_iter().zip([200, 200, 200, 403]) {
        assert_eq!(status(&router, address).await, expected, "{address}");
    }
}

#[tokio::test]
async fn clients_of_one_network_share_its_counter() {
    let router = router(
        "domain: edge\ndescriptors:\n- key: remote_address\n  network: 2001:db8::/32\n  \
         counter_per: /64\n  rate_limit: {unit: minute, requests_per_unit: 2}\n",
    );
    for (address, expected) in [
        ("2001:db8:1:2::1", 200),
        ("2001:db8:1:2:ffff::1", 200),
        ("2001:DB8:1:2::3", 403),
        ("2001:db8:1:3::1", 200),
        ("2001:db9:1:2::1", 200),
    ] {
        assert_eq!(status(&router, address).await, expected, "{address}");
    }
}
