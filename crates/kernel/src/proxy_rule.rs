//! The rule of a descriptor, as a proxy gets it.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use super::concurrency::limiter::LimiterConfig;
use super::concurrency::{ConcurrencyMode, RejectReply, RequesterKeys};
use super::coordinator::ConcurrencyFallback;
use super::coordinator::aggregate::VoteAggregate;
use super::decision::Verdict;
use super::lease::LeaseTerms;
use super::rate::Strategy;
use super::units::Nanos;

/// The rule of a descriptor, for a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyRule {
    /// The handling of the descriptor.
    pub handling: ProxyHandling,
    /// The version number of the limits in force. It rises with each change.
    pub limits: u64,
    /// The time for which this is valid; `None` until the limits change.
    pub valid_for: Option<Nanos>,
    /// `true` if no descriptor with the same keys matches a limit, whatever its values.
    pub is_for_any_values: bool,
    /// The path of the rule; `None` if no rule matches.
    pub path: Option<Arc<str>>,
    /// `true` if the rule decides and is reported, but never denies.
    pub is_shadow: bool,
    /// The entries of the counters, in which a pattern or a hash may replace a value. Empty if no
    /// rule matches.
    pub counter: Box<[(Box<str>, Box<str>)]>,
    /// The concurrency limit, whatever the handling is.
    pub concurrency: Option<Box<ConcurrencyRule>>,
    /// The rows of tables that have the numbers of the limits, and the weights.
    pub rows: Box<[TableRow]>,
    /// The weights of the customers that the descriptor names.
    pub weights: Box<[CustomerWeight]>,
}

/// The weight of the customer that an entry of a descriptor names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomerWeight {
    /// The key of the entry.
    pub key: Box<str>,
    /// The column with the weight, `TABLE.COLUMN`.
    pub column: Box<str>,
    /// The weight; `None` if the table has no row for the customer.
    pub weight: Option<u32>,
}

/// How a proxy tells the requests of a concurrency limit apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyRequesters {
    /// The entries of a request with its class and its customer.
    pub keys: RequesterKeys,
    /// The column with the weights of customers, `TABLE.COLUMN`. `None`: all have weight 1.
    pub weight_column: Option<Box<str>>,
}

/// A row of a table that limits read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableRow {
    /// The name of the table.
    pub table: Box<str>,
    /// The id.
    pub id: Box<str>,
}

impl TableRow {
    /// Creates the name of a row.
    #[must_use]
    pub fn new(table: &str, id: &str) -> Self {
        Self { table: table.into(), id: id.into() }
    }

    /// Returns a hash, the same in every process of this version.
    #[must_use]
    pub fn hash_value(&self) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(self)
    }
}

/// How a proxy handles a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyHandling {
    /// No limit applies.
    Unlimited,
    /// The proxy decides from leased hits. The list has all limits of the rule and is not empty.
    Leased(Box<[ProxyLimit]>),
    /// The proxy asks for each request.
    Ask,
    /// The proxy asks for each request, with all descriptors of the request.
    AskTogether,
    /// An operator forced this verdict.
    Forced(Verdict),
}

/// A leased limit of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyLimit {
    /// The name in the list `rate_limits`; `None` for `rate_limit`.
    pub name: Option<Arc<str>>,
    /// The requests in each period.
    pub requests: u32,
    /// The period.
    pub period: Nanos,
    /// The strategy, with the calendar windows around now.
    pub strategy: Strategy,
    /// The lease settings.
    pub terms: LeaseTerms,
    /// The verdict if the balance is too small and no reply arrives. `None`: the proxy's failure rule
    /// decides.
    pub on_failure: Option<Verdict>,
}

/// The concurrency limit of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyRule {
    /// The path of the rule.
    pub path: Arc<str>,
    /// The name of the bucket. A name above 1,024 bytes cannot be reported.
    pub bucket: Box<[u8]>,
    /// The processes over which the limit counts requests.
    pub mode: ConcurrencyMode,
    /// The parameters of the limit.
    pub rules: LimiterConfig,
    /// The combination of votes on a shared adaptive limit.
    pub aggregate: VoteAggregate,
    /// The longest duration of a request.
    pub max_duration: Nanos,
    /// The behavior without the store.
    pub on_failure: ConcurrencyFallback,
    /// The response to a request without a permit.
    pub reject: RejectReply,
    /// `true` if rejections are only reported.
    pub is_shadow: bool,
    /// How requests are told apart; `None` if they are not.
    pub requesters: Option<Box<ProxyRequesters>>,
}

impl ProxyRule {
    /// The reply for a descriptor that no rule of the configuration matches.
    #[must_use]
    pub fn unmatched(handling: ProxyHandling, limits: u64) -> Self {
        Self {
            handling,
            limits,
            valid_for: None,
            is_for_any_values: false,
            path: None,
            is_shadow: false,
            counter: Box::default(),
            concurrency: None,
            rows: Box::default(),
            weights: Box::default(),
        }
    }
}
