//! Parses the reserved descriptor keys with which Envoy's rate limit filter starts and ends a
//! request: `sluicegate.acquire`, `sluicegate.reserve`, `sluicegate.release`, `sluicegate.settle` and
//! others.
//!
//! Guarantees:
//! - Entries with a reserved key never match a rule.
//! - All reserved entries of a request have the same request id, of 16 to 128 characters of
//!   `[0-9A-Za-z._-]`.
//! - A request that ends and has ordinary descriptors is an error.

mod entry;
mod release;
mod usage;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::engine::budgets::RequestUsage;
use crate::engine::{CheckError, validate_id};
use entry::{ReservedEntry, ReservedKey};
pub use release::ReleaseCall;

/// The purpose of a rate limit request, according to its reserved keys.
#[derive(Debug, PartialEq, Eq)]
pub enum ReservedCall {
    /// A check of rate limits only: no descriptor ends with a reserved key.
    Plain,
    /// The start of a request: an acquire of permits, a reserve in budgets, and a check of the rate
    /// limits of all descriptors.
    Start(RequestStart),
    /// The end of a request: a release of its permits, and a settle of its budgets.
    End(RequestEnd),
}

/// The start of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct RequestStart {
    /// The request id under which the permits and holds are stored.
    pub id: String,
    /// The indexes of the descriptors that need permits, ascending.
    pub permits: Vec<usize>,
    /// The indexes of the descriptors whose budgets are reserved, ascending.
    pub budgets: Vec<usize>,
    /// The largest `hits_addend` of the latter, if it is above 1: the tokens that the request may use.
    pub tokens: Option<u64>,
}

/// The end of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct RequestEnd {
    /// The request id.
    pub id: String,
    /// The release; `None` if the request only settles.
    pub release: Option<ReleaseCall>,
    /// The indexes of the descriptors whose budgets settle, ascending.
    pub budgets: Vec<usize>,
    /// What the request used.
    pub usage: RequestUsage,
}

/// Returns the purpose of `request`, and removes its entries with a reserved key that follow other
/// entries.
///
/// # Errors
/// [`CheckError::BadId`] if the reserved entries are invalid. `request` may then be partly changed
/// and must not be decided.
pub fn take_reserved(request: &mut RateLimitRequest) -> Result<ReservedCall, CheckError> {
    let reserved = reserved_entries(request);
    let Some(first) = reserved.first() else { return Ok(ReservedCall::Plain) };
    let id = shared_id(&reserved, first)?;
    if reserved.iter().all(|entry| entry.key.is_start()) {
        return take_start(request, id, &reserved).map(ReservedCall::Start);
    }
    if let Some(start) = reserved.iter().find(|entry| entry.key.is_start()) {
        return bad_id(start.descriptor, "one call cannot both start and end a request");
    }
    if reserved.len() < request.descriptors.len() {
        return bad_id(first.descriptor, "a release or settle cannot have ordinary descriptors");
    }
    take_end(request, id, &reserved).map(ReservedCall::End)
}

fn take_start(
    request: &mut RateLimitRequest,
    id: String,
    reserved: &[ReservedEntry],
) -> Result<RequestStart, CheckError> {
    if let Some(bare) = reserved.iter().find(|entry| !entry.is_covered) {
        let why = match bare.key {
            ReservedKey::Reserve => "sluicegate.reserve must follow another entry",
            _ => "sluicegate.acquire must follow another entry",
        };
        return bad_id(bare.descriptor, why);
    }
    pop_entries(request, reserved.iter());
    let of_key = |key| reserved.iter().filter(move |entry| entry.key == key);
    let indexes = |key| of_key(key).map(|entry| entry.descriptor).collect();
    // Envoy sends 1 for a missing number.
    let tokens = of_key(ReservedKey::Reserve).filter_map(|entry| entry.hits).max();
    let tokens = tokens.filter(|tokens| 1 < *tokens);
    // The number is an estimate. A rate limit of the same descriptor counts one request.
    for entry in of_key(ReservedKey::Reserve) {
        if let Some(descriptor) = request.descriptors.get_mut(entry.descriptor) {
            descriptor.hits_addend = None;
        }
    }
    let (permits, budgets) = (indexes(ReservedKey::Acquire), indexes(ReservedKey::Reserve));
    Ok(RequestStart { id, permits, budgets, tokens })
}

fn take_end(
    request: &mut RateLimitRequest,
    id: String,
    reserved: &[ReservedEntry],
) -> Result<RequestEnd, CheckError> {
    let settles = || reserved.iter().filter(|entry| entry.key.is_settle());
    let covered = || settles().filter(|entry| entry.is_covered);
    if let Some(settle) = settles().next().filter(|_| covered().next().is_none()) {
        let why = "no budget to settle: sluicegate.settle must follow the entries of the reserve";
        return bad_id(settle.descriptor, why);
    }
    let budgets: Vec<_> = covered().map(|entry| entry.descriptor).collect();
    pop_entries(request, covered());
    let status = release::number(reserved, ReservedKey::Status);
    let usage = usage::request_usage(reserved, status, request.hits_addend);
    let has_release = reserved.iter().any(|entry| entry.key == ReservedKey::Release);
    let release = has_release.then(|| release::release_call(reserved));
    Ok(RequestEnd { id, release, budgets, usage })
}

/// Removes the last entry of these descriptors.
fn pop_entries<'e>(
    request: &mut RateLimitRequest,
    entries: impl Iterator<Item = &'e ReservedEntry>,
) {
    for entry in entries {
        if let Some(descriptor) = request.descriptors.get_mut(entry.descriptor) {
            descriptor.entries.pop();
        }
    }
}

fn reserved_entries(request: &RateLimitRequest) -> Vec<ReservedEntry> {
    let reserved_entry = |(descriptor, content): (usize, &RateLimitDescriptor)| {
        let last = content.entries.last()?;
        let key = ReservedKey::parse(&last.key)?;
        let hits = content.hits_addend.as_ref().map(|addend| addend.value);
        let (value, is_covered) = (last.value.clone(), 1 < content.entries.len());
        Some(ReservedEntry { descriptor, key, value, hits, is_covered })
    };
    request.descriptors.iter().enumerate().filter_map(reserved_entry).collect()
}

/// Returns the request id, which must be the same in all entries that have it.
fn shared_id(reserved: &[ReservedEntry], first: &ReservedEntry) -> Result<String, CheckError> {
    let mut ids = reserved.iter().filter(|entry| entry.key.has_id());
    let Some(first_id) = ids.next() else {
        return bad_id(
            first.descriptor,
            "the entry sluicegate.release or sluicegate.settle with the request id is missing",
        );
    };
    if let Some(other) = ids.find(|other| other.value != first_id.value) {
        return bad_id(other.descriptor, "the request has several ids; send one request per id");
    }
    match validate_id(&first_id.value) {
        Ok(()) => Ok(first_id.value.clone()),
        Err(why) => bad_id(first_id.descriptor, why),
    }
}

fn bad_id<T>(descriptor: usize, why: &'static str) -> Result<T, CheckError> {
    Err(CheckError::BadId { descriptor, why })
}

#[cfg(test)]
mod tests;
