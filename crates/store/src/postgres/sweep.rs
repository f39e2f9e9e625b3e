//! Deletes empty rows in the background, 1,000 keys at a time.
//!
//! Guarantees:
//! - A row is deleted at least ten seconds after its state became empty. So a counter in use keeps
//!   its row.
//! - A pass over all rows restarts at the first key when it ends.
//!
//! Not covered:
//! - Free space in the table: autovacuum returns it.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::session::Session;
use super::worker::Shared;
use crate::backoff::Backoff;

/// The mean pause between two pages.
const PAGE_PAUSE: Duration = Duration::from_secs(1);

/// The pause after a page with many empty rows.
const SHORT_PAUSE: Duration = Duration::from_millis(50);

/// The number of deleted rows in a page after which the next page follows soon.
const MANY_ROWS: i64 = 100;

/// The timeout of one page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Deletes empty rows over a connection of its own; never returns.
pub(super) async fn sweep_forever(shared: &Shared) {
    let mut pauses = Backoff::new(shared.options.jitter_seed.wrapping_add(u64::MAX / 2));
    loop {
        // The workers log why no connection opens.
        if let Ok(session) = shared.open_session().await {
            sweep_pages(&session, &mut pauses).await;
        }
        sleep(PAGE_PAUSE + pauses.random_below(PAGE_PAUSE)).await;
    }
}

/// Deletes page after page until the connection fails.
async fn sweep_pages(session: &Session, pauses: &mut Backoff) {
    let mut after = Vec::new();
    loop {
        let Ok(Ok((last_key, deleted))) = timeout(PAGE_TIMEOUT, delete_page(session, &after)).await
        else {
            return;
        };
        after = last_key.unwrap_or_default();
        let pause = if MANY_ROWS <= deleted { SHORT_PAUSE } else { PAGE_PAUSE };
        sleep(pauses.random_below(pause * 2)).await;
    }
}

async fn delete_page(
    session: &Session,
    after: &[u8],
) -> Result<(Option<Vec<u8>>, i64), tokio_postgres::Error> {
    let rows = session.statements.sweep.run(&session.client, &[&after]).await?;
    match rows.first() {
        Some(row) => Ok((row.try_get(0)?, row.try_get(1)?)),
        None => Ok((None, 0)),
    }
}
