//! The memory of a limiter stays within its budget.
//!
//! Not covered:
//! - Memory that the allocator keeps: the measured growth includes it.

use super::*;
use crate::memory::DEFAULT_MEMORY_BYTES;

const KEYS: usize = 3_000;

/// The duration of a lease. None expires during the test, not even on a busy machine.
const LEASE_US: u64 = 24 * 3_600 * SECOND_US;

/// Memory of this process in bytes (proc(5)).
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix(" kB"));
    value.unwrap().trim().parse::<usize>().unwrap() * 1_024
}

/// Replies as Sluicegate: the counter of a long value has a short text.
async fn serve_counters(mut service: Service) {
    loop {
        let (id, request) = service.next_request().await;
        let reply = match request {
            proxy_message::Message::Rule(request) => {
                let text = &request.entries[0].value[..65];
                let limit = api::LeasedLimit { duration_us: LEASE_US, ..leased_limit("") };
                lease_message::Message::Rule(leased_reply(text, vec![limit]))
            }
            proxy_message::Message::Borrow(_) => lend_for(LEASE_US),
            _ => panic!("another message"),
        };
        service.reply(id, reply).await;
    }
}

#[tokio::test]
async fn long_values_of_a_leased_key_keep_little_memory() {
    let (service, limiter) = Service::start_with_limiter().await;
    tokio::spawn(serve_counters(service));
    let before = resident_bytes();
    for number in 0..KEYS {
        let value = format!("{number:04}{}", "x".repeat(50_000));
        // On a busy machine, a call may miss its deadline.
        while limiter.leased().0 <= number {
            answer(start(&limiter, &[user(&value)])).await;
        }
    }
    assert_eq!((limiter.leased().0, limiter.take_refused()), (KEYS, 0));
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < DEFAULT_MEMORY_BYTES / 2, "{growth} bytes");
}
