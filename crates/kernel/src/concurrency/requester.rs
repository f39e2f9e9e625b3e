//! The class and the customer of a request for a permit.
//!
//! A class is admitted while all requests in flight are below its part of the limit:
//!
//! | formula, for a limit of 10 | worked row |
//! |---|---|
//! | part = ⌊limit·percent / 100⌋, at least 1 if the limit is not 0 | `batch`, 50 %: 5 |
//! | admit while in flight < part | 5 in flight: `batch` waits, `critical` (100 %) is admitted |
//!
//! Guarantees:
//! - The part of a class is at least the part of every later class.

use crate::decision::Check;

/// The most classes of one limit.
pub const MAX_CLASSES: u8 = 8;

/// The largest weight of a customer.
pub const MAX_WEIGHT: u32 = 1_000;

/// The entries of a check that tell the class and the customer of its request.
///
/// An entry may be in any descriptor; the first one with the key counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequesterKeys {
    /// The key of the entry with the class; `None` without classes.
    pub class: Option<Box<str>>,
    /// The names of the classes, the first class first.
    pub class_names: Box<[Box<str>]>,
    /// The key of the entry with the customer; `None` without fair parts.
    pub customer: Option<Box<str>>,
}

impl RequesterKeys {
    /// Returns the number of the class of a check. Without the entry, or with another value, it is
    /// the last class.
    pub fn class_of<'v>(&self, value_of: impl Fn(&str) -> Option<&'v str>) -> u8 {
        let name = self.class.as_deref().and_then(value_of);
        let number = name.and_then(|name| self.class_names.iter().position(|it| **it == *name));
        number.and_then(|number| u8::try_from(number).ok()).unwrap_or(u8::MAX)
    }

    /// Returns the name of the class of `check`; `None` without classes.
    #[must_use]
    pub fn class_name(&self, check: &Check<'_>) -> Option<&str> {
        let number = usize::from(self.class_of(|key| check.value_of(key)));
        self.class_names.get(number).or_else(|| self.class_names.last()).map(|name| &**name)
    }

    /// Returns the customer of a check; `None` without the entry, or if it is empty.
    pub fn customer_of<'v>(&self, value_of: impl Fn(&str) -> Option<&'v str>) -> Option<&'v str> {
        self.customer.as_deref().and_then(value_of).filter(|customer| !customer.is_empty())
    }
}

/// The class and the customer of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Requester {
    /// The number of its class, from 0; that of the first class is served first. A number above the
    /// last class counts as the last one.
    pub class: u8,
    /// The hash of its customer; 0 without a customer. Used only if the limit is fair.
    pub customer: u64,
    /// The customer's weight, 1 to [`MAX_WEIGHT`].
    pub weight: u32,
}

impl Requester {
    /// A request without a class and without a customer.
    pub const ANY: Self = Self { class: 0, customer: 0, weight: 1 };

    /// Returns a request of `class` and of the customer with this hash. The hash must be keyed, so that
    /// no caller finds a customer with the hash of another one.
    #[must_use]
    pub fn of_customer(class: u8, hash: u64, weight: u32) -> Self {
        // The two ends of the range are for requests without a customer.
        Self { class, customer: hash.clamp(1, u64::MAX - 1), weight }
    }
}

/// The part of the limit that each class may fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClassParts {
    /// In percent, 1 to 100, the first class first; not above that of the class before. The length is
    /// [`MAX_CLASSES`].
    percents: [u8; 8],
    len: u8,
}

impl ClassParts {
    /// One class of 100 %.
    pub const ONE: Self = Self { percents: [100; 8], len: 1 };

    /// Creates the parts of classes from percents. Returns `None` if there are none or more than
    /// [`MAX_CLASSES`], if one is not from 1 to 100, or larger than the one before.
    #[must_use]
    pub fn new(percents: &[u8]) -> Option<Self> {
        let is_valid = percents.iter().all(|percent| (1..=100).contains(percent));
        let is_sorted = percents.is_sorted_by(|before, after| before >= after);
        let (mut parts, len) = (Self::ONE, u8::try_from(percents.len()).ok()?);
        parts.percents.get_mut(..percents.len())?.copy_from_slice(percents);
        (is_valid && is_sorted && 0 < len).then_some(Self { len, ..parts })
    }

    /// The percents of all classes.
    #[must_use]
    pub fn percents(&self) -> &[u8] {
        self.percents.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Returns `class`, or the last class if there is no such one.
    #[must_use]
    pub fn clamp(&self, class: u8) -> u8 {
        class.min(self.len.saturating_sub(1))
    }

    /// Returns the part of `limit` that `class` may fill.
    #[must_use]
    pub fn part(&self, limit: u32, class: u8) -> u32 {
        let percent = self.percents().get(usize::from(class)).or_else(|| self.percents().last());
        let percent = percent.copied().map_or(100, u64::from);
        let part = u64::from(limit).saturating_mul(percent) / 100;
        u32::try_from(part).unwrap_or(u32::MAX).max(limit.min(1))
    }
}

/// The users of a limit at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequesterUse {
    /// The classes, the first one first.
    pub classes: Vec<ClassUse>,
    /// The customers with the most requests; empty if the limit is not fair.
    pub customers: Vec<CustomerUse>,
}

/// The requests of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassUse {
    /// The number of requests in flight from which the class is no longer admitted.
    pub part: u32,
    /// Its requests in flight.
    pub in_flight: u32,
    /// Its waiting requests.
    pub waiting: u32,
}

/// The requests of one customer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CustomerUse {
    /// The hash; `None` for the requests that count as one customer together.
    pub customer: Option<u64>,
    /// The weight, 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// Its requests in flight.
    pub in_flight: u32,
    /// Its waiting requests.
    pub waiting: u32,
}
