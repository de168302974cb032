// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A running node and a changed configuration.

use millrace_engine::EngineConfig;
use millrace_server::config::NodeConfig;
use millrace_server::{NodeHandle, ReloadError, ReloadReport};
use millrace_service::keys::Reloaded;
use tokio::signal::unix::Signal;

/// Applies the settings of a configuration that can change in a running node: all of them, or none if any is invalid.
pub(super) fn reload(
    read: NodeConfig,
    running: &NodeConfig,
    node: &NodeHandle,
    actor: &str,
) -> Result<ReloadReport, ReloadError> {
    let service = node.service();
    service.check(&read.settings)?;
    // Files before settings: reading files may fail, applying checked settings cannot.
    let keys = node.reload()?;
    let needs_restart = restart_keys(running, &read);
    let settings = service.apply(read.settings, actor)?;
    Ok(ReloadReport { settings, keys, needs_restart })
}

/// Keys of the file that differ from the running node and take effect only after a restart. A new field of
/// [`NodeConfig`] must be considered here, or this function does not compile.
fn restart_keys(running: &NodeConfig, read: &NodeConfig) -> Vec<String> {
    let NodeConfig {
        name,
        unix,
        tcp,
        metrics,
        status_socket,
        admin,
        settings: _,
        drain_timeout,
        store,
        engine,
        pin,
        worker_priority,
        backends,
        qat,
        log_format,
        lock_memory,
        manager,
    } = running;
    #[rustfmt::skip]
    let differs = [
        ("name", *name != read.name),
        ("drain-timeout-ms", *drain_timeout != read.drain_timeout),
        ("backends", *backends != read.backends),
        ("backend.qat", *qat != read.qat),
        ("unix", *unix != read.unix),
        ("tcp", *tcp != read.tcp),
        ("metrics", *metrics != read.metrics || *status_socket != read.status_socket),
        ("admin", *admin != read.admin),
        ("store", *store != read.store),
        ("engine", limits(engine) != limits(&read.engine) || *pin != read.pin || *worker_priority != read.worker_priority),
        ("log.format", *log_format != read.log_format),
        ("lock-memory", *lock_memory != read.lock_memory),
        ("manager", *manager != read.manager),
    ];
    let differs = differs.into_iter().filter(|(_, differs)| *differs);
    differs.map(|(key, _)| key.to_owned()).collect()
}

/// The settings of an engine that the file has.
fn limits(engine: &EngineConfig) -> (usize, usize, usize) {
    (engine.workers, engine.queue_limit, engine.session_queue_limit)
}

/// Reloads on each SIGHUP. Never returns.
pub(super) async fn reload_on(mut hangup: Signal, node: NodeHandle) {
    while hangup.recv().await.is_some() {
        let node = node.clone();
        match tokio::task::spawn_blocking(move || node.reload_all("SIGHUP")).await {
            Ok(Ok(report)) => {
                let ReloadReport { settings, keys, needs_restart } = report;
                let Reloaded { changed, removed, broken } = keys;
                tracing::info!(
                    settings_revision = settings.revision,
                    settings_changed = settings.changes.join("; "),
                    keys_changed = changed,
                    keys_removed = removed,
                    keys_broken = broken,
                    "reloaded"
                );
                if !needs_restart.is_empty() {
                    let keys = needs_restart.join(", ");
                    tracing::warn!(keys, "these settings changed and hold after a restart");
                }
            }
            Ok(Err(error)) => {
                let problems = error.to_string();
                tracing::warn!(problems, "cannot reload: the former settings stay in force");
            }
            Err(error) => tracing::error!(%error, "a reload panicked"),
        }
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_key_that_needs_a_restart_is_named() {
        let running = NodeConfig::default();
        for (text, key) in [
            ("name = \"other\"", "name"),
            ("drain-timeout-ms = 1", "drain-timeout-ms"),
            ("backends = [\"software\"]", "backends"),
            ("[backend.qat]\nanswer-ms = 7", "backend.qat"),
            ("[unix]\nmode = \"0600\"", "unix"),
            ("[tcp]\naddress = \"127.0.0.1:0\"", "tcp"),
            ("[metrics]\naddress = \"127.0.0.1:1\"", "metrics"),
            ("[metrics]\nsocket = \"/x\"", "metrics"),
            ("[admin]\nuids = [7]", "admin"),
            ("[store]\ndirectory = \"/x\"", "store"),
            ("[engine]\nworkers = 1023", "engine"),
            ("[engine]\nqueue-limit = 7", "engine"),
            ("[engine]\nsession-queue-limit = 7", "engine"),
            ("[engine]\npin = \"off\"", "engine"),
            ("[engine]\nworker-priority = \"low\"", "engine"),
            ("[log]\nformat = \"json\"", "log.format"),
            ("lock-memory = true", "lock-memory"),
            ("[manager]\nzone = \"rack-1\"", "manager"),
        ] {
            let read = NodeConfig::from_toml(text).expect("a configuration");
            assert_eq!(restart_keys(&running, &read), [key], "{text}");
        }
        for text in ["", "allow-import = true", "[limits]\nkeys = 7", "[log]\nfilter = \"warn\""] {
            let read = NodeConfig::from_toml(text).expect("a configuration");
            assert!(restart_keys(&running, &read).is_empty(), "{text}");
        }
    }
}
