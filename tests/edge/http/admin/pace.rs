//! The admin pages of a limit with a pace.

use std::sync::Arc;

use serde_json::{Value, json};
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::units::Revision;

use super::{admin_of, get};
use crate::edge::{acquire_permits, engine};

#[tokio::test]
async fn pages_show_the_rate_of_a_pace() {
    let text = "domain: d\ndescriptors:\n- key: k\n  rate_limit: {requests_per_unit: 90, \
                unit: minute, adaptive: {}}\n";
    let config = sluicegate::config::load([("d.yaml", text.as_bytes())], Revision(1), false);
    let engine = engine(config.unwrap().0);
    acquire_permits(&engine, "v").await.release(RequestOutcome::Dropped, None);
    let router = admin_of(Arc::clone(&engine), None);
    for (path, place) in [
        ("/permits", "/busiest/0/rate_per_second"),
        ("/concurrency", "/limits/0/rate_per_second"),
        ("/explain?domain=d&descriptor=k=v", "/descriptors/0/concurrency/now/rate_per_second"),
    ] {
        let shown: Value = serde_json::from_str(&get(&router, path, None).await.1).unwrap();
        assert_eq!(shown.pointer(place), Some(&json!(1.2)), "90 per minute x 0.8: {shown}");
    }
}
