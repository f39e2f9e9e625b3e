//! Events of budgets: a part of the amount is settled (`warn_at`).
//!
//! Guarantees:
//! - One event for each budget, step and period, at all replicas together by its id.

use serde_json::{Map, json};

use super::EventOptions;
use crate::config::budget::BudgetRule;
use crate::config::budget_amount::AmountText;
use crate::kernel::budget::{Amount, BudgetView};
use crate::kernel::key::CounterKey;
use crate::kernel::units::Nanos;
use crate::telemetry::cloud_events::{EventContent, EventKey, EventWindow, format_time};

const EVENT_TYPE: &str = "io.sluicegate.budget.warning";

impl EventOptions {
    /// Sends an event for the largest step of `warn_at` that the settled amount has reached.
    pub(crate) fn offer_budget_event(
        &self,
        (rule, key): (&BudgetRule, &CounterKey),
        (total, view): (Amount, &BudgetView),
        now: Nanos,
    ) {
        let settled = u128::from(view.usage.settled.0).saturating_mul(100);
        let is_reached =
            |step: &&u8| u128::from(total.0).saturating_mul(u128::from(**step)) <= settled;
        let Some(step) =
            rule.warn_at.iter().rev().find(is_reached).filter(|_| self.kinds.near_limit)
        else {
            return;
        };
        let window =
            EventWindow { start: view.usage.start, end: view.end.unwrap_or(Nanos(u64::MAX)) };
        let name = [key.as_bytes(), &[*step]].concat();
        let key_of_step = EventKey { event_type: EVENT_TYPE, key: &name, window };
        self.queue
            .offer(key_of_step, now, || self.budget_content((rule, key), (total, view), *step));
    }

    fn budget_content(
        &self,
        (rule, key): (&BudgetRule, &CounterKey),
        (total, view): (Amount, &BudgetView),
        step: u8,
    ) -> EventContent {
        let text = |amount: Amount| AmountText(amount, rule.unit).to_string();
        let (domain, entries) = CounterKey::parse_budget(key.as_bytes()).unwrap_or_default();
        let data = Map::from_iter([
            ("domain".to_owned(), json!(domain)),
            ("descriptor".to_owned(), self.entries_json(&entries)),
            ("percent".to_owned(), json!(step)),
            ("amount".to_owned(), json!(text(total))),
            ("settled".to_owned(), json!(text(view.usage.settled))),
            ("held".to_owned(), json!(text(view.held))),
            ("period_start".to_owned(), json!(format_time(view.usage.start))),
            ("period_end".to_owned(), json!(view.end.and_then(format_time))),
            ("shadow".to_owned(), json!(self.shadow_mode || rule.shadow)),
            ("replica".to_owned(), json!(self.replica)),
        ]);
        EventContent { subject: rule.path.to_string(), data }
    }
}
