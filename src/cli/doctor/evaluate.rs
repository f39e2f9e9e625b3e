//! Evaluates the facts about a Redis, and returns the findings of `sluicegate doctor`. Uses no I/O
//! and no clock.
//!
//! Guarantees:
//! - Each finding has the problem, its consequence and the fix.
//! - An unknown fact causes no finding. That Redis refuses a script is a known fact.

use serde::Serialize;

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
    pub(super) script_result: Option<Result<(), String>>,
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
    pub(super) has_second_store: bool,
    /// `true` if a check may charge some of its limits only if all allow: `charge: all_or_nothing`
    /// or `compat.store.stop_when_over`.
    pub(super) has_dependent_charges: bool,
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
    evaluator.check_atomicity(facts, requirements);
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
        if facts.has_run_id == Some(false) {
            let message = "INFO returns no `run_id`, so a restart with data loss goes unnoticed, \
                           and concurrency limits can be exceeded after it";
            self.add_warning("run_id", message, "allow INFO for this user");
        }
        // A Redis replica already has the finding `replica`, and refuses all scripts that write.
        if let (Some(Err(why)), false) = (&facts.script_result, is_replica) {
            let message = format!("Redis rejected Sluicegate's scripts ({why})");
            let fix = if why.contains("OOM ") {
                "raise `maxmemory`, or store fewer keys; until then, new keys are rejected"
            } else {
                "allow EVAL, EVALSHA, SCRIPT LOAD and the commands of the scripts for this user; \
                 see docs/reliability.md, Rights"
            };
            self.add_error("scripts", message, fix);
        }
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
            "a round trip takes {}, and `store.deadline` is {deadline}",
            format_micros(round_trip)
        );
        let fix = "run Redis closer to this machine, or raise `store.deadline`";
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

    fn check_atomicity(&mut self, facts: &RedisFacts, requirements: DoctorRequirements) {
        if requirements.has_compat_keys
            && requirements.has_dependent_charges
            && (requirements.has_second_store || facts.cluster.is_some())
        {
            let message = "with `compat.store.key_format: compat`, one check can use several \
                nodes: `charge: all_or_nothing` and `compat.store.stop_when_over` are not atomic";
            let fix = "use one Redis node, or a `compat.store.key_prefix` with a {tag}";
            self.add_warning("two_steps", message, fix);
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
mod tests {
    use super::{
        CLUSTER_SLOTS, ClusterFacts, DoctorRequirements, DoctorSeverity, MAX_CLOCK_SKEW, Nanos,
        RedisFacts, evaluate_facts,
    };

    const REQUIREMENTS: DoctorRequirements = DoctorRequirements {
        call_timeout: Nanos(15 * Nanos::MILLI.0),
        has_compat_keys: false,
        has_second_store: false,
        has_dependent_charges: false,
    };

    fn healthy() -> RedisFacts {
        RedisFacts {
            address: "h:1".to_owned(),
            version: Some((7, 0)),
            role: Some("master".to_owned()),
            has_run_id: Some(true),
            eviction_policy: Some("noeviction".to_owned()),
            maxmemory: Some(0),
            used_memory: Some(1_000_000),
            evicted_keys: Some(0),
            has_append_only_file: Some(true),
            has_snapshots: Some(true),
            clock_skew: Some(Nanos(0)),
            round_trip: Some(Nanos(200_000)),
            script_result: Some(Ok(())),
            ..RedisFacts::default()
        }
    }

    /// Returns the codes of the findings, with `!` before the code of an error.
    fn codes(facts: &RedisFacts, wanted: DoctorRequirements) -> Vec<String> {
        let code = |it: super::DoctorFinding| {
            assert!(it.to_string().contains("h:1: ") && !it.help.is_empty());
            format!("{}{}", if it.severity == DoctorSeverity::Error { "!" } else { "" }, it.code)
        };
        evaluate_facts(facts, wanted).into_iter().map(code).collect()
    }

    #[test]
    fn a_healthy_redis_and_unknown_facts_have_no_findings() {
        assert!(codes(&healthy(), REQUIREMENTS).is_empty());
        let unknown = RedisFacts { address: "h:1".to_owned(), ..RedisFacts::default() };
        assert!(codes(&unknown, REQUIREMENTS).is_empty());
    }

    #[test]
    fn each_redis_problem_causes_its_finding_once() {
        let text = |text: &str| Some(text.to_owned());
        let refused = || Some(Err("NOPERM".to_owned()));
        let ok = ClusterFacts { is_ok: true, slots: CLUSTER_SLOTS };
        let cases: Vec<(&str, RedisFacts)> = vec![
            ("!version", RedisFacts { version: Some((6, 0)), ..healthy() }),
            ("!version", RedisFacts { version: Some((5, 9)), ..healthy() }),
            ("", RedisFacts { version: Some((6, 2)), ..healthy() }),
            ("!replica", RedisFacts { role: text("slave"), script_result: refused(), ..healthy() }),
            ("!loading", RedisFacts { is_loading: true, ..healthy() }),
            ("run_id", RedisFacts { has_run_id: Some(false), ..healthy() }),
            ("!scripts", RedisFacts { script_result: refused(), ..healthy() }),
            ("!eviction", RedisFacts { eviction_policy: text("allkeys-lru"), ..healthy() }),
            ("!eviction", RedisFacts { eviction_policy: text("volatile-ttl"), ..healthy() }),
            ("memory", RedisFacts { maxmemory: Some(1_100_000), ..healthy() }),
            ("", RedisFacts { maxmemory: Some(2_000_000), ..healthy() }),
            (
                "!slots",
                RedisFacts {
                    cluster: Some(ClusterFacts { slots: CLUSTER_SLOTS - 1, ..ok }),
                    ..healthy()
                },
            ),
            (
                "!cluster",
                RedisFacts { cluster: Some(ClusterFacts { is_ok: false, ..ok }), ..healthy() },
            ),
            ("", RedisFacts { cluster: Some(ok), ..healthy() }),
            ("two_primaries", RedisFacts { writes_without_replica: Some(true), ..healthy() }),
            ("", RedisFacts { writes_without_replica: Some(false), ..healthy() }),
            ("!latency", RedisFacts { round_trip: Some(REQUIREMENTS.call_timeout), ..healthy() }),
            (
                "latency",
                RedisFacts {
                    round_trip: Some(Nanos(REQUIREMENTS.call_timeout.0 / 2)),
                    ..healthy()
                },
            ),
            ("clock", RedisFacts { clock_skew: Some(MAX_CLOCK_SKEW), ..healthy() }),
            (
                "persistence",
                RedisFacts {
                    has_append_only_file: Some(false),
                    has_snapshots: Some(false),
                    ..healthy()
                },
            ),
            ("", RedisFacts { has_append_only_file: Some(false), ..healthy() }),
        ];
        for (code, facts) in cases {
            let expected: Vec<&str> = [code].into_iter().filter(|code| !code.is_empty()).collect();
            assert_eq!(codes(&facts, REQUIREMENTS), expected, "{facts:?}");
        }
        let evicting =
            RedisFacts { eviction_policy: text("allkeys-lru"), evicted_keys: Some(3), ..healthy() };
        assert_eq!(codes(&evicting, REQUIREMENTS), ["!eviction", "evicted"]);
        let failing =
            RedisFacts { has_append_only_file: Some(false), last_save_failed: true, ..healthy() };
        assert_eq!(codes(&failing, REQUIREMENTS), ["persistence"]);
    }

    #[test]
    fn scripts_refused_with_oom_suggest_raising_maxmemory() {
        let fix = |why: &str| {
            let facts = RedisFacts { script_result: Some(Err(why.to_owned())), ..healthy() };
            evaluate_facts(&facts, REQUIREMENTS).into_iter().map(|it| it.help).collect::<String>()
        };
        let full = fix("OOM command not allowed when used memory > 'maxmemory'.");
        assert!(full.contains("raise `maxmemory`") && !full.contains("EVAL"), "{full}");
        assert!(fix("NOPERM this user has no permissions").contains("allow EVAL, EVALSHA"));
    }

    #[test]
    fn envoyproxy_keys_cause_clock_errors_and_atomicity_warnings() {
        let wanted = DoctorRequirements { has_compat_keys: true, ..REQUIREMENTS };
        let independent = DoctorRequirements { has_second_store: true, ..wanted };
        assert!(codes(&healthy(), independent).is_empty());
        let wanted = DoctorRequirements { has_dependent_charges: true, ..wanted };
        assert_eq!(
            codes(&RedisFacts { clock_skew: Some(MAX_CLOCK_SKEW), ..healthy() }, wanted),
            ["!clock"]
        );
        assert!(codes(&healthy(), wanted).is_empty());
        assert_eq!(
            codes(&healthy(), DoctorRequirements { has_second_store: true, ..wanted }),
            ["two_steps"]
        );
        let cluster = Some(ClusterFacts { is_ok: true, slots: CLUSTER_SLOTS });
        assert_eq!(codes(&RedisFacts { cluster, ..healthy() }, wanted), ["two_steps"]);
    }
}
