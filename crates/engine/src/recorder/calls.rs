//! Makes calls while a recording runs.

use futures_util::FutureExt as _;

use super::state::{LockedRecorder, RecordedResult};
use crate::budgets::BudgetUse;
use crate::kernel::decision::{Check, StoreFailure};
use crate::kernel::units::Nanos;
use crate::recording::RecordedBudgets;
use crate::{AdmissionOutcome, CheckError, Decision, Engine};

impl Engine {
    /// Decides and records a check that uses no budgets. If no budget is configured, a replay with
    /// budgets charges its hits.
    pub(crate) async fn decide_recorded(
        &self,
        check: &Check<'_>,
        timeout: Option<Nanos>,
    ) -> Result<Decision, CheckError> {
        let budgets = (!self.has_budgets()).then_some(BudgetUse::Charge);
        let decide = self.decide_unrecorded(check, timeout);
        self.run_recorded(decide, |recorder, decided| {
            let result = RecordedResult::of(decided, RecordedResult::Decided);
            recorder.record_check((check, budgets), &self.clock, result);
        })
        .await
    }

    /// Decides a check with its budgets, and records it if a recording runs.
    pub(crate) async fn admit_recorded(
        &self,
        admit: impl Future<Output = Result<AdmissionOutcome, CheckError>>,
        (check, budgets): (&Check<'_>, BudgetUse<'_, '_>),
    ) -> Result<AdmissionOutcome, CheckError> {
        if !self.recorder.is_on() {
            return admit.await;
        }
        self.run_recorded(admit, |recorder, admitted| {
            let result = RecordedResult::of(admitted, of_admission);
            recorder.record_check((check, Some(budgets)), &self.clock, result);
        })
        .await
    }

    /// Ends or renews the holds of a request, and records the call. A failed one is recorded, too,
    /// because the engine repeats it.
    pub(crate) async fn end_recorded<T>(
        &self,
        end: impl Future<Output = Result<T, CheckError>>,
        (check, budgets): (&Check<'_>, RecordedBudgets<&str>),
    ) -> Result<T, CheckError> {
        let record = |recorder: &mut LockedRecorder<'_>, _: &_| {
            recorder.record_end((check, budgets), &self.clock);
        };
        self.run_recorded(end, record).await
    }

    async fn run_recorded<T>(
        &self,
        call: impl Future<Output = Result<T, CheckError>>,
        record: impl FnOnce(&mut LockedRecorder<'_>, &Result<T, CheckError>),
    ) -> Result<T, CheckError> {
        if self.store().is_synchronous() {
            return self.run_in_recorded_order(call, record);
        }
        let result = call.await;
        record(&mut self.recorder.lock(), &result);
        result
    }

    /// Makes and records a call under one lock. The store replies at once.
    fn run_in_recorded_order<T>(
        &self,
        call: impl Future<Output = Result<T, CheckError>>,
        record: impl FnOnce(&mut LockedRecorder<'_>, &Result<T, CheckError>),
    ) -> Result<T, CheckError> {
        let mut recorder = self.recorder.lock();
        let late = Err(CheckError::StoreUnavailable(StoreFailure::TimedOut));
        let result = call.now_or_never().unwrap_or(late);
        record(&mut recorder, &result);
        result
    }
}

fn of_admission(admitted: &AdmissionOutcome) -> RecordedResult<'_> {
    match admitted {
        AdmissionOutcome::Decided(decision, _) => RecordedResult::Decided(decision),
        AdmissionOutcome::Rejected(rejection) => RecordedResult::Rejected(&rejection.path),
    }
}
