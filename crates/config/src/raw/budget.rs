//! The blocks `budget` and `usage`.

use schemars::JsonSchema;

use super::calendar::Calendar;
use super::schema;
use super::text_list::TextList;
use crate::diagnostic::{Span, Spanned};

/// A budget: an amount of tokens or money. Requests reserve a part of it, and settle what they cost.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default, transform = schema::one_budget_period)]
pub struct Budget {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// `true` if a field of the block could not be read. A finding then says which one.
    #[schemars(skip)]
    pub is_incomplete: bool,
    /// The amount of each period: a number, perhaps with `k`, `M` or `G`, and its unit. The unit is
    /// `tokens`, `input_tokens`, `output_tokens`, or a currency of three letters.
    #[schemars(schema_with = "schema::amount")]
    pub amount: Option<Spanned<String>>,
    /// The unit: second, minute, hour, day, week, month or year, in any case. Without `calendar`, a
    /// month has 30 days and a year has 365.
    #[schemars(schema_with = "schema::unit")]
    pub unit: Spanned<String>,
    /// The period, instead of a unit: whole numbers with s, m, h or d, such as `90m` or `1d12h`. At
    /// least `1s`.
    #[schemars(schema_with = "schema::optional_duration")]
    pub per: Option<Spanned<String>>,
    /// For a budget per day, week, month or year: periods that follow the calendar of a time zone.
    pub calendar: Option<Calendar>,
    /// The amount is the sum of the top-ups, and there are no periods. It is used instead of
    /// `amount` and its period.
    #[schemars(with = "Option<bool>")]
    pub prepaid: Spanned<bool>,
    /// For `prepaid`: the unit of the top-ups, such as `usd` or `tokens`.
    #[schemars(schema_with = "schema::budget_unit")]
    pub of: Option<Spanned<String>>,
    /// The parts of the amount at which the service warns: ascending percentages from `1%` to
    /// `100%`. Default: none.
    #[schemars(schema_with = "schema::warn_at")]
    pub warn_at: Option<Spanned<TextList>>,
    /// The decision while the store does not answer. Default: that of `defaults`, otherwise
    /// `error`. `local` in `defaults` is `deny` here, because a replica alone does not know what
    /// others spent.
    #[schemars(schema_with = "schema::budget_failure")]
    pub on_store_failure: Option<Spanned<String>>,
    /// The column of a table (setting `tables`) with the amount of each id, in whole tokens or
    /// units of the currency, such as `customers.llm_budget`. An id without a row has `amount`.
    #[schemars(schema_with = "schema::table_column")]
    pub from: Option<Spanned<String>>,
    /// For `from`: the key of the entry whose value is the id. Default: the key of this rule.
    #[schemars(schema_with = "schema::text")]
    pub by: Option<Spanned<String>>,
}

/// How the requests of the domain use their budgets.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, default)]
pub struct Usage {
    /// The position of the block in the file.
    #[schemars(skip)]
    pub span: Span,
    /// `true` if a field of the block could not be read. A finding then says which one.
    #[schemars(skip)]
    pub is_incomplete: bool,
    /// The estimate of a request. A number such as `4k tokens`: always this one. `max_tokens`, the
    /// default: the number that the request names. `learn`: from what earlier requests of the same
    /// budget cost.
    #[schemars(schema_with = "schema::estimate")]
    pub estimate: Option<Spanned<String>>,
    /// The largest estimate, and the estimate of a request about which nothing is known. Default:
    /// `32k tokens`.
    #[schemars(schema_with = "schema::tokens")]
    pub at_most: Option<Spanned<String>>,
    /// The time after which a hold expires, from its reserve or its last renewal: `1s` to `24h`.
    /// Default: `10m`.
    #[schemars(schema_with = "schema::optional_duration")]
    pub time_limit: Option<Spanned<String>>,
    /// The effect of an expired hold. `charge`, the default: its amount counts as spent. `release`:
    /// nothing is spent.
    #[schemars(schema_with = "schema::on_expiry")]
    pub on_expiry: Option<Spanned<String>>,
    /// The table (setting `tables`) with the price of each model. Budgets of money need it.
    #[schemars(schema_with = "schema::table_name")]
    pub prices: Option<Spanned<String>>,
    /// The key of the entry whose value is the model. Default: `model`.
    #[schemars(schema_with = "schema::text")]
    pub model: Option<Spanned<String>>,
}
