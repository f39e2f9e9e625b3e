//! Evaluates the facts about a Redis, and returns the findings of `sluicegate doctor`. Uses no I/O
//! and no clock.
//!
//! Guarantees:
//! - Each finding has the problem, its consequence and the fix.
//! - An unknown fact causes no finding. That Redis refuses a script is a known fact.

use serde::Serialize;

use super::product::{ScriptFailure, StoreProduct};
use crate::kernel::units::Nanos;

/// The oldest Redis version that has every command of Sluicegate's scripts.
const MIN_VERSION: (u32, u32) = (6, 2);

/// A larger difference between the clocks of Redis and this machine causes a finding. NTP keeps
/// clocks closer.
const MAX_CLOCK_SKEW: Nanos = Nanos(500 * Nanos::MILLI.0);

const CLUSTER_SLOTS: u64 = 16_384;

/// The facts about one Redis process; `None` if a fact is unknown.
#[derive(Clone, Debug, Default)]
pub(super) struct RedisFacts {
    /// The address of the Redis, or the path of its Unix socket.
    pub(super) address: String,
    /// The kind of proxy, if this is one.
    pub(super) proxy: Option<&'static str>,
    pub(super) product: StoreProduct,
    pub(super) version: Option<(u32, u32)>,
    /// The role of the Redis in replication: `master` or `slave`.
    pub(super) role: Option<String>,
    pub(super) is_loading: bool,
    /// `true` if the reply to `INFO` contains `run_id`, which identifies one start of Redis.
    pub(super) has_run_id: Option<bool>,
    pub(super) eviction_policy: Option<String>,
    /// The memory limit of the Redis, in bytes. 0 means no limit.
    pub(super) maxmemory: Option<u64>,
    pub(super) used_memory: Option<u64>,
    /// The number of keys that Redis evicted since its start.
    pub(super) evicted_keys: Option<u64>,
    /// `true` if Redis writes an append-only file (AOF).
    pub(super) has_append_only_file: Option<bool>,
    pub(super) has_snapshots: Option<bool>,
    /// `true` if the last RDB snapshot failed.
    pub(super) last_save_failed: bool,
    pub(super) cluster: Option<ClusterFacts>,
    /// With Sentinel: `true` if the primary accepts writes without a connected replica.
    pub(super) writes_without_replica: Option<bool>,
    /// The smallest possible difference between the clocks of the Redis and this machine.
    pub(super) clock_skew: Option<Nanos>,
    /// The median duration of several round trips to the Redis.
    pub(super) round_trip: Option<Nanos>,
    /// The result of a script that runs the Redis commands of Sluicegate's scripts.
    pub(super) script_result: Option<Result<(), ScriptFailure>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ClusterFacts {
    pub(super) is_ok: bool,
    pub(super) slots: u64,
}

/// The requirements for a Redis, from the settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct DoctorRequirements {
    pub(super) call_timeout: Nanos,
    /// `true` if counters are named as in envoyproxy/ratelimit. Their windows follow this machine's
    /// clock.
    pub(super) has_compat_keys: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DoctorSeverity {
    /// Limits are not enforced, or hits are not counted.
    Error,
    /// Limits may fail after an event, such as a Redis restart.
    Warning,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct DoctorFinding {
    pub(super) severity: DoctorSeverity,
    /// The identifier of this kind of finding, for example `eviction`.
    pub(super) code: &'static str,
    pub(super) at: String,
    /// The problem, and its consequence.
    pub(super) message: String,
    pub(super) help: String,
}

impl std::fmt::Display for DoctorFinding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let severity = if self.severity == DoctorSeverity::Error { "error" } else { "warning" };
        write!(f, "{severity}[{}]: {}: {}; {}", self.code, self.at, self.message, self.help)
    }
}

/// Returns the findings about `facts`, errors first.
pub(super) fn evaluate_facts(
    facts: &RedisFacts,
    requirements: DoctorRequirements,
) -> Vec<DoctorFinding> {
    let mut evaluator = FactsEvaluator { address: &facts.address, findings: Vec::new() };
    evaluator.check_fitness(facts);
    evaluator.check_memory(facts);
    evaluator.check_cluster(facts);
    evaluator.check_sentinels(facts);
    evaluator.check_latency(facts, requirements);
    evaluator.check_clock(facts, requirements);
    evaluator.check_persistence(facts);
    evaluator.findings.sort_by_key(|finding| finding.severity != DoctorSeverity::Error);
    evaluator.findings
}

struct FactsEvaluator<'f> {
    address: &'f str,
    findings: Vec<DoctorFinding>,
}

impl FactsEvaluator<'_> {
    fn add(&mut self, severity: DoctorSeverity, code: &'static str, message: String, help: &str) {
        let (at, help) = (self.address.to_owned(), help.to_owned());
        self.findings.push(DoctorFinding { severity, code, at, message, help });
    }

    fn add_error(&mut self, code: &'static str, message: impl Into<String>, help: &str) {
        self.add(DoctorSeverity::Error, code, message.into(), help);
    }

    fn add_warning(&mut self, code: &'static str, message: impl Into<String>, help: &str) {
        self.add(DoctorSeverity::Warning, code, message.into(), help);
    }

    fn check_fitness(&mut self, facts: &RedisFacts) {
        if let Some((major, minor)) = facts.version.filter(|version| *version < MIN_VERSION) {
            let message =
                format!("Redis {major}.{minor} lacks commands that Sluicegate's scripts use");
            self.add_error("version", message, "run Redis 6.2 or later");
        }
        let is_replica = facts.role.as_deref() == Some("slave");
        if is_replica {
            let fix = "set `store.url` to the primary, or to its sentinels";
            self.add_error("replica", "this Redis is a replica and rejects writes", fix);
        }
        if facts.is_loading {
            let message = "Redis is still loading its data and rejects commands";
            self.add_error("loading", message, "wait until it has loaded its data");
        }
        if facts.role.as_deref() == Some("active-replica") {
            let message = "KeyDB's active replication keeps only the newest write of each key, so \
                           hits at several primaries are lost and limits can be exceeded";
            self.add_error("active_replica", message, "set `active-replica no`");
        }
        if facts.has_run_id == Some(false) {
            let message = "INFO returns no `run_id`, so a restart with data loss goes unnoticed, \
                           and concurrency limits can be exceeded after it";
            let fix = if facts.product == StoreProduct::Dragonfly {
                "use Redis or Valkey for shared concurrency limits: Dragonfly has no `run_id`"
            } else {
                "allow INFO for this user"
            };
            self.add_warning("run_id", message, fix);
        }
        if let Some(kind) = facts.proxy {
            return self.check_proxy(kind, facts);
        }
        // A Redis replica already has the finding `replica`, and refuses all scripts that write.
        if let (Some(Err(why)), false) = (&facts.script_result, is_replica) {
            self.add_script_failure(why, facts.product);
        }
    }

    fn check_proxy(&mut self, kind: &str, facts: &RedisFacts) {
        let message = format!(
            "this is {kind}: each call has one counter, and a restart of Redis goes unnoticed"
        );
        let fix = "for fewer calls, and for fleet-wide concurrency limits, set `store.url` to \
                   Redis itself";
        self.add_warning("proxy", message, fix);
        let Some(Err(why)) = &facts.script_result else { return };
        let (ScriptFailure::Missing(why) | ScriptFailure::Refused(why)) = why;
        let message = format!("{kind} refuses EVAL ({why})");
        let fix = "let the proxy forward EVAL and EVALSHA, or set `store.url` to Redis itself";
        self.add_error("scripts", message, fix);
    }

    fn add_script_failure(&mut self, failure: &ScriptFailure, product: StoreProduct) {
        let why = match failure {
            ScriptFailure::Missing(names) => {
                let message = format!(
                    "{} lacks commands that Sluicegate needs: {}",
                    product.name(),
                    names.to_uppercase()
                );
                let fix = "set `store.url` to Redis 6.2 or later, or to Valkey; a command that \
                           `rename-command` removed must be restored";
                return self.add_error("commands", message, fix);
            }
            ScriptFailure::Refused(why) => why,
        };
        let message = format!("Redis rejected Sluicegate's scripts ({why})");
        let fix = if why.contains("OOM ") {
            "raise `maxmemory`, or store fewer keys; until then, new keys are rejected"
        } else if product == StoreProduct::Garnet {
            "start Garnet with `--lua`"
        } else {
            "allow EVAL, EVALSHA and the commands of the scripts for this user; see \
             docs/guides/share-limits-through-redis.md, Rights"
        };
        self.add_error("scripts", message, fix);
    }

    fn check_memory(&mut self, facts: &RedisFacts) {
        let policy = facts.eviction_policy.as_deref().filter(|policy| *policy != "noeviction");
        if let Some(policy) = policy {
            let message =
                format!("maxmemory-policy {policy} evicts counters, so limits can be exceeded");
            self.add_error("eviction", message, "set `maxmemory-policy noeviction`");
        }
        if let (Some(evicted @ 1..), true) = (facts.evicted_keys, policy.is_some()) {
            let message = format!(
                "Redis evicted {evicted} keys since its start, so limits may have been exceeded"
            );
            self.add_warning("evicted", message, "fix the error `eviction`");
        }
        let (Some(maxmemory @ 1..), Some(used)) = (facts.maxmemory, facts.used_memory) else {
            return;
        };
        if maxmemory / 10 * 9 <= used {
            let message =
                format!("{used} of {maxmemory} bytes are in use; a full Redis rejects new keys");
            self.add_warning("memory", message, "raise `maxmemory`, or store fewer keys");
        }
    }

    fn check_cluster(&mut self, facts: &RedisFacts) {
        let Some(cluster) = facts.cluster else { return };
        if cluster.slots < CLUSTER_SLOTS {
            let message = format!(
                "only {} of {CLUSTER_SLOTS} slots have a node, so keys in the other slots fail",
                cluster.slots
            );
            self.add_error("slots", message, "assign every slot to a node");
        } else if !cluster.is_ok {
            let message = "the Redis Cluster is down (`cluster_state` is not `ok`)";
            self.add_error("cluster", message, "see the reply to CLUSTER INFO");
        }
    }

    fn check_sentinels(&mut self, facts: &RedisFacts) {
        if facts.writes_without_replica == Some(true) {
            let message = "the primary accepts writes without a replica: after a network \
                           partition, two primaries can charge counters and grant permits";
            let fix = "set `min-replicas-to-write 1` and a `min-replicas-max-lag` of a few seconds \
                       on every Redis";
            self.add_warning("two_primaries", message, fix);
        }
    }

    fn check_latency(&mut self, facts: &RedisFacts, requirements: DoctorRequirements) {
        let Some(round_trip) = facts.round_trip else { return };
        let deadline = requirements.call_timeout;
        let message = format!(
            "a round trip takes {}, and `store.timeout` is {deadline}",
            format_micros(round_trip)
        );
        let fix = "run Redis closer to this machine, or raise `store.timeout`";
        if deadline <= round_trip {
            self.add_error("latency", message, fix);
        } else if Nanos(deadline.0 / 2) <= round_trip {
            self.add_warning("latency", message, fix);
        }
    }

    fn check_clock(&mut self, facts: &RedisFacts, requirements: DoctorRequirements) {
        let Some(skew) = facts.clock_skew.filter(|skew| MAX_CLOCK_SKEW <= *skew) else { return };
        let skew_text =
            format!("the clocks of Redis and of this machine differ by {}", format_millis(skew));
        let fix = "synchronize both clocks with NTP";
        if requirements.has_compat_keys {
            let message = format!(
                "{skew_text}; with `compat.store.key_format: compat`, windows follow the clock of \
                 this machine"
            );
            self.add_error("clock", message, fix);
        } else {
            let message = format!("{skew_text}; counters follow the clock of Redis");
            self.add_warning("clock", message, fix);
        }
    }

    fn check_persistence(&mut self, facts: &RedisFacts) {
        let fix = "set `appendonly yes`, or accept the loss";
        match (facts.has_append_only_file, facts.has_snapshots) {
            (Some(false), Some(false)) => {
                let message = "persistence is off, so a Redis restart loses all counters";
                self.add_warning("persistence", message, fix);
            }
            (Some(false), Some(true)) if facts.last_save_failed => {
                let message = "the last RDB snapshot failed, so a Redis restart loses counters";
                self.add_warning("persistence", message, "see the log and the disk of Redis");
            }
            _ => {}
        }
    }
}

fn format_micros(time: Nanos) -> String {
    format!("{}us", time.0 / Nanos::MICRO.0)
}

fn format_millis(time: Nanos) -> String {
    format!("{}ms", time.0 / Nanos::MILLI.0)
}

#[cfg(test)]
mod tests;
