//! Reads the environment variables of envoyproxy/ratelimit for the source of limits: a directory
//! tree, or an xDS server.

use std::path::{Path, PathBuf};

use super::env_reader::EnvReader;

const FILE_TYPE_REASON: &str = "no effect: CONFIG_TYPE is FILE, so there is no xDS server";
const LIMITS_SET_REASON: &str = "no effect: `limits.paths` is set, so there is no xDS server";
const XDS_VARIABLES: [&str; 11] = [
    "CONFIG_GRPC_XDS_NODE_ID",
    "CONFIG_GRPC_XDS_NODE_METADATA",
    "CONFIG_GRPC_XDS_SERVER_URL",
    "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
    "CONFIG_GRPC_XDS_SERVER_USE_TLS",
    "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
    "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
    "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
    "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
    "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
    "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
];

pub(super) fn read(reader: &mut EnvReader<'_>) {
    reader.put_flag("MERGE_DOMAIN_CONFIG", "limits.merge_domains");
    reader.put_flag("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "limits.required_for_health");
    let overridden =
        ["limits.paths", "limits.xds.server"].map(|setting| reader.is_setting_overridden(setting));
    match (overridden, reader.text("CONFIG_TYPE")) {
        ([true, _], _) => read_own_files(reader),
        ([_, true], _) | (_, "GRPC_XDS_SOTW") => read_xds(reader),
        (_, "FILE") => read_files(reader),
        _ => reader.add_error("CONFIG_TYPE", "must be FILE or GRPC_XDS_SOTW"),
    }
}

/// Reads the variables that still apply if Sluicegate's own setting `limits.paths` names the files, which
/// must exist.
fn read_own_files(reader: &mut EnvReader<'_>) {
    reader.note_unused(&XDS_VARIABLES, LIMITS_SET_REASON);
    read_dot_files(reader);
}

fn read_dot_files(reader: &mut EnvReader<'_>) {
    let includes_dot_files = !reader.flag("RUNTIME_IGNOREDOTFILES");
    reader.put("RUNTIME_IGNOREDOTFILES", "compat.limits.dot_files", includes_dot_files.to_string());
}

fn read_files(reader: &mut EnvReader<'_>) {
    reader.note_unused(&XDS_VARIABLES, FILE_TYPE_REASON);
    // envoyproxy/ratelimit starts without limits if the first files are invalid.
    reader.put("CONFIG_TYPE", "limits.required_at_start", "false".to_owned());
    read_dot_files(reader);
    let root = PathBuf::from(reader.text("RUNTIME_ROOT"));
    let tree = join_below(&root, reader.text("RUNTIME_SUBDIRECTORY"));
    if reader.flag("RUNTIME_WATCH_ROOT") {
        read_watched_root(reader, &root, &tree);
    } else {
        read_watched_directory(reader, &tree);
    }
}

/// Selects the files for `RUNTIME_WATCH_ROOT`: those below `RUNTIME_SUBDIRECTORY` whose names start
/// with `RUNTIME_APPDIRECTORY`.
fn read_watched_root(reader: &mut EnvReader<'_>, root: &Path, tree: &Path) {
    reader.put("RUNTIME_WATCH_ROOT", "compat.limits.optional_paths", "true".to_owned());
    let has_parent_directory =
        root.parent().is_none_or(|above| above.as_os_str().is_empty() || above.is_dir());
    if !has_parent_directory {
        return reader.add_error("RUNTIME_ROOT", "must be in an existing directory");
    }
    let required = [
        ("RUNTIME_SUBDIRECTORY", reader.text("RUNTIME_SUBDIRECTORY").is_empty()),
        ("RUNTIME_APPDIRECTORY", reader.text("RUNTIME_APPDIRECTORY").is_empty()),
    ];
    if let Some((variable, _)) = required.into_iter().find(|(_, is_empty)| *is_empty) {
        let line = format!(
            "is empty and RUNTIME_WATCH_ROOT is true, so no file is read and nothing is limited, \
             as in envoyproxy/ratelimit: set {variable} to the directory of limits below {}, or \
             set RUNTIME_WATCH_ROOT=false to read {}",
            if variable == "RUNTIME_SUBDIRECTORY" { root } else { tree }.display(),
            join_below(tree, reader.text("RUNTIME_APPDIRECTORY")).display(),
        );
        return reader.add_note(variable, &line);
    }
    set_limits(reader, tree);
    reader.put_text("RUNTIME_APPDIRECTORY", "compat.limits.file_prefix");
}

fn read_watched_directory(reader: &mut EnvReader<'_>, tree: &Path) {
    let tree = join_below(tree, reader.text("RUNTIME_APPDIRECTORY"));
    if !tree.is_dir() {
        let why = format!(
            "with RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY must be an existing directory; \
             there is no directory {}",
            tree.display()
        );
        return reader.add_error("RUNTIME_ROOT", &why);
    }
    set_limits(reader, &tree);
}

fn set_limits(reader: &mut EnvReader<'_>, tree: &Path) {
    reader.put("RUNTIME_ROOT", "limits.paths", tree.to_string_lossy().into_owned());
}

/// Joins paths like Go's `filepath.Join`: an absolute `part` is still below `root`.
fn join_below(root: &Path, part: &str) -> PathBuf {
    match part.trim_matches('/') {
        "" => root.to_owned(),
        part => root.join(part),
    }
}

fn read_xds(reader: &mut EnvReader<'_>) {
    let is_required = !reader.flag("FORCE_START_WITHOUT_INITIAL_CONFIG");
    reader.put(
        "FORCE_START_WITHOUT_INITIAL_CONFIG",
        "limits.required_at_start",
        is_required.to_string(),
    );
    let url = reader.text("CONFIG_GRPC_XDS_SERVER_URL");
    // Removes gRPC's resolver scheme, because Sluicegate resolves the host name itself.
    let server = url.trim_start_matches("dns:///").trim_start_matches("passthrough:///").to_owned();
    reader.put("CONFIG_GRPC_XDS_SERVER_URL", "limits.xds.server", server);
    // envoyproxy/ratelimit always has this behavior, without a variable.
    reader.put("CONFIG_GRPC_XDS_SERVER_URL", "limits.xds.allow_empty", "true".to_owned());
    reader.put_text("CONFIG_GRPC_XDS_NODE_ID", "limits.xds.node_id");
    let metadata: Vec<_> = reader
        .text("CONFIG_GRPC_XDS_NODE_METADATA")
        .split(',')
        .filter_map(|item| item.split_once('='))
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .filter(|(name, _)| !name.is_empty())
        .collect();
    reader.put_pairs("CONFIG_GRPC_XDS_NODE_METADATA", "compat.xds.node_metadata", &metadata);
    let headers = reader.map("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS");
    reader.put_pairs("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "compat.xds.headers", &headers);
    reader.put_nanos("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "compat.xds.backoff_min");
    reader.put_nanos("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "compat.xds.backoff_max");
    reader.put_flag("XDS_CLIENT_BACKOFF_JITTER", "compat.xds.backoff_jitter");
    let max_message_bytes = u32::try_from(reader.int("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"));
    let max_message = match max_message_bytes {
        Ok(0) | Err(_) => "auto".to_owned(),
        Ok(bytes) => bytes.to_string(),
    };
    reader.put("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "compat.xds.max_message", max_message);
    read_xds_tls(reader);
}

fn read_xds_tls(reader: &mut EnvReader<'_>) {
    let files = [
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "limits.xds.tls.cert_file"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "limits.xds.tls.key_file"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "limits.xds.tls.ca_file"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "limits.xds.tls.server_name"),
    ];
    if !reader.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS")
        && !reader.is_setting_overridden("limits.xds.use_tls")
    {
        let why = "no effect: CONFIG_GRPC_XDS_SERVER_USE_TLS is false, so the connection to the \
                   xDS server uses no TLS";
        return reader.note_unused(&files.map(|(variable, _)| variable), why);
    }
    reader.put_flag("CONFIG_GRPC_XDS_SERVER_USE_TLS", "limits.xds.use_tls");
    for (variable, setting) in files {
        reader.put_text(variable, setting);
    }
    reader.put_presence("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "compat.system_cas");
}
