//! Runs the steps of a bench.
//!
//! Guarantees:
//! - At most one check in flight for each sender.
//! - A check ends at the call timeout.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::answer::{AnswerCode, KeyedAnswer};
use super::checks::{BenchCheck, CheckSeries};
use super::cpu::cpu_time;
use super::grpc::GrpcSender;
use super::http::HttpSender;
use super::pacer::Pacer;
use super::schedule::SendSchedule;
use super::tally::{CheckTimes, StepTally};
use crate::clock::Clock;
use crate::kernel::units::Nanos;

/// Sends one check after the other.
#[derive(Clone, Debug)]
pub enum BenchSender {
    /// Over a gRPC connection, which other senders use, too.
    Grpc(GrpcSender),
    /// Over an HTTP connection of its own.
    Http(Box<HttpSender>),
}

impl BenchSender {
    async fn send(&mut self, check: BenchCheck) -> AnswerCode {
        match self {
            Self::Grpc(sender) => sender.send(check).await,
            Self::Http(sender) => sender.send(check).await,
        }
    }
}

/// The load of a bench, and the results of its checks.
#[derive(Debug)]
pub struct BenchLoad {
    /// The checks of all steps.
    pub checks: CheckSeries,
    /// The senders. Their number bounds the checks in flight.
    pub senders: Vec<BenchSender>,
    /// The longest wait for a reply.
    pub timeout: Duration,
    /// The process of the server.
    pub pid: Option<u32>,
    /// The clock of all times.
    pub clock: Arc<Clock>,
    /// The results of all steps, if they are compared with a limit.
    pub answers: Option<Arc<Mutex<Vec<KeyedAnswer>>>>,
}

/// The result of one step.
#[derive(Clone, Debug)]
pub struct StepResult {
    /// Scheduled checks per second.
    pub rate: u32,
    /// The counts.
    pub tally: StepTally,
    /// The time from the start to the end of the last check.
    pub elapsed: Nanos,
    /// CPU time of the server, if its process is known and lives.
    pub cpu: Option<Nanos>,
}

/// A step that runs.
#[derive(Debug)]
pub struct RunningStep {
    pacer: Arc<Pacer>,
    tally: Arc<Mutex<StepTally>>,
    senders: JoinSet<()>,
    cpu_before: Option<Nanos>,
}

impl BenchLoad {
    /// Starts a step whose first check has the number `first`.
    ///
    /// # Errors
    /// The thread that paces checks cannot be started.
    pub fn start(&self, schedule: SendSchedule, first: u64) -> std::io::Result<RunningStep> {
        let cpu_before = self.server_cpu();
        let pacer = Pacer::start(schedule, Arc::clone(&self.clock))?;
        let tally = Arc::new(Mutex::new(StepTally::default()));
        let checks = Arc::new(self.checks.clone());
        let mut senders = JoinSet::new();
        for sender in &self.senders {
            let loop_of_sender = SenderLoop {
                sender: sender.clone(),
                pacer: Arc::clone(&pacer),
                tally: Arc::clone(&tally),
                checks: Arc::clone(&checks),
                first,
                timeout: self.timeout,
                clock: Arc::clone(&self.clock),
                answers: self.answers.clone(),
            };
            senders.spawn(loop_of_sender.run());
        }
        Ok(RunningStep { pacer, tally, senders, cpu_before })
    }

    /// Returns the result of a step after [`RunningStep::wait`].
    #[must_use]
    pub fn finish(&self, step: &RunningStep) -> StepResult {
        let elapsed = self.clock.steady().since(step.pacer.started());
        let cpu = self.server_cpu().zip(step.cpu_before).map(|(after, before)| after.since(before));
        let mut tally = step.tally.lock().clone();
        step.pacer.untaken_waits().for_each(|wait| tally.record_not_sent(wait));
        StepResult { rate: step.pacer.rate(), tally, elapsed, cpu }
    }

    fn server_cpu(&self) -> Option<Nanos> {
        self.pid.and_then(|pid| cpu_time(pid).ok())
    }
}

impl RunningStep {
    /// Waits until every check of the step has ended.
    pub async fn wait(&mut self) {
        while self.senders.join_next().await.is_some() {}
    }

    /// Ends the step early: no further check is sent.
    pub fn stop(&self) {
        self.pacer.stop();
    }

    /// Returns the number of checks sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.pacer.taken()
    }

    /// Returns the number of decisions so far.
    #[must_use]
    pub fn decisions(&self) -> u64 {
        self.tally.lock().decisions()
    }
}

struct SenderLoop {
    sender: BenchSender,
    pacer: Arc<Pacer>,
    tally: Arc<Mutex<StepTally>>,
    checks: Arc<CheckSeries>,
    first: u64,
    timeout: Duration,
    clock: Arc<Clock>,
    answers: Option<Arc<Mutex<Vec<KeyedAnswer>>>>,
}

impl SenderLoop {
    async fn run(mut self) {
        while let Some((index, scheduled)) = self.pacer.next().await {
            let check = self.checks.check(self.first + index);
            self.send(check, scheduled).await;
        }
    }

    async fn send(&mut self, check: BenchCheck, scheduled: Nanos) {
        let (key, sent, wall_sent) = (check.key, self.clock.steady(), self.clock.now());
        let reply = tokio::time::timeout(self.timeout, self.sender.send(check)).await;
        let code = reply.unwrap_or(AnswerCode::Timeout);
        let times = CheckTimes { scheduled, sent, replied: self.clock.steady() };
        self.tally.lock().record(code, times);
        if let Some(answers) = &self.answers {
            let replied = self.clock.now();
            answers.lock().push(KeyedAnswer { key, sent: wall_sent, replied, code });
        }
    }
}
