//! Lists the connected proxies, and batches their store calls.

use crate::Engine;
use crate::proxies::registry::Proxies;

impl Engine {
    /// Returns the proxies that are connected to this replica.
    #[must_use]
    pub const fn proxies(&self) -> &Proxies {
        &self.proxies
    }

    /// Runs `begin`, which starts several calls, and sends them to the store after it returns, in
    /// one store call where possible.
    pub fn batch_store_calls(&self, begin: &mut dyn FnMut()) {
        self.store().batch_calls(begin);
    }
}
