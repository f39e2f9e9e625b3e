//! The classes and customers of requests: their hashes, and the names that operators see.
//!
//! Guarantees:
//! - The hashes are keyed, so no caller can choose a customer with the hash of another one.
//! - At most [`MAX_NAMES`] names are kept, each of at most [`MAX_NAME_BYTES`]. At the bound, all are
//!   forgotten: a customer has no name until its next request.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

use parking_lot::RwLock;

use crate::kernel::concurrency::{CustomerUse, Requester, RequesterKeys};

const MAX_NAMES: usize = 10_000;

/// The longest name that is kept, in bytes. A longer one is cut.
const MAX_NAME_BYTES: usize = 64;

/// The hasher of customers, and the names of the last ones.
#[derive(Debug, Default)]
pub(super) struct CustomerNames {
    hasher: RandomState,
    names: RwLock<HashMap<u64, Box<str>>>,
}

/// The requests of one customer, with its name if it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCustomer {
    /// The value of the entry, cut after 64 bytes.
    pub name: Option<Box<str>>,
    /// The requests.
    pub requests: CustomerUse,
}

impl CustomerNames {
    /// Returns the class and the customer of a check, as [`ConcurrencyLimits::requester`] does.
    ///
    /// [`ConcurrencyLimits::requester`]: super::ConcurrencyLimits::requester
    pub(super) fn requester<'v>(
        &self,
        keys: &RequesterKeys,
        value_of: impl Fn(&str) -> Option<&'v str>,
        weight_of: impl FnOnce(&str) -> Option<u32>,
    ) -> Requester {
        let class = keys.class_of(&value_of);
        let known = keys.customer_of(value_of).and_then(|it| Some((it, weight_of(it)?)));
        match known {
            Some((customer, weight)) => self.named(class, customer, weight),
            None => Requester { class, ..Requester::ANY },
        }
    }

    /// Returns the customers with their names.
    pub(super) fn names_of(&self, customers: Vec<CustomerUse>) -> Vec<NamedCustomer> {
        let names = self.names.read();
        let with_name = |requests: CustomerUse| NamedCustomer {
            name: requests.customer.and_then(|hash| names.get(&hash).cloned()),
            requests,
        };
        customers.into_iter().map(with_name).collect()
    }

    fn named(&self, class: u8, customer: &str, weight: u32) -> Requester {
        let by = Requester::of_customer(class, self.hasher.hash_one(customer), weight);
        if !self.names.read().contains_key(&by.customer) {
            let mut names = self.names.write();
            if MAX_NAMES <= names.len() {
                names.clear();
            }
            names.insert(by.customer, start_of(customer).into());
        }
        by
    }
}

/// Cuts a name after [`MAX_NAME_BYTES`], at the boundary of a character.
fn start_of(name: &str) -> &str {
    (0..=MAX_NAME_BYTES.min(name.len())).rev().find_map(|end| name.get(..end)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_in_number_and_bytes() {
        let names = CustomerNames::default();
        for number in 0..=MAX_NAMES {
            names.named(0, &number.to_string(), 1);
        }
        assert_eq!(names.names.read().len(), 1, "all earlier names are forgotten");
        let long = "é".repeat(40);
        let by = names.named(0, &long, 1);
        assert_eq!(*names.names.read()[&by.customer], *"é".repeat(32));
    }
}
