//! Identifies a relative of Redis by its reply to `INFO`.
//!
//! | product | field of `INFO` |
//! |---|---|
//! | Valkey | `server_name:valkey`, `valkey_version` |
//! | Dragonfly | `dragonfly_version` |
//! | Garnet | `garnet_version` |
//! | `KeyDB` | only with active replication: `role:active-replica` |
//! | `ElastiCache`, `MemoryDB` | `os:Amazon ElastiCache`, `os:Amazon MemoryDB` |
//!
//! Not covered:
//! - Memorystore and `KeyDB` without active replication. Both look like Redis.

use super::info::RedisInfo;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StoreProduct {
    #[default]
    Redis,
    Valkey,
    KeyDb,
    Dragonfly,
    Garnet,
    ElastiCache,
    MemoryDb,
}

impl StoreProduct {
    pub(super) fn identify(info: &RedisInfo) -> Self {
        match (info.text("os"), info.text("role")) {
            (Some("Amazon ElastiCache"), _) => Self::ElastiCache,
            (Some("Amazon MemoryDB"), _) => Self::MemoryDb,
            (_, Some("active-replica")) => Self::KeyDb,
            _ if info.text("dragonfly_version").is_some() => Self::Dragonfly,
            _ if info.text("garnet_version").is_some() => Self::Garnet,
            _ if info.text("valkey_version").is_some() => Self::Valkey,
            _ => Self::Redis,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Redis => "Redis",
            Self::Valkey => "Valkey",
            Self::KeyDb => "KeyDB",
            Self::Dragonfly => "Dragonfly",
            Self::Garnet => "Garnet",
            Self::ElastiCache => "ElastiCache",
            Self::MemoryDb => "MemoryDB",
        }
    }
}

/// The reason for which the scripts cannot run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScriptFailure {
    /// The server does not have these commands.
    Missing(String),
    /// The server refused a command.
    Refused(String),
}

impl ScriptFailure {
    /// Classifies the error of the command `name`, which was sent outside of a script.
    pub(super) fn of_command(name: &str, error: String) -> Self {
        if is_unknown_command(&error) {
            Self::Missing(name.to_owned())
        } else {
            Self::Refused(error)
        }
    }

    /// Classifies the lines `name: reason` of all commands that failed in a script. A missing
    /// command comes first, because no right can allow it. Returns `None` without a line.
    pub(super) fn of_lines(lines: &[(&str, &str)]) -> Option<Self> {
        let names = |lines: &mut dyn Iterator<Item = &(&str, &str)>| {
            lines.map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
        };
        let missing = names(&mut lines.iter().filter(|(_, reason)| is_unknown_command(reason)));
        if !missing.is_empty() {
            return Some(Self::Missing(missing));
        }
        let (_, reason) = lines.first()?;
        Some(Self::Refused(format!("{}: {reason}", names(&mut lines.iter()))))
    }
}

/// Returns `true` for the error of a command that the server does not have: `ERR unknown command
/// 'x'`, and in scripts `ERR Unknown Redis command called from script` (Valkey: `Unknown command`).
fn is_unknown_command(error: &str) -> bool {
    let error = error.to_ascii_lowercase();
    error.contains("unknown command") || error.contains("unknown redis command")
}

#[cfg(test)]
mod tests {
    use super::{RedisInfo, ScriptFailure, StoreProduct};

    #[test]
    fn info_fields_identify_each_product() {
        // The first lines of replies of real servers.
        for (info, product) in [
            ("redis_version:7.0.15\r\nos:Linux", StoreProduct::Redis),
            (
                "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2",
                StoreProduct::Valkey,
            ),
            ("redis_version:7.4.0\r\ndragonfly_version:df-v1.40.1", StoreProduct::Dragonfly),
            ("garnet_version:1.1.9\r\nos:Linux", StoreProduct::Garnet),
            ("redis_version:6.3.4\r\nrole:active-replica", StoreProduct::KeyDb),
            ("redis_version:6.2.5\r\nos:Amazon ElastiCache", StoreProduct::ElastiCache),
            ("redis_version:6.2.6\r\nos:Amazon MemoryDB", StoreProduct::MemoryDb),
        ] {
            assert_eq!(StoreProduct::identify(&RedisInfo::parse(info)), product, "{info}");
        }
    }

    #[test]
    fn missing_commands_are_named_before_refused_ones() {
        let lines = [
            ("set", "NOPERM no right"),
            ("zadd", "ERR Unknown Redis command called from script"),
            ("time", "ERR Unknown command called from script"),
        ];
        let missing = ScriptFailure::Missing("zadd, time".to_owned());
        assert_eq!(ScriptFailure::of_lines(&lines), Some(missing));
        let both = [("set", "OOM no: memory"), ("zadd", "OOM no: memory")];
        let refused = ScriptFailure::Refused("set, zadd: OOM no: memory".to_owned());
        assert_eq!(ScriptFailure::of_lines(&both), Some(refused));
        assert_eq!(ScriptFailure::of_lines(&[]), None);
    }
}
