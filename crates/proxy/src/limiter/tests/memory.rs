//! The memory of a limiter stays within its budget.
//!
//! Not covered:
//! - Memory that the allocator keeps: the measured growth includes it.

use super::*;
use crate::memory::DEFAULT_MEMORY_BYTES;

const KEYS: usize = 3_000;

/// The calls for one key, at most.
const ATTEMPTS: usize = 20;

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
                lease_message::Message::Rule(leased_reply(text, vec![leased_limit("")]))
            }
            proxy_message::Message::Borrow(_) => lend(),
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
        // On a busy machine, a call may miss its deadline, and an earlier lease may expire.
        let held = limiter.leased().0;
        for _ in 0..ATTEMPTS {
            answer(start(&limiter, &[user(&value)])).await;
            if held < limiter.leased().0 {
                break;
            }
        }
    }
    assert_eq!(limiter.take_refused(), 0);
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < DEFAULT_MEMORY_BYTES / 2, "{growth} bytes");
}
